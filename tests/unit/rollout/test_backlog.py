"""Which requests begin: old ones first, weights permitting, and suspects alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_stream.log.interface import Message
from astra_stream.log.progress import PartitionProgress
from astra_stream.records import PolicyNeed, PolicyVersion, RolloutRequest, Sampling
from astra_stream.rollout.backlog import SHARED_STARTS, Backlog, is_new_enough
from astra_stream.rollout.requests import Delivery, TakenRequest
from astra_stream.testing.builders import make_prompt

MAX_DELIVERIES = 3
ROOM = 100


def taken(
    name: str = "g",
    *,
    version: int = 0,
    num_starts: int = 0,
    num_samples: int = 2,
    first_start_s: int | None = None,
    deadline_s: float = 60.0,
) -> TakenRequest:
    request = RolloutRequest(
        request_id=f"{name}/0/0",
        group_id=name,
        prompt=make_prompt(),
        policies=(PolicyNeed(policy="main", min_version=PolicyVersion(0, version)),),
        first_sample=0,
        num_samples=num_samples,
        group_size=num_samples,
        sampling=Sampling(),
        deadline_s=deadline_s,
    )
    delivery = Delivery(
        message=Message("r", 0, 0, None, b"", 0),
        holding=PartitionProgress(0),
        num_starts=num_starts,
        first_start_s=first_start_s,
    )
    return TakenRequest(delivery=delivery, request=request)


def backlog_of(*requests: TakenRequest) -> Backlog:
    backlog = Backlog(MAX_DELIVERIES)
    for request in requests:
        backlog.add(request)
    return backlog


def names(requests: list[TakenRequest]) -> list[str]:
    return [one.request.group_id for one in requests]


def begun(backlog: Backlog, version: int = 9, *, room: int = ROOM, is_idle: bool = True):
    return names(backlog.next(PolicyVersion(0, version), room=room, is_idle=is_idle))


@given(versions=st.lists(st.integers(0, 5), max_size=8), loaded=st.integers(0, 5))
def test_all_that_the_weights_are_new_enough_for_begins_oldest_first(versions, loaded):
    backlog = backlog_of(*(taken(str(v), version=v) for v in versions))
    expected = sorted(v for v in versions if v <= loaded)
    assert begun(backlog, loaded) == list(map(str, expected))
    assert backlog.num_samples == 2 * (len(versions) - len(expected))


def test_requests_begin_until_the_room_is_taken():
    backlog = backlog_of(*(taken(name) for name in "abc"))
    assert begun(backlog, room=3) == ["a", "b"]
    assert begun(backlog, room=0) == []


def test_nothing_begins_before_there_are_weights():
    assert backlog_of(taken()).next(None, room=ROOM, is_idle=True) == []


def test_a_request_that_two_starts_did_not_end_waits_for_the_others_and_plays_alone():
    backlog = backlog_of(taken("old"), taken("suspect", num_starts=SHARED_STARTS), taken("new"))
    assert begun(backlog) == ["old"]
    assert begun(backlog, is_idle=False) == []
    assert begun(backlog) == ["suspect"]
    assert begun(backlog) == ["new"]


@pytest.mark.parametrize("num_starts", range(SHARED_STARTS + MAX_DELIVERIES + 2))
def test_only_starts_alone_count_towards_the_limit(num_starts):
    backlog = backlog_of(taken("suspect", num_starts=num_starts), taken("other"))
    is_exhausted = num_starts >= SHARED_STARTS + MAX_DELIVERIES
    assert names(backlog.exhausted(0.0)) == (["suspect"] if is_exhausted else [])


@pytest.mark.parametrize(
    ("first_start_s", "deadline_s", "is_late"),
    [(None, 60.0, False), (940, 60.0, False), (939, 60.0, True), (1, 0.0, False)],
    ids=["never started", "in time", "late", "without a deadline"],
)
def test_a_request_is_late_once_its_deadline_has_passed_since_its_first_start(
    first_start_s: int | None, deadline_s: float, *, is_late: bool
):
    request = taken(num_starts=1, first_start_s=first_start_s, deadline_s=deadline_s)
    assert bool(backlog_of(request).exhausted(1000.0)) == is_late


def test_what_is_no_longer_wanted_is_forgotten():
    backlog = backlog_of(taken("a"), taken("b"))
    backlog.keep(lambda one: one.request.group_id == "b")
    assert begun(backlog) == ["b"]


def test_only_weights_that_are_not_older_are_new_enough():
    assert is_new_enough(PolicyVersion(0, 3), PolicyVersion(0, 3))
    assert is_new_enough(PolicyVersion(1, 2), PolicyVersion(0, 3))
    assert not is_new_enough(PolicyVersion(0, 2), PolicyVersion(0, 3))
    assert not is_new_enough(None, PolicyVersion(0, 0))
