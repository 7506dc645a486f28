"""The evaluator, a record at a time, and restored after any of them."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from astra_stream.evaluation.evaluator import Evaluator, EvaluatorSettings
from astra_stream.log.headers import pack, unpack
from astra_stream.log.interface import Message
from astra_stream.log.processor import GROUP_HEADER, Finish, Forget, Incoming, Keep, Write
from astra_stream.records import (
    Evaluation,
    Outcome,
    PolicyVersion,
    RolloutRequest,
    Sampling,
    WeightAnnouncement,
)
from astra_stream.testing.builders import make_prompt, make_trajectory

PROMPTS = [make_prompt(f"{number} + 1 =", split="held_out") for number in range(3)]
MESSAGE = Message("in", 0, 0, None, b"", 0)


def make_evaluator(**settings) -> Evaluator:
    values = {
        "policy": "main",
        "every": 2,
        "num_samples": 2,
        "sampling": Sampling(temperature=0.0, max_new_tokens=4),
        "num_partitions": 2,
        **settings,
    }
    return Evaluator(
        EvaluatorSettings(**values),
        read_prompts=lambda: PROMPTS,
        requests_topic="requests",
        evaluations_topic="evaluations",
    )


def announcement(number: int, *, kind: str = "snapshot", lineage: int = 0) -> WeightAnnouncement:
    return WeightAnnouncement(
        policy="main",
        version=PolicyVersion(lineage, number),
        kind=kind,
        root_hash="0" * 64,
        model_fingerprint="0" * 64,
        tensors=(),
        objects=(),
    )


def samples_of(request: RolloutRequest, reward: float = 1.0, *, versions=(0,), **fields):
    for index in range(request.num_samples):
        yield make_trajectory(
            reward,
            group_id=request.group_id,
            sample_index=index,
            group_size=request.group_size,
            prompt_id=request.prompt.prompt_id,
            purpose="evaluate",
            versions=versions,
            **fields,
        )


class Bench:
    """Hands records to an evaluator and keeps what it says; may restart it between any two."""

    def __init__(self, *, restarts: bool = False, **settings) -> None:
        self.settings = settings
        self.restarts = restarts
        self.evaluator = make_evaluator(**settings)
        self.kept: dict[str, Any] = {}
        self.is_finished = False

    def give(self, *records: Any) -> list[Write]:
        writes = []
        for record in records:
            if self.restarts:
                self.evaluator = make_evaluator(**self.settings)
                self.evaluator.restore(0, {k: unpack(pack(v)) for k, v in self.kept.items()})
            effects = [*self.evaluator.handle(Incoming(MESSAGE, record), 7.0)]
            writes += self.take([*effects, *self.evaluator.tick(7.0)])
        return writes

    def take(self, effects: Iterable[Any]) -> list[Write]:
        writes = []
        for effect in effects:
            if isinstance(effect, Keep):
                self.kept[effect.key] = effect.value
            elif isinstance(effect, Forget):
                self.kept.pop(effect.key, None)
            elif isinstance(effect, Finish):
                self.is_finished = True
            else:
                writes.append(effect)
        return writes


def requests(writes: list[Write]) -> list[RolloutRequest]:
    return [write.record for write in writes if write.topic == "requests"]


def evaluations(writes: list[Write]) -> list[Evaluation]:
    return [write.record for write in writes if write.topic == "evaluations"]


def test_a_due_version_is_asked_of_every_prompt_through_all_partitions():
    bench = Bench()
    writes = bench.give(announcement(0))
    asked = requests(writes)
    assert [r.prompt.prompt_id for r in asked] == [p.prompt_id for p in PROMPTS]
    assert {r.purpose for r in asked} == {"evaluate"}
    assert {r.num_samples for r in asked} == {2}
    assert {r.policies[0].min_version for r in asked} == {PolicyVersion(0, 0)}
    assert len({r.group_id for r in asked}) == 3
    assert [write.partition for write in writes] == [0, 1, 0]


def test_versions_in_between_are_not_asked():
    bench = Bench()
    bench.give(announcement(0))
    assert requests(bench.give(announcement(1))) == []
    assert len(requests(bench.give(announcement(2)))) == 3


@pytest.mark.parametrize("restarts", [False, True])
def test_an_evaluation_says_who_answered_and_how_well(restarts):
    bench = Bench(restarts=restarts)
    first, second, third = requests(bench.give(announcement(0)))
    played = [
        *samples_of(first, 1.0, versions=(0,)),
        *samples_of(second, 0.0, versions=(1,)),
        *samples_of(third, 1.0, versions=(1, 2)),
    ]
    writes = bench.give(*played)
    (evaluation,) = evaluations(writes)
    assert evaluation.mean_at_k == pytest.approx(2 / 3)
    assert evaluation.pass_at_k == pytest.approx(2 / 3)
    assert (evaluation.num_prompts, evaluation.num_samples, evaluation.num_invalid) == (3, 6, 0)
    assert evaluation.requested_version == PolicyVersion(0, 0)
    assert (evaluation.min_version, evaluation.max_version) == (
        PolicyVersion(0, 0),
        PolicyVersion(0, 2),
    )
    assert (evaluation.k, evaluation.temperature, evaluation.final) == (2, 0.0, False)
    assert bench.kept.keys() == {"state"}
    assert not bench.is_finished


def test_samples_without_a_valid_reward_are_counted_and_left_out():
    bench = Bench()
    first, second, third = requests(bench.give(announcement(0)))
    failed = {"reward_valid": False, "status": "error"}
    writes = bench.give(
        *samples_of(first), *samples_of(second, 0.0, **failed), *samples_of(third, 1.0)
    )
    (evaluation,) = evaluations(writes)
    assert (evaluation.mean_at_k, evaluation.num_prompts) == (1.0, 2)
    assert (evaluation.num_samples, evaluation.num_invalid) == (4, 2)


def test_a_sample_that_does_not_decode_is_counted_as_not_valid():
    bench = Bench()
    first, second, third = requests(bench.give(announcement(0)))
    bench.give(*samples_of(first), *samples_of(second), *list(samples_of(third))[1:])
    header = ((GROUP_HEADER, third.group_id.encode()),)
    torn = Message("trajectories", 0, 9, b"k", b"torn", 0, header)
    (evaluation,) = evaluations(bench.take(bench.evaluator.unreadable(torn, 7.0)))
    assert (evaluation.num_samples, evaluation.num_invalid) == (5, 1)


@pytest.mark.parametrize("restarts", [False, True])
def test_samples_of_a_request_that_nobody_could_read_count_as_not_valid(restarts):
    bench = Bench(restarts=restarts)
    first, second, third = requests(bench.give(announcement(0)))
    bench.give(*samples_of(first), *samples_of(second), list(samples_of(third))[1])
    outcome = Outcome(
        group_id=third.group_id,
        prompt_id="",
        policy="main",
        event="dropped",
        stage="rollout",
        reason="dead_letter",
    )
    other = replace(outcome, group_id="some-prompt/0")
    (evaluation,) = evaluations(bench.give(other, outcome))
    assert (evaluation.num_samples, evaluation.num_invalid) == (4, 2)


@pytest.mark.parametrize("restarts", [False, True])
def test_evaluations_are_written_in_the_order_in_which_they_were_asked(restarts):
    bench = Bench(restarts=restarts)
    early = requests(bench.give(announcement(0)))
    late = requests(bench.give(announcement(1, kind="final")))
    assert evaluations(bench.give(*(t for request in late for t in samples_of(request)))) == []
    assert not bench.is_finished
    written = evaluations(bench.give(*(t for request in early for t in samples_of(request))))
    assert [(e.requested_version.number, e.final) for e in written] == [(0, False), (1, True)]
    assert bench.is_finished
    assert bench.kept.keys() == {"state"}


def test_a_sample_delivered_twice_counts_once():
    bench = Bench()
    first, second, third = requests(bench.give(announcement(0)))
    twice = [*samples_of(first), *samples_of(first)]
    assert evaluations(bench.give(*twice, *samples_of(second))) == []
    assert len(evaluations(bench.give(*samples_of(third)))) == 1
    assert evaluations(bench.give(*samples_of(third))) == []


@pytest.mark.parametrize("restarts", [False, True])
def test_the_final_version_is_scored_once_and_ends_the_work(restarts):
    bench = Bench(restarts=restarts)
    asked = requests(bench.give(announcement(0)))
    bench.give(*(t for request in asked for t in samples_of(request)))
    asked = requests(bench.give(announcement(1), announcement(1, kind="final")))
    assert len(asked) == 3
    assert not bench.is_finished
    writes = bench.give(*(t for request in asked for t in samples_of(request, versions=(1,))))
    (evaluation,) = evaluations(writes)
    assert evaluation.final
    assert evaluation.requested_version == PolicyVersion(0, 1)
    assert bench.is_finished


def test_a_final_version_that_is_being_scored_is_not_asked_again():
    bench = Bench()
    asked = requests(bench.give(announcement(2)))
    assert requests(bench.give(announcement(2, kind="final"))) == []
    writes = bench.give(*(t for request in asked for t in samples_of(request, versions=(2,))))
    (evaluation,) = evaluations(writes)
    assert evaluation.final
    assert bench.is_finished


@pytest.mark.parametrize("restarts", [False, True])
def test_a_final_version_that_was_scored_is_not_asked_again_and_its_scores_are_the_last_word(
    restarts,
):
    bench = Bench(restarts=restarts)
    asked = requests(bench.give(announcement(2)))
    (scored,) = evaluations(bench.give(*(t for request in asked for t in samples_of(request))))
    assert not bench.is_finished
    writes = bench.give(announcement(2, kind="final"))
    assert requests(writes) == []
    assert evaluations(writes) == [replace(scored, final=True)]
    assert bench.is_finished


def test_only_the_first_prompts_are_scored_where_that_is_asked():
    assert len(requests(Bench(max_prompts=2).give(announcement(0)))) == 2
