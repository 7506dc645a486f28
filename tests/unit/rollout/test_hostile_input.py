"""A worker given records that are none, weights that differ, and positions that are gone."""

import asyncio
import dataclasses

import pytest

from astra_stream.errors import SchemaError, WeightsError
from astra_stream.records import PolicyNeed, PolicyVersion
from astra_stream.rollout import news
from astra_stream.testing.builders import make_prompt
from tests.unit.rollout.test_service import (
    CODEC,
    POLICY,
    TOPICS,
    InstantFollower,
    announce,
    make_log,
    make_worker,
    played,
    request_all,
    running,
    wait_for,
    write,
)


def letters(log) -> list:
    return [CODEC.decode(message.value) for message in log.records(TOPICS.dead_letters)]


def test_a_record_of_another_kind_is_a_dead_letter_and_the_next_request_is_played(
    make_player, make_request
):
    log = make_log()
    announce(log, 0)
    write(log, TOPICS.requests(), make_prompt("a"), 0)
    request_all(log, make_request, 1)
    with running(make_worker(log, make_player("2"))):
        wait_for(log, TOPICS.trajectories(POLICY), 2)
    (letter,) = letters(log)
    assert letter.error.startswith("the record must be a RolloutRequest: got Prompt")
    assert played(log) == ["g0/0", "g0/1"]


def test_a_pool_whose_positions_the_broker_forgot_plays_nothing_twice(make_player, make_request):
    log = make_log()
    announce(log, 0)
    with log.writer("torn").transaction() as txn:
        txn.write(TOPICS.requests(), b"torn/0/0", b"\x00torn", partition=1)
    request_all(log, make_request, 4)
    evaluation = make_request(num_samples=2, group_id="evaluation/0/p", purpose="evaluate")
    write(log, TOPICS.requests(), evaluation, 2)
    with running(make_worker(log, make_player("2"))):
        wait_for(log, TOPICS.trajectories(POLICY), 8)
        wait_for(log, TOPICS.evaluation_trajectories(POLICY), 2)
        wait_for(log, TOPICS.dead_letters, 1)
    log.state.groups[TOPICS.group("rollout", "main")].committed.clear()
    late = make_request(num_samples=2, group_id="late")
    write(log, TOPICS.requests(), late, 3)
    with running(make_worker(log, make_player("2"))):
        wait_for(log, TOPICS.trajectories(POLICY), 10)
    assert played(log) == sorted(
        f"{g}/{i}" for g in ("g0", "g1", "g2", "g3", "late") for i in (0, 1)
    )
    assert len(played(log, TOPICS.evaluation_trajectories(POLICY))) == 2


def test_the_group_of_a_torn_request_ends_once_though_positions_were_forgotten(
    make_player, make_request
):
    log = make_log()
    announce(log, 0)
    with log.writer("torn").transaction() as txn:
        txn.write(TOPICS.requests(), b"torn/0/0", b"\x00torn", partition=0)
    for number in range(2):
        after = make_request(num_samples=2, group_id=f"after-{number}")
        write(log, TOPICS.requests(), after, 0)
        with running(make_worker(log, make_player("2"))):
            wait_for(log, TOPICS.trajectories(POLICY), 2 * (number + 1))
        log.state.groups[TOPICS.group("rollout", "main")].committed.clear()
    assert [outcome.group_id for outcome in ends(log)] == ["torn"]


def ends(log) -> list:
    return [CODEC.decode(message.value) for message in log.records(TOPICS.outcomes)]


class RefusingOnce(InstantFollower):
    """Finds a version damaged the first time."""

    def __init__(self) -> None:
        self.refused: list[int] = []

    def fetch(self, announcement):
        number = announcement.version.number
        if number and number not in self.refused:
            self.refused.append(number)
            raise WeightsError(f"weights v{number}: sha256 differs. Keeping v0.")
        return super().fetch(announcement)


def test_weights_that_were_refused_are_fetched_again_where_no_newer_ones_come(
    make_player, make_request, monkeypatch, caplog
):
    monkeypatch.setattr(news, "TRY_AGAIN_S", 0.0)
    log, follower = make_log(), RefusingOnce()
    announce(log, 0)
    request_all(log, make_request, 1)
    worker = dataclasses.replace(make_worker(log, make_player("2")), follower=follower)
    with running(worker):
        wait_for(log, TOPICS.trajectories(POLICY), 2)
        announce(log, 4)
        need = PolicyNeed(policy=POLICY, min_version=PolicyVersion(0, 4))
        late = make_request(num_samples=2, group_id="late", policies=(need,))
        write(log, TOPICS.requests(), late, 0)
        wait_for(log, TOPICS.trajectories(POLICY), 4)
    assert follower.refused == [4]
    assert "weights kept" in [record.message for record in caplog.records]


@pytest.mark.parametrize("value", [b"torn", None, CODEC.encode(make_prompt("a"))], ids=repr)
def test_an_announcement_that_is_none_ends_the_worker_by_its_place(make_player, value):
    log = make_log()
    with log.writer("torn").transaction() as txn:
        txn.write(TOPICS.weights(POLICY), b"k", value)
    with pytest.raises(SchemaError, match=r"^t\.weights\.main\[0\]@0: .* must"):
        asyncio.run(make_worker(log, make_player()).run())
