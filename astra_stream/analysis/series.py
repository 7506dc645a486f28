"""Series over the steps of a run: means, rates, quantiles, and where time went; pure."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from astra_stream.analysis.run_state import Step

WAITS = {
    "waiting_for_rollouts": "batch_wait_seconds",
    "step": "step_seconds",
    "export": "export_seconds",
    "publish_wait": "publish_wait_seconds",
}
"""Parts of the trainer's time, and the metric of a step that holds each."""


def window_of(num_steps: int) -> int:
    """Steps that a moving mean spans: a twentieth of the run, at least 5 and at most 50."""
    return min(50, max(5, num_steps // 20))


def quantile(counts: Mapping[int, int], share: float) -> int | None:
    """The smallest value that at least ``share`` of those counted do not exceed.

    Args:
        counts: Value to how often it was seen.
        share: Above 0, at most 1; 0.5 is the lower median.

    Returns:
        None where nothing was counted.
    """
    left = share * sum(counts.values())
    for value, count in sorted(counts.items()):
        left -= count
        if count and left <= 1e-9:
            return value
    return None


def moving_mean(values: list[float], window: int) -> list[float]:
    """Mean of each value and the ``window - 1`` before it; NaN is left out.

    Returns:
        As many as given; NaN where a window holds nothing else.
    """
    means: list[float] = []
    for end in range(1, len(values) + 1):
        seen = [v for v in values[max(0, end - window) : end] if math.isfinite(v)]
        means.append(sum(seen) / len(seen) if seen else math.nan)
    return means


class Rate(NamedTuple):
    """How fast a run was when it made a version."""

    minutes: float
    """Since the first version."""
    samples: float
    """Trained samples per second."""
    tokens: float
    """Trained tokens per second."""


def rates(versions: Sequence[Step], window: int) -> list[Rate]:
    """Speed over the last ``window`` steps, at each version.

    Args:
        versions: In order, the first being what the first step started from.
        window: Steps, at least 1.

    Returns:
        One for each version after the first whose window spans any time.
    """
    found: list[Rate] = []
    for index in range(1, len(versions)):
        old, now = versions[max(0, index - window)], versions[index]
        elapsed_s = now.at_s - old.at_s
        if elapsed_s > 0:
            rate = Rate(
                minutes=(now.at_s - versions[0].at_s) / 60,
                samples=(now.num_samples - old.num_samples) / elapsed_s,
                tokens=(now.num_tokens - old.num_tokens) / elapsed_s,
            )
            found.append(rate)
    return found


def time_share(steps: Sequence[Step], elapsed_s: float) -> dict[str, float]:
    """Where the trainer's time went.

    Args:
        steps: The steps that it made.
        elapsed_s: Seconds in which it made them.

    Returns:
        Shares that sum to 1 by part of ``WAITS``, and ``other`` for what no step accounts for;
        empty where no time is known.
    """
    parts = {
        part: sum(s for step in steps if math.isfinite(s := step.metric(metric)))
        for part, metric in WAITS.items()
    }
    parts["other"] = max(0.0, elapsed_s - sum(parts.values()))
    total = sum(parts.values())
    return {part: seconds / total for part, seconds in parts.items()} if total and steps else {}


def time_bins(versions: Sequence[Step], max_bins: int) -> list[tuple[int, int, dict[str, float]]]:
    """Shares of the trainer's time for runs of consecutive steps.

    Args:
        versions: In order, the first being what the first step started from.
        max_bins: Most bins; all hold equally many steps, the last perhaps fewer.

    Returns:
        Number of the first step, of the last, and shares as in ``time_share``.
    """
    size = max(1, math.ceil((len(versions) - 1) / max_bins))
    bins = []
    for start in range(1, len(versions), size):
        steps = versions[start : start + size]
        elapsed_s = steps[-1].at_s - versions[start - 1].at_s
        bins.append(
            (steps[0].version.number, steps[-1].version.number, time_share(steps, elapsed_s))
        )
    return bins


def staleness_bins(
    staleness: Mapping[int, Counter[int]], max_bins: int
) -> list[tuple[int, int, Counter[int]]]:
    """Trained groups by staleness for runs of consecutive versions.

    Args:
        staleness: Groups by staleness, for each version.
        max_bins: Most bins.

    Returns:
        At most ``max_bins``: number of the first version, of the last, and groups by staleness.
    """
    numbers = sorted(staleness)
    size = max(1, math.ceil(len(numbers) / max_bins))
    bins = []
    for start in range(0, len(numbers), size):
        found = numbers[start : start + size]
        counts = sum((staleness[n] for n in found), Counter[int]())
        bins.append((found[0], found[-1], counts))
    return bins
