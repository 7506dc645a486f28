"""A broker of its own, killed and stopped while clients are at work."""

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from astra_stream.clock import SystemClock
from astra_stream.errors import TransientError
from astra_stream.local.broker import NAME, PORT_NAMES, kafka_server, prepare_broker
from astra_stream.local.jars import locked_jars, read_lock
from astra_stream.local.java import find_java
from astra_stream.local.ports import LOOPBACK, PortReservation
from astra_stream.local.servers import ServerProcess
from astra_stream.local.supervisor import Supervisor
from astra_stream.log.interface import Committed, Partition, TopicSettings, Writer
from astra_stream.log.kafka import KafkaLog
from astra_stream.log.kafka_admin import KafkaAdmin
from astra_stream.log.reading import read_to_end

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(120)]
START_S = 60.0


@dataclass(frozen=True)
class Broker:
    bootstrap: str
    server: ServerProcess
    supervisor: Supervisor


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    java, jars = find_java(None), locked_jars(read_lock())
    (tmp_path / "logs").mkdir()
    with (
        Supervisor(tmp_path / "logs", grace_s=5.0) as supervisor,
        PortReservation(PORT_NAMES, remembered={}) as ports,
    ):
        server = kafka_server(tmp_path, java=java, jars=jars, ports=ports)
        prepare_broker(tmp_path, java=java, jars=jars, ports=ports, timeout_s=START_S)
        server.start(supervisor)
        server.wait_ready(supervisor, timeout_s=START_S)
        yield Broker(f"{LOOPBACK}:{ports['kafka']}", server, supervisor)


def make_topic(bootstrap: str) -> None:
    admin = KafkaAdmin(bootstrap)
    admin.create([TopicSettings(name="t", partitions=2, settings={})])
    admin.close()


def write_numbers(writer: Writer, first: int, count: int) -> set[int]:
    numbers = range(first, first + count)
    with writer.transaction() as txn:
        for number in numbers:
            txn.write("t", str(number).encode(), str(number).encode())
    return set(numbers)


def test_a_killed_broker_loses_nothing_that_was_committed(broker: Broker) -> None:
    make_topic(broker.bootstrap)
    log = KafkaLog(broker.bootstrap, deadline_s=START_S)
    found: list[int] = []
    is_enough = threading.Event()

    def read_on() -> None:
        reader = log.subscribe(["t"], group="g")
        while not is_enough.is_set():
            found.extend(int(message.value or b"") for message in reader.poll(1.0))
        reader.close()

    thread = threading.Thread(target=read_on)
    thread.start()
    writer = log.writer("w")
    committed = write_numbers(writer, 0, 50)
    broker.supervisor.kill(NAME)
    ends_s = time.monotonic() + START_S
    attempt = 1
    while len(committed) < 200:
        try:
            committed |= write_numbers(writer, 1000 * attempt, 50)
        except TransientError:
            assert time.monotonic() < ends_s
            writer.close()
            writer = log.writer("w")
        attempt += 1
    reader = log.assign(["t"])
    again: list[int] = []
    while len(again) < len(committed) and time.monotonic() < ends_s:
        again.extend(int(message.value or b"") for message in reader.poll(1.0))
    is_enough.set()
    thread.join()
    assert sorted(again) == sorted(committed)
    assert len(found) == len(set(found))
    assert set(found) <= committed
    for client in (reader, writer, log):
        client.close()


def test_writers_that_were_idle_while_the_broker_restarted_go_on(broker: Broker) -> None:
    make_topic(broker.bootstrap)
    log = KafkaLog(broker.bootstrap, deadline_s=START_S)
    clients = [(log.assign(["t"], group=f"g{n}"), log.writer(f"w{n}")) for n in range(4)]

    def write_and_move(position: int) -> None:
        for reader, writer in clients:
            with writer.transaction() as txn:
                txn.write("t", b"k", b"v")
                txn.commit_offsets(reader, {Partition("t", 0): Committed(position)})

    write_and_move(1)
    broker.supervisor.kill(NAME)
    # The dead one may have answered what was under way: what is asked after its end is of the next.
    next(broker.supervisor.events())
    assert log.end_offsets([Partition("t", 0)])
    write_and_move(2)
    for reader, writer in clients:
        assert reader.committed([Partition("t", 0)]) == {Partition("t", 0): Committed(2)}
        writer.close()
        reader.close()
    log.close()


def test_a_broker_that_stays_away_is_one_error_with_its_address(
    broker: Broker, capfd: pytest.CaptureFixture[str]
) -> None:
    make_topic(broker.bootstrap)
    log = KafkaLog(broker.bootstrap, deadline_s=5.0)
    reader, writer = log.subscribe(["t"], group="g"), log.writer("w")
    write_numbers(writer, 0, 1)
    while not reader.poll(1.0):
        pass
    broker.supervisor.stop({NAME})
    rule = f'kafka at {broker.bootstrap} must answer within 5 s: got "Connection refused"'
    with pytest.raises(TransientError, match=rule):
        reader.poll(60.0)
    with pytest.raises(TransientError, match=rule):
        write_numbers(writer, 1, 1)
    with pytest.raises(TransientError, match=rule):
        reader.committed(reader.assignment())
    log.close()
    assert capfd.readouterr().err == ""


def test_transactions_that_time_out_while_the_broker_is_down_hold_no_reader_for_ever(
    broker: Broker,
) -> None:
    make_topic(broker.bootstrap)
    producers = [open_transaction(broker.bootstrap, f"t{number}") for number in range(4)]
    broker.supervisor.kill(NAME)
    log = KafkaLog(broker.bootstrap, deadline_s=START_S)
    assert list(read_to_end(log, "t", clock=SystemClock())) == []
    for number in range(len(producers)):
        reader = log.assign(["t"], group=f"t{number}")
        assert reader.committed([Partition("t", 0)]) == {}
        reader.close()
    log.close()


def open_transaction(bootstrap: str, name: str) -> Producer:
    """A transaction with a record and a position, due before the broker is back."""
    settings = {"bootstrap.servers": bootstrap, "logger": logging.getLogger("test.native")}
    producer = Producer(
        {
            **settings,
            "transactional.id": name,
            "transaction.timeout.ms": 4_000,
            "socket.timeout.ms": 3_000,
        }
    )
    producer.init_transactions(START_S)
    reader = Consumer({**settings, "group.id": name})
    producer.begin_transaction()
    producer.produce("t", b"never committed")
    producer.send_offsets_to_transaction(
        [TopicPartition("t", 0, 0)], reader.consumer_group_metadata(), START_S
    )
    reader.close()
    return producer
