"""The worker against a log in memory and an engine whose replies are given."""

import asyncio
import dataclasses
import functools
import math
import queue
import threading
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest

from astra_stream.clock import FixedClock
from astra_stream.declarations import declared
from astra_stream.engines.interface import WeightUpdate
from astra_stream.environments.verifiable import Verifiable
from astra_stream.errors import ConfigError
from astra_stream.log.codec import Codec
from astra_stream.log.interface import Committed, Partition, TopicSettings
from astra_stream.log.memory import MemoryLog
from astra_stream.log.names import TopicNames
from astra_stream.log.progress import PartitionProgress
from astra_stream.records import PolicyNeed, PolicyVersion, WeightAnnouncement
from astra_stream.rollout.backlog import SHARED_STARTS
from astra_stream.rollout.service import POLL_S, RolloutWorker
from astra_stream.rollout.settings import WorkerSettings
from astra_stream.testing.builders import make_prompt

CODEC = Codec(declared("schemas"))
TOPICS = TopicNames("t")
POLICY = "main"


class InstantFollower:
    """Has every version at once."""

    version = None

    def fetch(self, announcement):
        return WeightUpdate(version=announcement.version, tensors={}, dtypes={})

    def model_directory(self, announcement):
        return Path(str(announcement.version))


def make_log() -> MemoryLog:
    return MemoryLog(
        {
            TOPICS.requests(): 4,
            TOPICS.trajectories(POLICY): 2,
            TOPICS.evaluation_trajectories(POLICY): 1,
            TOPICS.weights(POLICY): 1,
            TOPICS.outcomes: 1,
            TOPICS.dead_letters: 1,
        }
    )


def announce(log, number: int, *, kind: str = "snapshot") -> None:
    record = WeightAnnouncement(
        policy=POLICY,
        version=PolicyVersion(0, number),
        kind=kind,
        root_hash="0" * 64,
        model_fingerprint="0" * 64,
        tensors=(),
        objects=(),
    )
    write(log, TOPICS.weights(POLICY), record, 0)


def write(log, topic: str, record, partition: int) -> None:
    with log.writer(f"test.{topic}").transaction() as txn:
        txn.write(topic, b"k", CODEC.encode(record), partition=partition)


def request_all(log, make_request, num_requests: int, **fields) -> None:
    for number in range(num_requests):
        request = make_request(num_samples=2, group_id=f"g{number}", **fields)
        write(log, TOPICS.requests(), request, number % 4)


def make_worker(log, player, *, slot: int = 0, **settings) -> RolloutWorker:
    values = {"slots": 4, "max_attempts": 1, "grace_s": 5.0, **settings}
    return RolloutWorker(
        log=log,
        codec=CODEC,
        follower=InstantFollower(),
        make_player=lambda *_: player,
        settings=WorkerSettings(
            policy=POLICY,
            requests_topic=TOPICS.requests(),
            trajectories_topic=TOPICS.trajectories(POLICY),
            evaluation_trajectories_topic=TOPICS.evaluation_trajectories(POLICY),
            outcomes_topic=TOPICS.outcomes,
            dead_letters_topic=TOPICS.dead_letters,
            weights_topic=TOPICS.weights(POLICY),
            closes_on_topic=TOPICS.weights(POLICY),
            group=TOPICS.group("rollout", "main"),
            slot=slot,
            **values,
        ),
        stop=threading.Event(),
    )


@contextmanager
def running(worker):
    """Work in a thread until the block ends, then stop."""
    thread = threading.Thread(target=lambda: asyncio.run(worker.run()))
    thread.start()
    try:
        yield
    finally:
        worker.stop.set()
        thread.join()


def wait_for(log, topic: str, num_records: int) -> None:
    reader = log.assign([topic])
    found = 0
    while found < num_records:
        found += len(reader.poll(5.0))
    reader.close()


def played(log, topic: str = TOPICS.trajectories(POLICY)) -> list[str]:
    found = [CODEC.decode(m.value) for m in log.records(topic)]
    return sorted(f"{t.group_id}/{t.sample_index}" for t in found)


def test_what_is_requested_is_played_and_the_end_of_training_ends_the_worker(
    make_player: Callable, make_request: Callable
):
    log = make_log()
    announce(log, 0)
    request_all(log, make_request, 3)
    worker = make_worker(log, make_player("2"))
    with running(worker):
        wait_for(log, TOPICS.trajectories(POLICY), 6)
        announce(log, 0, kind="final")
    assert played(log) == ["g0/0", "g0/1", "g1/0", "g1/1", "g2/0", "g2/1"]


def test_evaluations_go_to_a_topic_of_their_own(make_player, make_request):
    log = make_log()
    announce(log, 0)
    request_all(log, make_request, 1, purpose="evaluate")
    with running(make_worker(log, make_player("2"))):
        wait_for(log, TOPICS.evaluation_trajectories(POLICY), 2)
    assert played(log) == []


def test_a_request_waits_for_weights_that_are_new_enough(make_player, make_request):
    log = make_log()
    announce(log, 0)
    need = PolicyNeed(policy=POLICY, min_version=PolicyVersion(0, 2))
    request_all(log, make_request, 1, policies=(need,))
    write(log, TOPICS.requests(), make_request(num_samples=2, group_id="now"), 3)
    with running(make_worker(log, make_player("2"))):
        wait_for(log, TOPICS.trajectories(POLICY), 2)
        assert played(log) == ["now/0", "now/1"]
        announce(log, 2)
        wait_for(log, TOPICS.trajectories(POLICY), 4)
    versions = {
        t.group_id: t.version_range[0].number
        for t in (CODEC.decode(m.value) for m in log.records(TOPICS.trajectories(POLICY)))
    }
    assert versions == {"now": 0, "g0": 2}


def test_a_stopped_worker_hands_back_what_it_had_not_finished_and_repeats_nothing(
    make_player, make_request
):
    log = make_log()
    announce(log, 0)
    request_all(log, make_request, 4)
    left = iter(range(2))

    async def answers_twice() -> None:
        if next(left, None) is None:
            await asyncio.Event().wait()

    first = make_worker(log, make_player("2", before_reply=answers_twice), slots=2, grace_s=0.05)
    with running(first):
        wait_for(log, TOPICS.trajectories(POLICY), 2)
    assert len(played(log)) == 2
    with running(make_worker(log, make_player("2"), slot=1)):
        wait_for(log, TOPICS.trajectories(POLICY), 8)
    assert played(log) == [f"g{number}/{index}" for number in range(4) for index in range(2)]


def test_a_stopped_worker_does_not_wait_for_weights_that_may_never_come(make_player, make_request):
    log = make_log()
    announce(log, 0)
    need = PolicyNeed(policy=POLICY, min_version=PolicyVersion(0, 9))
    request_all(log, make_request, 1, policies=(need,))
    write(log, TOPICS.requests(), make_request(num_samples=2, group_id="now"), 0)
    # Past this test's own limit of time.
    with running(make_worker(log, make_player("2"), grace_s=60.0)):
        wait_for(log, TOPICS.trajectories(POLICY), 2)
    assert played(log) == ["now/0", "now/1"]


def test_a_stopped_worker_hands_back_requests_that_no_sample_of_has_begun(
    make_player, make_request
):
    log = make_log()
    announce(log, 0)
    request_all(log, make_request, 4)
    has_begun = threading.Event()

    async def ends_after_the_stop() -> None:
        has_begun.set()
        await asyncio.to_thread(worker.stop.wait)
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=2 * POLL_S)

    worker = make_worker(log, make_player("2", before_reply=ends_after_the_stop), slots=2)
    with running(worker):
        has_begun.wait()
    assert len(played(log)) == 2


def test_what_finishes_together_is_written_together_and_the_last_at_once(make_player, make_request):
    log = make_log()
    announce(log, 0)
    request_all(log, make_request, 4)
    with running(make_worker(log, make_player("2"), gather_s=60.0)):
        wait_for(log, TOPICS.trajectories(POLICY), 8)
    reader = log.assign([TOPICS.trajectories(POLICY)])
    ends = reader.end_offsets(reader.assignment())
    # A transaction leaves a marker behind its records, which all have one key.
    assert sum(ends.values()) == 8 + 1


def starts_of(log, partition: int) -> int:
    """Uncounted starts of the first request of a partition, as committed."""
    where = Partition(TOPICS.requests(), partition)
    reader = log.assign([TOPICS.requests()], group=TOPICS.group("rollout", "main"))
    committed = reader.committed([where]).get(where, Committed(0))
    reader.close()
    return PartitionProgress.from_committed(committed).num_starts(0)


def test_a_start_is_counted_before_the_request_plays_and_taken_back_at_a_stop(
    make_player, make_request
):
    log = make_log()
    announce(log, 0)
    request_all(log, make_request, 1)
    begun: queue.Queue[int] = queue.Queue()

    async def never_ends() -> None:
        begun.put(starts_of(log, 0))
        await asyncio.get_running_loop().create_future()

    with running(make_worker(log, make_player("2", before_reply=never_ends), grace_s=0.05)):
        assert begun.get() == 1
    assert starts_of(log, 0) == 0


def leave_started(log, *, num_starts: int, at_s: float = 0.0) -> None:
    """Be a worker that ended so often while it played the first request."""
    progress = PartitionProgress(0)
    progress.delivered(0)
    for _ in range(num_starts):
        progress.started(0, at_s=at_s)
    reader = log.assign([TOPICS.requests()], group=TOPICS.group("rollout", "main"))
    with log.writer("dead").transaction() as txn:
        txn.commit_offsets(reader, {Partition(TOPICS.requests(), 0): progress.committed()})
    reader.close()


def test_a_request_whose_deadline_passed_since_its_first_start_is_not_played_again(
    make_player, make_request
):
    log = make_log()
    announce(log, 0)
    request_all(log, make_request, 2, deadline_s=60.0)
    leave_started(log, num_starts=1, at_s=1000.0)
    player = dataclasses.replace(make_player("2"), clock=FixedClock(1100.0))
    with running(make_worker(log, player)):
        wait_for(log, TOPICS.trajectories(POLICY), 4)
    found = [CODEC.decode(m.value) for m in log.records(TOPICS.trajectories(POLICY))]
    assert {(t.group_id, t.status, t.error_kind, t.reward_valid) for t in found} == {
        ("g0", "aborted", "DeadlineError", False),
        ("g1", "done", "", True),
    }
    (error,) = {t.error for t in found if t.error}
    assert "must end within its deadline of 60 s: got 100 s since its first start" in error


def test_a_request_that_ended_too_many_processes_is_recorded_as_failed(make_player, make_request):
    log = make_log()
    announce(log, 0)
    request_all(log, make_request, 1)
    leave_started(log, num_starts=SHARED_STARTS + 3)
    with running(make_worker(log, make_player("2"))):
        wait_for(log, TOPICS.trajectories(POLICY), 2)
    failed = [CODEC.decode(m.value) for m in log.records(TOPICS.trajectories(POLICY))]
    assert [(t.status, t.error_kind, t.reward_valid) for t in failed] == [
        ("error", "DeliveryLimitError", False)
    ] * 2
    assert "got 5 starts without an end, 3 of them alone" in failed[0].error


def test_a_sample_that_its_topic_would_not_take_is_written_as_failed(make_player, make_request):
    log = make_log()
    topic, limit = TOPICS.trajectories(POLICY), {"max.message.bytes": "2000"}
    log.configure(TopicSettings(name=topic, partitions=2, settings=limit))
    announce(log, 0)
    long = make_prompt("9" * 2000)
    write(log, TOPICS.requests(), make_request(long, num_samples=2, group_id="long"), 0)
    write(log, TOPICS.requests(), make_request(num_samples=2, group_id="short"), 0)
    player = make_player("2", context_tokens=4000)
    with running(make_worker(log, player)):
        wait_for(log, topic, 4)
    found = [CODEC.decode(m.value) for m in log.records(topic)]
    assert {(t.group_id, t.status, t.error_kind, len(t.segments)) for t in found} == {
        ("long", "error", "RecordError", 0),
        ("short", "done", "", 1),
    }
    (error, other) = sorted(t.error for t in found if t.error)
    assert error.startswith(f"{topic}: record 'long/0/main' must have at most 2000 bytes: got ")
    assert "'long/1/main'" in other


def test_a_request_that_cannot_be_read_ends_its_group_and_the_next_one_is_played(
    make_player, make_request
):
    log = make_log()
    announce(log, 0)
    with log.writer("torn").transaction() as txn:
        txn.write(TOPICS.requests(), b"p/0/0/0", b"\x00torn", partition=0)
    write(log, TOPICS.requests(), make_request(num_samples=2, group_id="g0"), 0)
    with running(make_worker(log, make_player("2"))):
        wait_for(log, TOPICS.trajectories(POLICY), 2)
    (outcome,) = [CODEC.decode(m.value) for m in log.records(TOPICS.outcomes)]
    assert (outcome.group_id, outcome.event, outcome.reason) == ("p/0", "dropped", "dead_letter")
    (letter,) = [CODEC.decode(m.value) for m in log.records(TOPICS.dead_letters)]
    assert (letter.topic, letter.offset, letter.value) == (TOPICS.requests(), 0, b"\x00torn")


def test_a_partition_is_handed_over_with_what_plays_finished(make_player, make_request):
    log = make_log()
    announce(log, 0)
    request_all(log, make_request, 4)
    slow, joined = threading.Event(), threading.Event()

    async def plays_until_another_has_joined() -> None:
        slow.set()
        await asyncio.to_thread(joined.wait)
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=POLL_S)

    first = make_worker(log, make_player("2", before_reply=plays_until_another_has_joined), slots=8)
    first._durations_s.append(5.0)
    with running(first):
        slow.wait()
        other = dataclasses.replace(make_player("2"), worker="here/1")
        with running(make_worker(log, other, slot=1)):
            joined.set()
            wait_for(log, TOPICS.trajectories(POLICY), 8)
    assert played(log) == [f"g{number}/{index}" for number in range(4) for index in range(2)]
    workers = {CODEC.decode(m.value).worker for m in log.records(TOPICS.trajectories(POLICY))}
    assert workers == {"here/0"}


def nan(_reply, _prompt):
    return math.nan


def raises(_reply, _prompt):
    raise ZeroDivisionError("by design")


@pytest.mark.parametrize(
    ("reward", "rule"),
    [
        (nan, "reward function .*:nan must return a finite number: got nan"),
        (raises, "ZeroDivisionError: by design, raised by raises at test_service.py:"),
    ],
)
def test_a_reward_function_that_always_fails_ends_the_worker_and_is_named(
    make_player, make_request, reward, rule
):
    log = make_log()
    announce(log, 0)
    request_all(log, make_request, 20)
    player = make_player("2", environment=functools.partial(Verifiable, reward=reward))
    with pytest.raises(ConfigError, match=f"got 32 failures in a row, the last .*{rule}"):
        asyncio.run(make_worker(log, player).run())


def test_a_worker_stopped_before_there_are_weights_just_ends(make_player):
    worker = make_worker(make_log(), make_player("2"))
    worker.stop.set()
    asyncio.run(worker.run())
