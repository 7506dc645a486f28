"""What a run came to, in the words of ``summary.json`` and of the table at its end."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from astra_stream.analysis.run_state import RunState, Step
from astra_stream.analysis.series import quantile, time_share
from astra_stream.analysis.wording import (
    counts_text,
    duration,
    number,
    shares_text,
    staleness_text,
)
from astra_stream.errors import ConfigError
from astra_stream.records import Evaluation

SUMMARY_FILE = "summary.json"
EDGE_STEPS = 5
"""Steps at either end of the run whose mean reward is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One evaluation, as far as a person compares it with the others."""

    version: int
    """Number of the version asked for."""
    min_version: int
    """Oldest version that really answered."""
    max_version: int
    """Newest version that really answered."""
    mean_at_k: float | None
    """None where no sample was valid."""
    pass_at_k: float | None
    k: int
    num_prompts: int
    final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What ``summary.json`` holds; None stands for what never happened."""

    run: str
    policy: str
    steps: int
    """Versions that batches made."""
    samples: int
    tokens: int
    """Trained tokens."""
    reward_first: float | None
    """Mean of ``reward_mean`` over the first five steps."""
    reward_last: float | None
    """Mean of ``reward_mean`` over the last five steps."""
    accuracy_before: float | None
    """mean@k on held-out prompts of the first version scored."""
    accuracy_after: float | None
    """mean@k on held-out prompts of the final version, else of the last one scored."""
    staleness_p50: int | None
    """Of trained groups, each by its oldest sample; versions."""
    staleness_max: int | None
    wall_s: float
    """From the start of the run to its end, seconds."""
    training_s: float
    """From the first version to the last, seconds."""
    time_share: Mapping[str, float]
    """Where ``training_s`` went in the trainer; shares that sum to 1, empty without a step."""
    groups_trained: int
    dropped: Mapping[str, int]
    """Dropped groups by reason."""
    closed: str
    """Why the scheduler stopped; empty if it had not."""
    is_final: bool
    """Training ended in an orderly way."""
    version: str
    """The last version, such as v200; empty without any."""
    root_hash: str
    """Root hash of its weights, 64 hex digits."""
    evaluations: tuple[Score, ...]
    """By version."""
    services: Mapping[str, str] = field(default_factory=dict)
    """How each service ended."""


def summarise(
    state: RunState,
    *,
    run: str,
    policy: str,
    wall_s: float | None = None,
    services: Mapping[str, str] | None = None,
) -> Summary:
    """Sum up a run.

    Args:
        state: What its topics say.
        run: Its name.
        policy: Which policy.
        wall_s: How long the run took; None takes the time that its records span.
        services: How each service ended, or stands, by name.
    """
    steps, newest, staleness = state.steps, state.newest, state.all_staleness
    before, after = _first_and_last(state)
    training_s = state.training_s
    return Summary(
        run=run,
        policy=policy,
        steps=len(steps),
        samples=newest.num_samples if newest else 0,
        tokens=newest.num_tokens if newest else 0,
        reward_first=_mean_reward(steps[:EDGE_STEPS]),
        reward_last=_mean_reward(steps[-EDGE_STEPS:]),
        accuracy_before=_finite(before.mean_at_k) if before else None,
        accuracy_after=_finite(after.mean_at_k) if after else None,
        staleness_p50=quantile(staleness, 0.5),
        staleness_max=max(staleness, default=None),
        wall_s=_span_seconds(state) if wall_s is None else wall_s,
        training_s=training_s,
        time_share=time_share(steps, training_s),
        groups_trained=state.events["trained"],
        dropped=dict(state.drops.most_common()),
        closed=state.closed,
        is_final=state.is_final,
        version=str(newest.version) if newest else "",
        root_hash=newest.root_hash if newest else "",
        evaluations=tuple(_score(state.evaluations[n]) for n in sorted(state.evaluations)),
        services=dict(services or {}),
    )


def summary_json(summary: Summary) -> dict[str, Any]:
    """The summary as JSON values; a number that is not finite becomes null."""
    return _plain(dataclasses.asdict(summary))


def write_summary(summary: Summary, directory: Path) -> Path:
    """Write ``summary.json`` into a run's directory and return its path."""
    path = directory / SUMMARY_FILE
    text = json.dumps(summary_json(summary), indent=2, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
    return path


def read_summary(directory: Path) -> Summary | None:
    """The ``summary.json`` of a run's directory; None if there is none.

    Raises:
        ConfigError: It is not what ``write_summary`` writes.
    """
    path = directory / SUMMARY_FILE
    if not path.exists():
        return None
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        scores = tuple(Score(**score) for score in facts.pop("evaluations"))
        return Summary(**facts, evaluations=scores)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{path} must be the summary of a run: got {error}. Delete it and report again."
        ) from error


def summary_table(summary: Summary, *, steps: int | None = None) -> list[tuple[str, str]]:
    """The table at the end of a run, as names and values in words.

    Args:
        summary: Of the run.
        steps: How many the run file asks for; None leaves it out.
    """
    s = summary
    asked = f" of {steps:,}" if steps is not None else ""
    rows = [
        ("steps", f"{s.steps:,}{asked}{_ending(s)}"),
        ("samples", f"{s.samples:,}{_rate(s.samples, s.training_s)}"),
        ("tokens", f"{s.tokens:,}{_rate(s.tokens, s.training_s)}"),
        ("reward", f"{number(s.reward_first)} → {number(s.reward_last)}"),
        ("held-out accuracy", f"{number(s.accuracy_before)} → {number(s.accuracy_after)}"),
        ("staleness", staleness_text(s.staleness_p50, s.staleness_max)),
        ("groups trained", f"{s.groups_trained:,}"),
        ("groups dropped", counts_text(s.dropped)),
        ("wall time", duration(s.wall_s)),
        ("trainer's time", shares_text(s.time_share)),
        ("weights", f"{s.version} {s.root_hash[:12]}" if s.version else "none"),
    ]
    rows += [("services", ", ".join(f"{n}: {how}" for n, how in s.services.items()))]
    return [(name, text) for name, text in rows if text]


def _ending(summary: Summary) -> str:
    if not summary.is_final:
        return ", not finished"
    return f", ended by {summary.closed}" if summary.closed not in {"", "steps_done"} else ""


def _rate(count: int, seconds: float) -> str:
    return f" ({count / seconds:,.0f}/s)" if count and seconds else ""


def _mean_reward(steps: Sequence[Step]) -> float | None:
    rewards = [step.reward for step in steps if math.isfinite(step.reward)]
    return sum(rewards) / len(rewards) if rewards else None


def _first_and_last(state: RunState) -> tuple[Evaluation | None, Evaluation | None]:
    """The first evaluation and the last one; the last is None where there is only one."""
    first = state.evaluations[min(state.evaluations)] if state.evaluations else None
    last = state.last_evaluation
    return first, last if last is not first or (last and last.final) else None


def _span_seconds(state: RunState) -> float:
    starts = [step.at_s for step in state.versions.values()]
    return max(0.0, state.last_at_s - min(starts)) if starts else 0.0


def _score(evaluation: Evaluation) -> Score:
    return Score(
        version=evaluation.requested_version.number,
        min_version=evaluation.min_version.number,
        max_version=evaluation.max_version.number,
        mean_at_k=_finite(evaluation.mean_at_k),
        pass_at_k=_finite(evaluation.pass_at_k),
        k=evaluation.k,
        num_prompts=evaluation.num_prompts,
        final=evaluation.final,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
