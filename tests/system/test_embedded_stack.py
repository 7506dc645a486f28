import json
import logging
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from astra_stream.errors import ConfigError, TransientError
from astra_stream.local import (
    ProcessIdentity,
    Supervisor,
    ports,
    read_stack,
    start_stack,
    stop_stack,
)

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]

SILENT = logging.getLogger("test-embedded-stack")
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    # A name that Java's lists, its property files and the C locale would each misread.
    with start_stack(tmp_path_factory.mktemp("stack") / "a run, ü") as stack:
        yield stack


def s3(stack, *, secret_key=None):
    return boto3.client(
        "s3",
        endpoint_url=stack.s3_endpoint,
        region_name="us-east-1",
        aws_access_key_id=stack.s3_access_key,
        aws_secret_access_key=secret_key or stack.s3_secret_key,
        config=Config(s3={"addressing_style": "path"}),
    )


def make_topic(stack, name):
    admin = AdminClient({"bootstrap.servers": stack.bootstrap}, logger=SILENT)
    for created in admin.create_topics([NewTopic(name, 1)]).values():
        created.result(timeout=30)


def write_in_a_transaction(stack, topic, values, *, commit=True):
    settings = {"bootstrap.servers": stack.bootstrap, "transactional.id": f"{topic}.writer"}
    producer = Producer(settings, logger=SILENT)
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    producer.flush(30)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


def read_values(stack, topic, num_values):
    settings = {
        "bootstrap.servers": stack.bootstrap,
        "group.id": f"{topic}.readers",
        "group.protocol": "consumer",
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(settings, logger=SILENT)
    consumer.subscribe([topic])
    messages = consumer.consume(num_values, timeout=30)
    consumer.close()
    assert not any(message.error() for message in messages)
    return [message.value() for message in messages]


def listening_addresses(pid):
    """The local addresses, in the kernel's hexadecimal, of a process's listening sockets."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(descriptor)
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    listening = "0A"
    return [row[1].split(":")[0] for row in rows if row[3] == listening and row[9] in inodes]


def test_committed_records_are_read_and_aborted_ones_are_not(stack):
    make_topic(stack, "committed")
    write_in_a_transaction(stack, "committed", [b"aborted"], commit=False)
    write_in_a_transaction(stack, "committed", [b"one", b"two"])
    assert read_values(stack, "committed", 2) == [b"one", b"two"]


def test_a_record_of_eight_mebibytes_fits(stack):
    make_topic(stack, "large")
    producer = Producer(
        {"bootstrap.servers": stack.bootstrap, "message.max.bytes": 16 * 2**20}, logger=SILENT
    )
    failures = []
    producer.produce(
        "large", os.urandom(8 * 2**20), on_delivery=lambda error, _: failures.append(error)
    )
    assert producer.flush(30) == 0
    # A topic's own limit follows the broker's.
    assert failures == [None]


def test_an_object_is_read_back(stack):
    assert stack.store_url == "s3://astra/runs"
    s3(stack).put_object(Bucket="astra", Key="runs/object", Body=b"weights")
    assert s3(stack).get_object(Bucket="astra", Key="runs/object")["Body"].read() == b"weights"


def test_an_object_that_is_there_is_not_overwritten_when_that_is_asked(stack):
    s3(stack).put_object(Bucket="astra", Key="runs/once", Body=b"first", IfNoneMatch="*")
    with pytest.raises(ClientError) as refusal:
        s3(stack).put_object(Bucket="astra", Key="runs/once", Body=b"second", IfNoneMatch="*")
    assert refusal.value.response["ResponseMetadata"]["HTTPStatusCode"] == 412


def test_wrong_credentials_are_refused(stack):
    with pytest.raises(ClientError) as refusal:
        s3(stack, secret_key="wrong").list_objects_v2(Bucket="astra")
    assert refusal.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403


def test_every_listening_port_is_loopback(stack):
    pids = stack.supervisor.pids()
    found = {name: listening_addresses(pid) for name, pid in pids.items()}
    loopback = {"0100007F", "0000000000000000FFFF00000100007F"}
    assert len(found["kafka"]) == 2
    assert len(found["store"]) == 8
    assert {address for addresses in found.values() for address in addresses} <= loopback


def test_the_address_file_is_private_and_no_log_holds_the_secret(stack):
    path = stack.directory / "stack.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text())["bootstrap"] == stack.bootstrap
    logs = [log.read_text() for log in (stack.directory / "logs").iterdir()]
    assert len(logs) == 3
    assert not any(stack.s3_secret_key in log for log in logs)


def test_a_second_stack_in_the_same_directory_is_refused(stack):
    with pytest.raises(ConfigError, match="must have no running stack"):
        start_stack(stack.directory)


def test_the_ports_of_a_stack_are_kept_from_others_also_while_a_server_is_down(stack, monkeypatch):
    monkeypatch.setattr(ports, "is_free", lambda _: True)
    mine = stack.info.ports
    with ports.PortReservation([*mine], remembered=mine) as others:
        assert not set(mine.values()) & set(others.values())


def test_a_killed_server_comes_back_with_its_data(stack):
    make_topic(stack, "before")
    write_in_a_transaction(stack, "before", [b"kept"])
    s3(stack).put_object(Bucket="astra", Key="runs/before", Body=b"kept")
    events = stack.supervisor.events()
    for name in ("kafka", "store"):
        stack.supervisor.kill(name)
    exits = {next(events).name: True for _ in range(2)}
    assert exits == {"kafka": True, "store": True}
    assert read_values(stack, "before", 1) == [b"kept"]
    assert s3(stack).get_object(Bucket="astra", Key="runs/before")["Body"].read() == b"kept"


STARTER = """
import sys
from pathlib import Path
from astra_stream.local import Supervisor, start_stack
directory = Path(sys.argv[1])
supervisor = Supervisor(directory / "logs", detached=sys.argv[2] == "detached")
start_stack(directory, supervisor=supervisor)
print("up", flush=True)
if not supervisor.detached:
    sys.stdin.read()
"""


def start_elsewhere(directory, mode):
    process = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(directory), mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout.readline() == b"up\n"
    return process


def end(process):
    process.stdin.close()
    process.stdout.close()
    return process.wait()


def test_a_killed_starter_leaves_no_orphan(tmp_path):
    process = start_elsewhere(tmp_path, "attached")
    servers = read_stack(tmp_path).servers
    assert all(server.is_alive() for server in servers.values())
    process.kill()
    assert all(server.wait_gone(10) for server in servers.values())
    assert not read_stack(tmp_path).is_running()
    assert end(process) == -signal.SIGKILL


def test_a_detached_stack_is_stopped_from_elsewhere_and_started_again_with_its_data(tmp_path):
    assert end(start_elsewhere(tmp_path, "detached")) == 0
    first = read_stack(tmp_path)
    assert first.is_running()
    make_topic(first, "kept")
    write_in_a_transaction(first, "kept", [b"record"])
    s3(first).put_object(Bucket="astra", Key="runs/kept", Body=b"object")

    assert stop_stack(tmp_path) is True
    assert stop_stack(tmp_path) is False
    assert not any(server.is_alive() for server in first.servers.values())

    with start_stack(tmp_path) as second:
        assert second.info.ports == first.ports
        assert second.s3_secret_key == first.s3_secret_key
        assert read_values(second, "kept", 1) == [b"record"]
        body = s3(second).get_object(Bucket="astra", Key="runs/kept")["Body"]
        assert body.read() == b"object"
        running = [ProcessIdentity.of(pid) for pid in second.supervisor.pids().values()]
    assert len(running) == 2
    assert not any(process.is_alive() for process in running)
    assert not read_stack(tmp_path).is_running()


def test_a_java_that_fails_is_reported_with_the_end_of_its_log(tmp_path):
    java = tmp_path / "java"
    java.write_text(
        "#!/bin/sh\n"
        '[ "$1" = -version ] && { echo \'openjdk version "21"\' >&2; exit 0; }\n'
        "echo 'Error: could not reserve memory'\n"
        "exit 1\n"
    )
    java.chmod(0o755)
    supervisor = Supervisor(tmp_path / "logs")
    with pytest.raises(TransientError, match=r"got exit code 1.*\n.*could not reserve memory"):
        start_stack(tmp_path / "run", java=java, supervisor=supervisor)
    assert supervisor.pids() == {}
