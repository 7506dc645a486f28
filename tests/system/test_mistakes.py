"""What a user may get wrong, through the real command: one message that names it, and the code."""

import json
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from astra_stream.declarations import declared
from astra_stream.errors import RecordError, TransientError
from astra_stream.local import Supervisor, object_store
from astra_stream.local.ports import PortReservation
from astra_stream.log.codec import Codec
from astra_stream.log.dead_letters import make_dead_letter
from astra_stream.log.interface import Message
from astra_stream.store.s3 import S3Store

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

REWARDS = """
def raises(reply, prompt):
    raise ZeroDivisionError("division by zero, as asked")
"""
CODEC = Codec(declared("schemas"))
TRY_AGAIN = 75
USER_MISTAKE = 2


def run_on_shared_servers(lab, run_file):
    return lab.astra_here("run", run_file, "--runs", lab.directory, *lab.shared_servers())


def summary_of(lab):
    (path,) = lab.directory.glob("*/summary.json")
    return json.loads(path.read_text())


def test_a_reward_function_that_raises_stops_the_run_and_is_named(lab):
    (lab.directory / "rewards.py").write_text(REWARDS)
    environment = {"use": "verifiable", "reward": "rewards:raises"}
    done = run_on_shared_servers(lab, lab.file(steps=3, **{"rollout.environment": environment}))
    assert done.returncode == USER_MISTAKE, done.stderr
    last = done.stderr.splitlines()[-1]
    assert "episodes must end with a reward: got 32 failures in a row" in last
    assert "ZeroDivisionError: division by zero, as asked" in last
    assert "raises at rewards.py:3" in last


def test_prompts_that_end_before_the_last_batch_is_full_make_a_short_one(lab):
    lab.write_sums(14)
    changes = {
        "prompts.source.held_out": 0,
        "prompts.epochs": 1,
        "policies.main.pipeline": [],
    }
    done = run_on_shared_servers(lab, lab.file(steps=10, **changes))
    assert done.returncode == 0, done.stderr
    assert "4 of 10, ended by prompts_exhausted" in done.stdout
    summary = summary_of(lab)
    assert (summary["steps"], summary["closed"]) == (4, "prompts_exhausted")
    assert summary["groups_trained"] == 14


def test_everything_that_is_wrong_with_a_run_file_is_said_at_once(lab):
    changes = {
        "rollout.environment": {"use": "verifable"},
        "rollout.group_size": 1,
        "policies.main.model": str(lab.directory / "nowhere"),
    }
    began_s = time.monotonic()
    done = lab.astra("run", lab.file(**changes), "--runs", lab.directory)
    assert done.returncode == USER_MISTAKE
    assert not list(lab.directory.glob("*/logs"))
    said = done.stderr
    assert "run.json: rollout.environment.use must be one of" in said
    assert "got 'verifable'. Did you mean 'verifiable'?" in said
    assert "run.json: rollout.group_size must be at least 2 with the advantage" in said
    assert "run.json: policies.main.model" in said
    assert str(lab.directory / "nowhere") in said
    assert len(said.splitlines()) == 3
    assert time.monotonic() - began_s < 120.0


def test_top_p_while_training_is_refused(lab):
    run_file = lab.file(**{"rollout.sampling.top_p": 0.9})
    done = lab.astra("run", run_file, "--runs", lab.directory)
    assert done.returncode == USER_MISTAKE
    assert done.stderr == (
        "astra: run.json: rollout.sampling.top_p must be 1.0 while training: got 0.9. "
        "Remove it: log-probabilities are of the whole vocabulary.\n"
    )


def test_a_record_that_was_refused_is_listed_shown_and_written_again(lab):
    run = lab.run()
    letter = make_dead_letter(
        Message(run.names.prompts, 0, 7, b"p", b"torn", 0),
        RecordError("by design"),
        service="scheduler",
        stage="scheduler",
        now_s=0.0,
    )
    with closing(run.log.writer("test")) as writer, writer.transaction() as txn:
        txn.write(run.names.dead_letters, b"k", CODEC.encode(letter))
    where = f"{run.names.prompts}[0]@7"
    listed = lab.astra_here("dead-letters", "list", run.directory)
    assert where in listed.stdout
    assert "RecordError: by design" in listed.stdout
    shown = lab.astra_here("dead-letters", "show", run.directory, where, "--json")
    assert json.loads(shown.stdout)["first bytes"] == b"torn".hex(" ")
    again = lab.astra_here("dead-letters", "replay", run.directory, where)
    assert "1 of 1 records written again" in again.stdout
    assert run.messages(run.names.prompts)[-1].value == b"torn"
    unknown = lab.astra_here("dead-letters", "show", run.directory, "x[0]@1")
    assert unknown.returncode == USER_MISTAKE
    assert "x[0]@1 must be the coordinates of a dead letter: got one of" in unknown.stderr


def test_a_broker_that_is_down_is_one_message_with_its_address(lab):
    nowhere = ["--set", "kafka.bootstrap=127.0.0.1:1", "--set", "store.url=s3://astra/runs"]
    nowhere += ["--set", "kafka.deadline=3s"]
    done = lab.astra("run", lab.file(), "--runs", lab.directory, *nowhere)
    assert done.returncode == TRY_AGAIN
    assert "%" not in done.stderr, "librdkafka's own lines start with a per cent sign"
    errors = [line for line in done.stderr.splitlines() if line.startswith("astra: ")]
    assert len(errors) == 1
    assert 'kafka at 127.0.0.1:1 must answer within 3 s: got "Connection refused"' in errors[0]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of few bytes."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=160m", "none", str(directory)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small file system takes the right to mount")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def test_a_full_disk_is_an_error_that_names_the_store(small_disk: Path, tmp_path: Path):
    credentials = object_store.S3Credentials("key", "secret-secret-secret")
    with (
        Supervisor(tmp_path / "logs", grace_s=5.0) as supervisor,
        PortReservation(object_store.PORT_NAMES, remembered={}) as ports,
    ):
        server = object_store.store_server(small_disk, credentials=credentials, ports=ports)
        object_store.prepare_store(small_disk, credentials=credentials)
        server.start(supervisor)
        server.wait_ready(supervisor, timeout_s=120.0)
        store = S3Store(
            f"s3://{object_store.BUCKET}/runs",
            endpoint=object_store.endpoint_url(ports),
            access_key=credentials.access_key,
            secret_key=credentials.secret_key,
            deadline_s=5.0,
        )
        with closing(store), pytest.raises(TransientError, match="could not write 'object"):
            fill(store)


def fill(store: S3Store) -> None:
    for number in range(64):
        store.put(f"object-{number}", bytes([number]) * (4 << 20))
