import base64
import random
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_stream.errors import SchemaError
from astra_stream.log.interface import Committed
from astra_stream.log.progress import MAX_NUMBERS, PartitionProgress, decode, encode

OFFSETS = st.sets(st.integers(0, 400))


@given(
    start=st.integers(0, 10**12),
    done=OFFSETS,
    attempts=st.dictionaries(
        st.integers(0, 400), st.tuples(st.integers(1, 300), st.integers(0, 2**33))
    ),
)
def test_what_is_encoded_is_decoded(
    start: int, done: set[int], attempts: dict[int, tuple[int, int]]
) -> None:
    above = {start + offset for offset in done}
    started = {start + offset: count for offset, (count, _) in attempts.items()}
    times = {start + offset: at_s for offset, (_, at_s) in attempts.items()}
    committed = Committed(start, encode(start, above, started, first_starts_s=times))
    assert decode(committed) == (above, started)
    progress = PartitionProgress.from_committed(committed)
    assert {offset: progress.first_start_s(offset) for offset in started} == times
    assert encode(start, above, started) == encode(
        start, above, started, first_starts_s=dict.fromkeys(started, 0)
    )


@given(offsets=OFFSETS, seed=st.integers(0, 1000), start=st.integers(0, 50))
def test_a_commit_never_passes_unfinished_work_and_forgets_no_finished_one(
    offsets: set[int], seed: int, start: int
) -> None:
    rng = random.Random(seed)
    progress = PartitionProgress(start)
    to_come = sorted(start + offset for offset in offsets)
    in_flight: set[int] = set()
    finished: set[int] = set()
    while to_come or in_flight:
        if to_come and (not in_flight or rng.random() < 0.5):
            in_flight.add(to_come[0])
            progress.delivered(to_come.pop(0))
        else:
            offset = rng.choice(sorted(in_flight))
            in_flight.discard(offset)
            finished.add(offset)
            progress.finished(offset)
        restarted = PartitionProgress.from_committed(progress.committed())
        assert progress.low_water <= min(in_flight | {*to_come}, default=progress.low_water)
        assert all(progress.is_done(o) and restarted.is_done(o) for o in finished)
        assert not any(progress.is_done(o) or restarted.is_done(o) for o in in_flight)
        assert progress.num_in_flight == len(in_flight)
    assert progress.low_water == max(finished, default=start - 1) + 1
    assert progress.committed() == Committed(progress.low_water, "")


def test_the_low_water_mark_does_not_move_over_holes_ahead_of_a_delivery() -> None:
    progress = PartitionProgress(0)
    progress.delivered(0)
    progress.finished(0)
    progress.delivered(7)
    assert progress.low_water == 1
    progress.finished(7)
    assert progress.low_water == 8


def test_a_record_that_was_done_before_a_restart_is_recognised_and_passed() -> None:
    before = PartitionProgress(10)
    for offset in (10, 11, 14):
        before.delivered(offset)
    before.finished(11)
    before.finished(14)
    after = PartitionProgress.from_committed(before.committed())
    assert after.low_water == 10
    for offset in (10, 11, 14):
        after.delivered(offset)
    assert [after.is_done(offset) for offset in (10, 11, 14)] == [False, True, True]
    assert after.num_in_flight == 1
    after.finished(10)
    assert after.low_water == 15
    assert after.is_done(3)


def test_starts_are_counted_over_restarts_until_the_work_ends() -> None:
    first = PartitionProgress(0)
    first.delivered(0)
    assert first.started(0) == 1
    second = PartitionProgress.from_committed(first.committed())
    second.delivered(0)
    assert second.started(0) == 2
    second.finished(0)
    assert second.committed() == Committed(1, "")


def test_the_time_of_the_first_start_that_counts_is_kept_over_restarts() -> None:
    first = PartitionProgress(0)
    for offset in (0, 1):
        first.delivered(offset)
        first.started(offset, at_s=1_800_000_000.7 + offset)
    second = PartitionProgress.from_committed(first.committed())
    second.delivered(0)
    second.delivered(1)
    second.started(0, at_s=1_800_000_900.0)
    assert [second.first_start_s(offset) for offset in (0, 1)] == [1_800_000_000, 1_800_000_001]
    second.given_back(1)
    assert second.first_start_s(1) is None
    second.started(1, at_s=1_800_000_950.0)
    assert second.first_start_s(1) == 1_800_000_950
    second.finished(0)
    assert second.first_start_s(0) is None


def test_half_a_thousand_starts_within_a_day_fit_into_a_commit() -> None:
    rng = random.Random(0)
    times = {offset: 1_800_000_000 + rng.randrange(86_400) for offset in range(0, 10_000, 20)}
    progress = PartitionProgress(0, attempts=dict.fromkeys(times, 1), first_starts_s=times)
    assert progress.fits()
    restored = PartitionProgress.from_committed(progress.committed())
    assert {offset: restored.first_start_s(offset) for offset in times} == times


def test_ten_thousand_offsets_half_of_them_done_fit_into_a_commit() -> None:
    rng = random.Random(0)
    progress = PartitionProgress(0, frozenset(o for o in range(1, 10_000) if rng.random() < 0.5))
    assert progress.fits()
    assert len(progress.committed().metadata) < 1700


def test_what_does_not_fit_is_repeated_and_not_lost() -> None:
    rng = random.Random(0)
    done = frozenset(rng.sample(range(1, 10**9), 5000))
    progress = PartitionProgress(0, done, attempts={0: 1})
    assert not progress.fits()
    committed = progress.committed()
    kept, _ = decode(committed)
    assert len(committed.metadata) <= 3500
    assert committed.offset == 0
    assert kept
    assert kept < done


@pytest.mark.parametrize(
    "act",
    [
        lambda progress: progress.delivered(4),
        lambda progress: progress.finished(6),
        lambda progress: progress.started(4),
    ],
    ids=["delivered", "finished", "started"],
)
def test_what_was_not_delivered_cannot_go_on(act: Callable[[PartitionProgress], None]) -> None:
    progress = PartitionProgress(5)
    with pytest.raises(ValueError, match="must be"):
        act(progress)


@pytest.mark.parametrize(
    "metadata",
    [
        "from another program",
        "p1:" + encode(0, {1, 2}, {})[3:],
        "p2:not base85 \x00",
        "p2:" + "0" * 20,
        encode(0, {1, 2}, {})[:-3],
        encode(0, range(MAX_NUMBERS + 1), {}),
        "p2:" + base64.b85encode(zlib.compress(b"\x02\x01")).decode(),
        "p2:" + base64.b85encode(zlib.compress(b"\x00\x00\x01\x01")).decode(),
        "p2:" + base64.b85encode(zlib.compress(b"")).decode(),
    ],
)
def test_metadata_of_another_origin_is_refused(metadata: str) -> None:
    with pytest.raises(SchemaError, match="must be written by this package"):
        decode(Committed(0, metadata))
