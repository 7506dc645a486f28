"""What a processor finds when it starts: state, positions and inputs belong together."""

import threading
from collections.abc import Callable, Iterator

import pytest

from astra_stream.clock import FixedClock
from astra_stream.declarations import declared
from astra_stream.errors import AstraStreamError, ConfigError, SchemaError
from astra_stream.log.codec import Codec
from astra_stream.log.headers import unseal
from astra_stream.log.interface import Committed, Partition, TopicSettings
from astra_stream.log.memory import MemoryLog
from astra_stream.log.processor import Effect, Keep, Write
from astra_stream.processing.pipeline import DeadLetters
from astra_stream.processing.service import ProcessorService
from astra_stream.records import DeadLetter, MetricPoint

CODEC = Codec(declared("schemas"))
INPUT, OTHER, OUTPUT, LETTERS, CHANGELOG = "in", "other", "out", "letters", "counter.changelog"
LOST = "It was deleted with records that are owed: restore it, or start a run of another name"


class Counter:
    """Counts records by key, and writes how many it has counted."""

    name = "counter"

    def __init__(self) -> None:
        self.counts: dict[int, dict[str, int]] = {}
        self.times_s: list[float] = []

    def restore(self, partition: int, entries: dict) -> None:
        self.counts[partition] = dict(entries)

    def release(self, partition: int) -> None:
        self.counts.pop(partition, None)

    def handle(self, incoming, now_s: float) -> Iterator[Effect]:
        self.times_s.append(now_s)
        counts = self.counts.get(incoming.message.partition, self.counts.get(0, {}))
        key = incoming.record.series
        counts[key] = counts.get(key, 0) + 1
        yield Keep(key, counts[key])
        yield Write(OUTPUT, key, MetricPoint(series=key, value=float(counts[key]), step=0))

    def unreadable(self, message, now_s: float) -> Iterator[Effect]:
        return iter(())

    def tick(self, now_s: float) -> Iterator[Effect]:
        return iter(())


def make_log() -> MemoryLog:
    return MemoryLog({INPUT: 2, OTHER: 1, OUTPUT: 1, LETTERS: 1, CHANGELOG: 2})


def service(log: MemoryLog, *, is_singleton: bool = True, now_s: float = 0.0) -> ProcessorService:
    return ProcessorService(
        log=log,
        codec=CODEC,
        clock=FixedClock(now_s),
        group="counter",
        inputs=(INPUT, OTHER) if is_singleton else (INPUT,),
        changelog_topic=CHANGELOG,
        letters=DeadLetters(LETTERS, "counter"),
        is_singleton=is_singleton,
    )


def turn(log: MemoryLog, **settings) -> Counter:
    """Start, read what there is, and end."""
    counter = Counter()
    with service(log, **settings).started(counter) as running:
        running.turn(0.0)
        running.turn(0.0)
    return counter


def feed(log: MemoryLog, *series: str, topic: str = INPUT) -> None:
    with log.writer("feed").transaction() as txn:
        for name in series:
            value = CODEC.encode(MetricPoint(series=name, value=0.0, step=0))
            txn.write(topic, None, value, partition=0)


def counted(log: MemoryLog) -> list[tuple[str, float]]:
    points = [CODEC.decode(message.value) for message in log.records(OUTPUT)]
    return [(point.series, point.value) for point in points]


def begun(**settings) -> MemoryLog:
    """A log whose processor has counted two records."""
    log = make_log()
    feed(log, "a", "a")
    turn(log, **settings)
    assert counted(log) == [("a", 1), ("a", 2)]
    return log


def rewrite(log: MemoryLog, change: Callable[[bytes, bytes], tuple[bytes, bytes]]) -> str:
    """Write the entry of the state again, changed; return where it stands."""
    (entry,) = [message for message in log.records(CHANGELOG) if message.key == b"a"][-1:]
    key, value = change(entry.key, entry.value)
    with log.writer("damage").transaction() as txn:
        txn.write(CHANGELOG, key, value, partition=entry.partition)
    return log.records(CHANGELOG)[-1].coordinates


def make_anew(log: MemoryLog, topic: str, *, partitions: int = 2) -> None:
    log.delete(topic)
    log.create([TopicSettings(name=topic, partitions=partitions, settings={})])


def forget_positions(log: MemoryLog) -> None:
    log.state.groups["counter"].committed.clear()


@pytest.mark.parametrize("is_singleton", [True, False])
def test_undamaged_it_counts_on(is_singleton):
    log = begun(is_singleton=is_singleton)
    feed(log, "a", "b")
    turn(log, is_singleton=is_singleton)
    assert counted(log)[2:] == [("a", 3), ("b", 1)]


@pytest.mark.parametrize("byte", range(9))
@pytest.mark.parametrize("bit", range(8))
def test_any_flipped_bit_in_a_changelog_entry_is_refused_by_its_place(byte, bit):
    log = begun()

    def flip(key: bytes, value: bytes) -> tuple[bytes, bytes]:
        assert len(value) == 9
        return key, value[:byte] + bytes([value[byte] ^ 1 << bit]) + value[byte + 1 :]

    where = rewrite(log, flip)
    with pytest.raises(SchemaError, match="state must be as it was sealed") as caught:
        turn(log)
    assert where in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda _, value: (b"b", value),
        lambda _, value: (b"\xff", value),
        lambda key, value: (key, value[:5]),
        lambda key, value: (key, value + b"\0"),
        lambda key, _: (key, b""),
        lambda key, _: (key, b"\x02"),
    ],
    ids=["other key", "key is no text", "cut", "longer", "empty", "another writer"],
)
def test_an_entry_that_was_moved_cut_or_made_up_is_refused(change):
    log = begun()
    rewrite(log, change)
    with pytest.raises(SchemaError, match="state must be as it was sealed"):
        turn(log)


@pytest.mark.parametrize("is_singleton", [True, False])
def test_a_changelog_made_anew_is_refused(is_singleton):
    log = begun(is_singleton=is_singleton)
    make_anew(log, CHANGELOG)
    with pytest.raises(AstraStreamError, match=f"topic '{CHANGELOG}' must be the one .*{LOST}"):
        turn(log, is_singleton=is_singleton)


def test_a_changelog_that_lost_its_entries_under_the_same_id_is_refused():
    log = begun()
    for index in range(2):
        partition = Partition(CHANGELOG, index)
        log.state.partitions[partition].records.clear()
    with pytest.raises(AstraStreamError, match=rf"{CHANGELOG} must hold the state of in\[0\]@2"):
        turn(log)


def test_a_changelog_whose_old_entries_were_deleted_and_not_compacted_is_refused():
    log = begun()
    feed(log, "b")
    turn(log)
    log.trim(Partition(CHANGELOG, 0), 3)
    with pytest.raises(AstraStreamError, match=r"must be kept from its first record on: got .* 3"):
        turn(log)


def test_a_changelog_that_kept_the_newest_of_each_key_alone_is_whole():
    log = begun()
    held = log.state.partitions[Partition(CHANGELOG, 0)]
    newest = {m.key: m.offset for m in held.records if m is not None}
    held.records[:] = [m if m and newest[m.key] == m.offset else None for m in held.records]
    feed(log, "a")
    turn(log)
    assert counted(log)[2:] == [("a", 3)]


@pytest.mark.parametrize("is_singleton", [True, False])
@pytest.mark.parametrize("refilled", [0, 5])
def test_an_input_made_anew_is_refused_also_where_it_is_longer_than_before(is_singleton, refilled):
    log = begun(is_singleton=is_singleton)
    make_anew(log, INPUT)
    feed(log, *["c"] * refilled)
    with pytest.raises(AstraStreamError, match=f"topic '{INPUT}' must be the one .*{LOST}"):
        turn(log, is_singleton=is_singleton)
    assert counted(log) == [("a", 1), ("a", 2)]


def test_an_input_that_was_never_read_from_is_known_too():
    log = begun()
    make_anew(log, OTHER, partitions=1)
    with pytest.raises(AstraStreamError, match=f"topic '{OTHER}' must be the one"):
        turn(log)


@pytest.mark.parametrize("topic", [INPUT, OTHER])
def test_an_input_that_is_deleted_or_made_anew_ends_a_running_processor(topic):
    log = begun()
    with service(log).started(Counter()) as running:
        make_anew(log, topic)
        with pytest.raises(AstraStreamError, match=f"topic '{topic}' must be the one"):
            running.turn(0.0)
    log.delete(topic)
    with pytest.raises(ConfigError, match=f"topic '{topic}' must exist"):
        turn(log)


@pytest.mark.parametrize("is_singleton", [True, False])
def test_positions_that_the_broker_forgot_are_taken_from_the_changelog(is_singleton):
    log = begun(is_singleton=is_singleton)
    forget_positions(log)
    feed(log, "a")
    turn(log, is_singleton=is_singleton)
    assert counted(log)[2:] == [("a", 3)]


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_positions_that_were_moved_by_hand_are_refused(offset):
    log = begun()
    feed(log, "a", "a")
    place = Partition(INPUT, 0)
    committed = log.state.groups["counter"].committed
    committed[place] = Committed(offset, committed[place].metadata)
    with pytest.raises(AstraStreamError, match=rf"must be the one in .*, 2: got {offset}. Set it"):
        turn(log)


def test_an_input_with_more_partitions_than_before_is_refused():
    log = begun()
    log.state.partitions[Partition(INPUT, 2)] = type(log.state.partitions[Partition(INPUT, 0)])()
    log._topics[INPUT] = TopicSettings(name=INPUT, partitions=3, settings={})
    with pytest.raises(ConfigError, match=r"topic 'in' must keep its 2 partitions, .* got in\[2\]"):
        turn(log)
    with pytest.raises(ConfigError, match=r"must have a partition for each of the input .* got 2"):
        turn(log, is_singleton=False)


@pytest.mark.parametrize(
    ("first_s", "then_s", "decided_s"),
    [(100.0, 100.0 - 86_400, 100.0), (100.0, 100.0 + 86_400, 100.0 + 86_400)],
    ids=["back a day", "forth a day"],
)
def test_a_decision_sees_no_earlier_time_than_one_before_it(first_s, then_s, decided_s):
    log = begun(now_s=first_s)
    feed(log, "a")
    assert turn(log, now_s=then_s).times_s == [decided_s]
    reads = [m for m in log.records(CHANGELOG) if m.key.startswith(b"reads/")]
    assert [unseal(m.key, m.value)["now_s"] for m in reads] == [first_s, decided_s]


def test_a_record_of_an_unknown_schema_is_a_dead_letter_and_the_flow_goes_on():
    log = make_log()
    feed(log, "a")
    unknown = b"\xc3\x01newer..." + b"?" * 20
    with log.writer("newer").transaction() as txn:
        for value in (unknown, b"", None):
            txn.write(INPUT, None, value, partition=0)
    feed(log, "a")
    service_ = service(log)
    counter = Counter()
    stop = threading.Event()
    with service_.started(counter) as running:
        while len(counted(log)) < 2:
            assert running.turn(0.0)
    stop.set()
    letters = [CODEC.decode_as(DeadLetter, message.value) for message in log.records(LETTERS)]
    assert [letter.offset for letter in letters] == [2, 3, 4]
    assert "Upgrade to the version that wrote it" in letters[0].error
    assert letters[0].value == unknown
