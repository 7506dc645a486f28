"""What of a run's work is under way, on a log in memory."""

from types import SimpleNamespace

import pytest

from astra_stream.algorithms.packing import pack_batch
from astra_stream.analysis import RunState
from astra_stream.analysis.open_work import OpenWork, OpenWorkReader
from astra_stream.declarations import declared
from astra_stream.log.codec import Codec
from astra_stream.log.interface import Committed, Partition
from astra_stream.log.memory import MemoryLog
from astra_stream.log.names import TopicNames
from astra_stream.log.progress import PartitionProgress
from astra_stream.records import PolicyNeed, PolicyVersion, RolloutRequest, Sampling
from astra_stream.testing.builders import make_prompt, make_trajectory

TOPICS = TopicNames("sums")
CODEC = Codec(declared("schemas"))
WORKERS = TOPICS.group("rollout", "main")


class HandClock:
    """Shows the time that a test sets."""

    def __init__(self) -> None:
        self.at_s = 1000.0

    def now_s(self) -> float:
        return self.at_s

    def monotonic_s(self) -> float:
        return self.at_s


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def log(clock: HandClock) -> MemoryLog:
    partitions = {
        TOPICS.requests(): 2,
        TOPICS.trajectories("main"): 2,
        TOPICS.evaluation_trajectories("main"): 1,
        TOPICS.outcomes: 2,
        TOPICS.batches("main"): 1,
    }
    return MemoryLog(partitions, clock=clock)


def write(log: MemoryLog, topic: str, *records: object) -> None:
    with log.writer("test").transaction() as txn:
        for record in records:
            txn.write(topic, b"key", CODEC.encode(record), partition=0)


def request(group_id: str, *, version: int = 0, purpose: str = "train") -> RolloutRequest:
    return RolloutRequest(
        request_id=f"{group_id}/0/0",
        group_id=group_id,
        prompt=make_prompt(),
        policies=(PolicyNeed(policy="main", min_version=PolicyVersion(0, version)),),
        first_sample=0,
        num_samples=2,
        group_size=2,
        sampling=Sampling(),
        purpose=purpose,
    )


def samples(group_id: str, num_samples: int = 2, **fields: object):
    return [
        make_trajectory(float(i), group_id=group_id, sample_index=i, group_size=2, **fields)
        for i in range(num_samples)
    ]


def commit(log: MemoryLog, topic: str, group: str, committed: Committed) -> None:
    reader = log.assign([topic], group=group)
    with log.writer("worker").transaction() as txn:
        txn.commit_offsets(reader, {Partition(topic, 0): committed})
    reader.close()


def read(log: MemoryLog, clock: HandClock, state: RunState | None = None) -> OpenWork:
    reader = OpenWorkReader(
        log=log, codec=CODEC, topics=TOPICS, policy="main", max_staleness=0, clock=clock
    )
    return reader.read(state or RunState())


def test_groups_are_open_from_their_request_to_their_first_outcome(
    log: MemoryLog, clock: HandClock, records: SimpleNamespace
) -> None:
    write(log, TOPICS.requests(), *(request(name) for name in ("a", "b", "c", "d", "e")))
    write(log, TOPICS.trajectories("main"), *samples("a"), *samples("b", 1, versions=(3,)))
    ends = zip("cd", ("completed", "dropped"), strict=True)
    write(log, TOPICS.outcomes, *(records.decide(event, group) for group, event in ends))
    work = read(log, clock)
    assert [(g.group_id, g.num_samples, g.is_played) for g in work.groups] == [
        ("a", 2, True),
        ("b", 1, False),
        ("e", 0, False),
    ]
    assert work.groups[2].where == f"{TOPICS.requests()}[0]@4"
    assert work.newest_played == PolicyVersion(0, 3)
    assert not work.has_batch


def test_the_oldest_group_stands_first(log: MemoryLog, clock: HandClock) -> None:
    for name, version in (("late", 2), ("early", 1), ("later", 1)):
        clock.at_s += 1.0
        write(log, TOPICS.requests(), request(name, version=version))
    work = read(log, clock)
    assert [g.group_id for g in work.groups] == ["early", "later", "late"]
    assert work.groups[0].asked_at_s == 1002.0


def test_what_workers_began_is_known_from_their_positions(log: MemoryLog, clock: HandClock) -> None:
    write(log, TOPICS.requests(), request("a"), request("b"))
    progress = PartitionProgress(0)
    for offset in (0, 1):
        progress.delivered(offset)
    progress.started(1)
    commit(log, TOPICS.requests(), WORKERS, progress.committed())
    assert [g.num_starts for g in read(log, clock).groups] == [0, 1]


def test_an_old_request_counts_only_while_no_worker_has_finished_it(
    log: MemoryLog, clock: HandClock, records: SimpleNamespace
) -> None:
    write(log, TOPICS.requests(), request("done"), request("owed"), request("ended"))
    progress = PartitionProgress(0)
    for offset in (0, 1, 2):
        progress.delivered(offset)
    progress.finished(0)
    progress.finished(2)
    commit(log, TOPICS.requests(), WORKERS, progress.committed())
    state = records.trained_state(10, step_s=100.0)
    clock.at_s = state.last_at_s
    write(log, TOPICS.requests(), request("new", version=10))
    assert [g.group_id for g in read(log, clock, state).groups] == ["owed", "new"]


def test_a_batch_waits_until_the_trainer_has_committed_it(log: MemoryLog, clock: HandClock) -> None:
    topic = TOPICS.batches("main")
    empty = pack_batch([], batch_id="main/0", policy="main", trains_version=0, row_tokens=4)
    write(log, topic, *empty)
    assert read(log, clock).has_batch
    commit(log, topic, TOPICS.group("trainer", "main"), Committed(1))
    assert not read(log, clock).has_batch


def test_an_evaluation_that_is_made_again_starts_without_samples(
    log: MemoryLog, clock: HandClock, records: SimpleNamespace
) -> None:
    state = records.trained_state(3)
    clock.at_s = state.last_at_s
    asked = request("evaluation/3/p", version=3, purpose="evaluate")
    write(log, TOPICS.requests(), request("evaluation/2/p", version=2, purpose="evaluate"), asked)
    write(log, TOPICS.evaluation_trajectories("main"), *samples("evaluation/3/p"))
    assert [g.is_played for g in read(log, clock, state).evaluated] == [True]
    clock.at_s += 1.0
    write(log, TOPICS.requests(), asked)
    assert [g.num_samples for g in read(log, clock, state).evaluated] == [0]
    assert not read(log, clock, state).groups


def test_a_record_that_does_not_decode_is_left_out(log: MemoryLog, clock: HandClock) -> None:
    with log.writer("torn").transaction() as txn:
        txn.write(TOPICS.requests(), b"a/0/0", b"torn", partition=0)
    write(log, TOPICS.requests(), request("b"))
    assert [g.group_id for g in read(log, clock).groups] == ["b"]
