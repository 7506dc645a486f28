"""What only a real broker does to topics: made anew, deleted, grown, and damaged on disk."""

import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from astra_stream.clock import SystemClock
from astra_stream.declarations import declared
from astra_stream.errors import AstraStreamError, ConfigError
from astra_stream.local import Stack
from astra_stream.log import kafka_reader
from astra_stream.log.codec import Codec
from astra_stream.log.interface import Message, Partition, Reader, TopicSettings
from astra_stream.log.kafka import KafkaLog
from astra_stream.log.kafka_admin import KafkaAdmin
from astra_stream.log.kafka_client import NATIVE_LOG
from astra_stream.processing.pipeline import DeadLetters
from astra_stream.processing.service import ProcessorService
from astra_stream.records import MetricPoint
from tests.hostile.test_processor_state import Counter

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(180)]
CODEC = Codec(declared("schemas"))
DEADLINE_S = 20.0


class Topics:
    """Topics of one test, and a processor that counts what stands in the first of them."""

    def __init__(self, bootstrap: str) -> None:
        self.log = KafkaLog(bootstrap, deadline_s=DEADLINE_S)
        self.admin = KafkaAdmin(bootstrap)
        self.raw = AdminClient({"bootstrap.servers": bootstrap, "logger": NATIVE_LOG})
        self.run = f"hostile-{uuid.uuid4().hex[:8]}"
        self.input, self.output = f"{self.run}.in", "out"
        self.changelog = f"{self.run}.changelog"
        for name, partitions in ((self.input, 2), (self.changelog, 2), (self.output, 1)):
            if name not in self.admin.topics(name):
                self.make(name, partitions)

    def make(self, name: str, partitions: int = 2) -> None:
        self.admin.create([TopicSettings(name=name, partitions=partitions, settings={})])

    def delete(self, name: str) -> None:
        for answer in self.raw.delete_topics([name]).values():
            answer.result(DEADLINE_S)
        ends_s = time.monotonic() + DEADLINE_S
        while self.log.topic_ids([name]):
            assert time.monotonic() < ends_s

    def grow(self, name: str, partitions: int) -> None:
        for answer in self.raw.create_partitions([NewPartitions(name, partitions)]).values():
            answer.result(DEADLINE_S)

    def feed(self, count: int) -> None:
        writer = self.log.writer(f"{self.run}.feed")
        with writer.transaction() as txn:
            for _ in range(count):
                value = CODEC.encode(MetricPoint(series="a", value=0.0, step=0))
                txn.write(self.input, None, value, partition=0)
        writer.close()

    def turn(self, *, is_singleton: bool = True, at_least: int = 0) -> Counter:
        """Start a processor, count ``at_least`` so many records, and end."""
        service = ProcessorService(
            log=self.log,
            codec=CODEC,
            clock=SystemClock(),
            group=f"{self.run}.counter",
            inputs=(self.input,),
            changelog_topic=self.changelog,
            letters=DeadLetters(self.output, "counter"),
            is_singleton=is_singleton,
        )
        counter, ends_s = Counter(), time.monotonic() + DEADLINE_S
        with service.started(counter) as running:
            while len(counter.times_s) < at_least or not counter.counts:
                assert time.monotonic() < ends_s
                running.turn(0.5)
            found = Counter()
            found.counts = dict(counter.counts)
        return found

    def close(self) -> None:
        self.admin.close()
        self.log.close()


@pytest.fixture
def topics(kafka_bootstrap: str) -> Iterator[Topics]:
    made = Topics(kafka_bootstrap)
    yield made
    made.close()


def read_on(reader: Reader, found: list[Message] | None = None) -> None:
    """Read until the deadline."""
    ends_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < ends_s:
        messages = reader.poll(0.5)
        if found is not None:
            found += messages


@pytest.mark.parametrize("is_singleton", [True, False])
def test_an_input_or_a_changelog_made_anew_is_refused(topics: Topics, is_singleton):
    topics.feed(2)
    assert topics.turn(is_singleton=is_singleton, at_least=2).counts[0] == {"a": 2}
    topics.feed(1)
    assert topics.turn(is_singleton=is_singleton, at_least=1).counts[0] == {"a": 3}
    topics.delete(topics.changelog)
    topics.make(topics.changelog)
    rule = f"topic '{topics.changelog}' must be the one that was read before"
    with pytest.raises(AstraStreamError, match=rule):
        topics.turn(is_singleton=is_singleton)
    if is_singleton:
        topics.delete(topics.input)
        topics.make(topics.input)
        topics.feed(5)
        topics.turn(at_least=5)
        topics.delete(topics.input)
        topics.make(topics.input)
        topics.feed(9)
        rule = f"topic '{topics.input}' must be the one that was read before"
        with pytest.raises(AstraStreamError, match=rule):
            topics.turn()


def test_an_input_with_more_partitions_than_before_is_refused(topics: Topics):
    topics.feed(1)
    topics.turn(at_least=1)
    topics.grow(topics.input, 3)
    with pytest.raises(ConfigError, match=rf"must keep its 2 partitions.*got {topics.input}\[2\]"):
        topics.turn()
    with pytest.raises(ConfigError, match=r"must have a partition for each of the input .* got 2"):
        topics.turn(is_singleton=False, at_least=1)


def test_a_group_deleted_or_unused_for_too_long_goes_on_from_the_changelog(topics: Topics):
    topics.feed(2)
    topics.turn(at_least=2)
    for answer in topics.raw.delete_consumer_groups([f"{topics.run}.counter"]).values():
        answer.result(DEADLINE_S)
    place = Partition(topics.input, 0)
    reader = topics.log.assign([topics.input], group=f"{topics.run}.counter")
    assert reader.committed([place]) == {}
    reader.close()
    topics.feed(1)
    assert topics.turn(at_least=1).counts[0] == {"a": 3}


@pytest.mark.parametrize("is_member", [True, False])
@pytest.mark.parametrize("is_made_anew", [True, False])
def test_a_reader_does_not_wait_for_ever_on_a_topic_that_was_deleted(
    topics: Topics, is_member, is_made_anew, monkeypatch
):
    monkeypatch.setattr(kafka_reader, "TOPICS_LOOKED_AT_S", 0.5)
    topics.feed(1)
    read = topics.log.subscribe if is_member else topics.log.assign
    reader = read([topics.input], group=f"{topics.run}.reader")
    ends_s = time.monotonic() + DEADLINE_S
    while not reader.poll(0.5):
        assert time.monotonic() < ends_s
    topics.delete(topics.input)
    if is_made_anew:
        topics.make(topics.input)
    rule = "must be the one that was read before|must still be in the log"
    with pytest.raises(AstraStreamError, match=rule):
        read_on(reader)
    reader.close()


def test_a_bit_that_flips_on_the_brokers_disk_is_refused_by_its_place(topics: Topics, stack: Stack):
    topics.feed(1)
    topics.feed(1)
    (segment,) = stack.directory.glob(f"**/{topics.input}-0/*.log")
    data = segment.read_bytes()
    second = 12 + int.from_bytes(data[8:12], "big")
    second += 12 + int.from_bytes(data[second + 8 : second + 12], "big")
    end = second + 12 + int.from_bytes(data[second + 8 : second + 12], "big")
    with segment.open("r+b") as file:
        file.seek(end - 3)
        file.write(bytes([data[end - 3] ^ 1]))
    reader, found = topics.log.assign([topics.input]), []
    rule = rf"{topics.input}\[0\] must hold what was written: got MessageSet at offset 2 .* CRC32C"
    with pytest.raises(AstraStreamError, match=rule):
        read_on(reader, found)
    assert [message.offset for message in found] == [0]
    reader.close()
