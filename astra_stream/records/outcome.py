"""Outcome: what became of a group; what a scheduler and a curriculum read."""

from dataclasses import dataclass, field

import numpy as np

from astra_stream.records.checks import require_one_of, require_text

EVENTS = ("completed", "dropped", "trained", "replayed", "closed")


def _no_floats() -> np.ndarray:
    return np.zeros(0, dtype="<f4")


def _no_ints() -> np.ndarray:
    return np.zeros(0, dtype="<i4")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """One event in a group's life; trained and dropped close its slot."""

    group_id: str
    """The group; empty on closed, which speaks of the whole run."""
    prompt_id: str
    """The prompt; empty on closed."""
    policy: str
    """The policy."""
    event: str
    """completed, dropped, trained, replayed, or closed (no further request will be issued)."""
    stage: str
    """Stage that decided: trainer, assembler, scheduler, or the name of a pipeline stage."""
    reason: str = ""
    """Why, as a word that can be counted; empty for trained."""
    rewards: np.ndarray = field(default_factory=_no_floats)
    """[G] float32 raw outcome of each valid sample."""
    lengths: np.ndarray = field(default_factory=_no_ints)
    """[G] int32 trained tokens of each valid sample."""
    min_version: int = 0
    """Oldest version among trained tokens."""
    max_version: int = 0
    """Newest version among trained tokens."""
    trained_version: int = -1
    """Number of the version that trained it; -1 where none did."""
    staleness: int = 0
    """Versions between sampling and training."""
    num_issued: int = 0
    """On closed: groups that were issued in the whole run; 0 on other events."""
    at_s: float = 0.0
    """Unix time of the decision, seconds."""

    def __post_init__(self) -> None:
        require_one_of("outcome.event", self.event, EVENTS)
        require_text("outcome.policy", self.policy)
        if self.event != "closed":
            require_text("outcome.group_id", self.group_id)
