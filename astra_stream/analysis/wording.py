"""Numbers of a run in words, for the table at its end and the live view."""

import math
from collections.abc import Mapping

LABELS = {
    "waiting_for_rollouts": "waiting for rollouts",
    "step": "step",
    "export": "export",
    "publish_wait": "waiting for publishing",
    "other": "other",
}
"""Parts of the trainer's time in words."""


def number(value: float | None) -> str:
    """A score in three decimals; a dash for none."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.3f}"


def duration(seconds: float) -> str:
    """A time span in the units that a person would use."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def counts_text(counts: Mapping[str, int]) -> str:
    """Counts by name, the largest first, in one line."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count:,} {name}" for name, count in ranked) or "none"


def shares_text(shares: Mapping[str, float]) -> str:
    """Parts of the trainer's time, the largest first, in one line; those under 0.5 % left out."""
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{share:.0%} {LABELS[part]}" for part, share in ranked if share >= 0.005)


def staleness_text(median: int | None, maximum: int | None) -> str:
    """Staleness in one line; a dash without a trained group."""
    return "-" if median is None else f"p50 {median}, max {maximum} versions"
