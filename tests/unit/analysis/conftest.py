"""Builders of the records that a run leaves: say what matters, the rest is filled in."""

from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from astra_stream.analysis import RunState
from astra_stream.records import Evaluation, Outcome, PolicyVersion, WeightAnnouncement


def announce(
    number: int,
    metrics: Mapping[str, float] | None = None,
    *,
    lineage: int = 0,
    kind: str = "snapshot",
    policy: str = "main",
) -> WeightAnnouncement:
    return WeightAnnouncement(
        policy=policy,
        version=PolicyVersion(lineage, number),
        kind=kind,
        root_hash=f"{lineage:032x}{number:032x}",
        model_fingerprint="0" * 64,
        tensors=(),
        objects=(),
        train_metrics=metrics or {},
        num_trained_samples=8 * number,
        num_trained_tokens=100 * number,
    )


def decide(event: str, group: str = "g0", **fields: object) -> Outcome:
    described = {"policy": "main", "stage": "stage", **fields}
    return Outcome(group_id=group, prompt_id="p0", event=event, **described)


def close(reason: str, num_issued: int) -> Outcome:
    return Outcome(
        group_id="",
        prompt_id="",
        policy="main",
        event="closed",
        stage="scheduler",
        reason=reason,
        num_issued=num_issued,
    )


def evaluate(number: int, score: float, *, final: bool = False, policy: str = "main") -> Evaluation:
    version = PolicyVersion(0, number)
    return Evaluation(
        policy=policy,
        suite="held_out",
        requested_version=version,
        min_version=version,
        max_version=version.next(),
        num_prompts=10,
        num_samples=10,
        k=1,
        mean_at_k=score,
        pass_at_k=score,
        temperature=0.0,
        mean_length_tokens=3.0,
        final=final,
    )


def trained_state(num_steps: int, *, step_s: float = 2.0) -> RunState:
    """A run whose reward rises by 0.01 a step and whose trainer waits half of its time."""
    state = RunState()
    state.fold(announce(0), at_s=1000.0)
    for number in range(1, num_steps + 1):
        at_s = 1000.0 + step_s * number
        waits = {"batch_wait_seconds": step_s / 2, "step_seconds": step_s / 4}
        state.fold(announce(number, {"reward_mean": number / 100, **waits}), at_s=at_s)
        for index, staleness in enumerate((0, 1, 1, 2)):
            trained = {"trained_version": number - 1, "staleness": min(staleness, number - 1)}
            state.fold(decide("trained", f"g{number}.{index}", **trained), at_s=at_s)
    return state


@pytest.fixture
def records() -> SimpleNamespace:
    return SimpleNamespace(
        announce=announce,
        decide=decide,
        close=close,
        evaluate=evaluate,
        trained_state=trained_state,
    )
