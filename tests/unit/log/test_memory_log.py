import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_stream.clock import FixedClock
from astra_stream.errors import RebalancedError, TransientError
from astra_stream.log.interface import Committed, Partition
from astra_stream.log.memory import MemoryLog
from astra_stream.log.memory_state import balance

TOPICS = {"a": 5, "b": 3}
MEMBERS = st.dictionaries(
    st.integers(1, 6),
    st.sets(st.sampled_from(sorted(TOPICS)), min_size=1).map(
        lambda names: {name: TOPICS[name] for name in names}
    ),
    min_size=1,
)


@settings(max_examples=40)
@given(earlier=MEMBERS, later=MEMBERS)
def test_every_wanted_partition_has_one_member_that_wants_it(
    earlier: dict[int, dict[str, int]], later: dict[int, dict[str, int]]
) -> None:
    shared = balance(later, balance(earlier, {}))
    wanted = {
        Partition(t, i) for topics in later.values() for t in topics for i in range(TOPICS[t])
    }
    assert shared.keys() == wanted
    assert all(partition.topic in later[member] for partition, member in shared.items())


@given(num_members=st.integers(1, 7), num_partitions=st.integers(1, 20))
def test_loads_differ_by_at_most_one_and_a_joining_member_moves_few(
    num_members: int, num_partitions: int
) -> None:
    members = {member: {"t": num_partitions} for member in range(num_members)}
    before = balance(members, {})
    after = balance({**members, 99: {"t": num_partitions}}, before)
    for shared, count in ((before, num_members), (after, num_members + 1)):
        loads = [list(shared.values()).count(member) for member in set(shared.values())]
        assert max(loads) - min(loads) <= 1
        assert len(loads) == min(count, num_partitions)
    moved = [partition for partition in after if after[partition] != before[partition]]
    assert len(moved) == num_partitions // (num_members + 1)


def test_records_are_stamped_by_the_clock() -> None:
    log = MemoryLog({"t": 1}, clock=FixedClock(12.5))
    with log.writer("w").transaction() as txn:
        txn.write("t", None, b"")
    assert [message.timestamp_ms for message in log.records("t")] == [12_500]


def test_keyless_records_take_turns() -> None:
    log = MemoryLog({"t": 3})
    with log.writer("w").transaction() as txn:
        for _ in range(6):
            txn.write("t", None, b"")
    assert sorted(message.partition for message in log.records("t")) == [0, 0, 1, 1, 2, 2]


def test_an_evicted_member_commits_nothing_and_joins_again() -> None:
    log = MemoryLog({"t": 2})
    lost: list[Partition] = []
    reader = log.subscribe(["t"], group="g", on_revoked=lost.extend)
    reader.poll(0.0)
    reader.expire()
    with pytest.raises(RebalancedError, match="taken away"), log.writer("w").transaction() as txn:
        txn.commit_offsets(reader, {Partition("t", 0): Committed(1)})
    reader.poll(0.0)
    assert sorted(lost) == [Partition("t", 0), Partition("t", 1)]
    assert len(reader.assignment()) == 2


def test_a_member_evicted_within_a_transaction_makes_it_fail_whole() -> None:
    log = MemoryLog({"t": 1, "out": 1})
    reader = log.subscribe(["t"], group="g")
    reader.poll(0.0)

    def be_evicted() -> None:
        with log.writer("w").transaction() as txn:
            txn.write("out", None, b"")
            txn.commit_offsets(reader, {Partition("t", 0): Committed(1)})
            reader.expire()

    with pytest.raises(RebalancedError):
        be_evicted()
    assert log.records("out") == []


def test_positions_that_never_settle_are_named() -> None:
    log = MemoryLog({"t": 1}, deadline_s=0.01)
    reader = log.assign(["t"], group="g")
    with log.writer("w").transaction() as txn:
        txn.commit_offsets(reader, {Partition("t", 0): Committed(1)})
        with pytest.raises(TransientError, match="positions of group 'g' must settle"):
            reader.committed([Partition("t", 0)])


def test_a_transaction_that_ended_takes_no_more() -> None:
    log = MemoryLog({"t": 1})
    with log.writer("w").transaction() as txn:
        txn.write("t", None, b"")
    with pytest.raises(ValueError, match="must be open"):
        txn.write("t", None, b"")
    with pytest.raises(ValueError, match="must be below 1"), log.writer("w").transaction() as txn:
        txn.write("t", None, b"", partition=1)


def test_a_blocked_member_wakes_when_a_partition_is_freed() -> None:
    log = MemoryLog({"t": 1})
    with log.writer("w").transaction() as txn:
        txn.write("t", None, b"a")
    owner, heir = log.subscribe(["t"], group="g"), log.subscribe(["t"], group="g")
    assert len(owner.poll(0.0)) == 1
    read: list[bytes | None] = []
    thread = threading.Thread(target=lambda: read.extend(m.value for m in heir.poll(5.0)))
    thread.start()
    owner.close()
    thread.join(5.0)
    assert read == [b"a"]
