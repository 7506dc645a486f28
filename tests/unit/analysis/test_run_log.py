from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from astra_stream.analysis import RunTail
from astra_stream.clock import FixedClock
from astra_stream.declarations import declared
from astra_stream.errors import ConfigError, TransientError
from astra_stream.log.codec import Codec
from astra_stream.log.memory import MemoryLog
from astra_stream.log.names import TopicNames
from astra_stream.testing.builders import make_prompt

TOPICS = TopicNames("sums")
CODEC = Codec(declared("schemas"))


class SteppingClock:
    """Jumps half a minute each time it is asked."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        return self.monotonic_s()

    def monotonic_s(self) -> float:
        self._now_s += 30.0
        return self._now_s


@pytest.fixture
def log() -> MemoryLog:
    partitions = {TOPICS.weights("main"): 1, TOPICS.outcomes: 4, TOPICS.evaluations: 1}
    return MemoryLog(partitions, clock=FixedClock(1000.0))


@pytest.fixture
def tail(log: MemoryLog) -> Iterator[RunTail]:
    with RunTail(log, CODEC, topics=TOPICS, policy="main", clock=FixedClock()) as opened:
        yield opened


def write(log: MemoryLog, topic: str, *records: object) -> None:
    with log.writer("test").transaction() as txn:
        for index, record in enumerate(records):
            txn.write(topic, str(index).encode(), CODEC.encode(record))


def test_what_was_there_before_and_what_comes_after_is_folded(
    log: MemoryLog, tail: RunTail, records: SimpleNamespace
) -> None:
    write(log, TOPICS.weights("main"), records.announce(0), records.announce(1, {"a": 1.0}))
    write(log, TOPICS.outcomes, *(records.decide("completed", f"g{i}") for i in range(9)))
    state = tail.catch_up()
    assert (len(state.versions), len(state.waiting)) == (2, 9)
    write(log, TOPICS.evaluations, records.evaluate(0, 0.5))
    assert tail.poll(0.0)
    assert tail.state.evaluations[0].mean_at_k == 0.5


def test_records_have_the_time_of_the_log(
    log: MemoryLog, tail: RunTail, records: SimpleNamespace
) -> None:
    write(log, TOPICS.weights("main"), records.announce(0))
    assert tail.catch_up().versions[0].at_s == 1000.0


def test_a_torn_record_and_one_of_another_kind_are_left_out(
    log: MemoryLog, tail: RunTail, records: SimpleNamespace
) -> None:
    with log.writer("torn").transaction() as txn:
        for value in (b"\x00torn", None, CODEC.encode(make_prompt("1+1="))):
            txn.write(TOPICS.outcomes, b"k", value)
    write(log, TOPICS.outcomes, records.decide("completed", "g0"))
    assert len(tail.catch_up().waiting) == 1


def test_nothing_new_is_said_so(tail: RunTail) -> None:
    assert not tail.poll(0.0)
    assert not tail.catch_up().versions


def test_other_policies_are_left_out(
    log: MemoryLog, tail: RunTail, records: SimpleNamespace
) -> None:
    write(log, TOPICS.outcomes, records.decide("completed", policy="critic"))
    write(log, TOPICS.evaluations, records.evaluate(0, 0.5, policy="critic"))
    state = tail.catch_up()
    assert (state.events.total(), state.evaluations) == (0, {})


def test_a_missing_topic_names_the_command_that_makes_it() -> None:
    with pytest.raises(ConfigError, match=r"sums.weights.main.*astra topics apply"):
        RunTail(MemoryLog(), CODEC, topics=TOPICS, policy="main", clock=FixedClock())


def test_a_transaction_that_never_ends_is_named(log: MemoryLog, records: SimpleNamespace) -> None:
    tail = RunTail(log, CODEC, topics=TOPICS, policy="main", clock=SteppingClock())
    with log.writer("stuck").transaction() as txn:
        txn.write(TOPICS.weights("main"), b"main", CODEC.encode(records.announce(0)))
        with pytest.raises(TransientError, match=r"got stuck at sums.weights.main\[0\]@0"):
            tail.catch_up()
