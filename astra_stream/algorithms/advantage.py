"""Advantages from the rewards of a group: each sample is judged against its siblings.

Conventions differ between papers: here the standard deviation has ``ddof`` 1 unless told, ``eps``
is added to it, and a group with one valid sample scores 0. Samples whose reward is not valid are
in neither the mean nor the result.
"""

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import numpy as np

from astra_stream.algorithms.packing import trainable_samples
from astra_stream.errors import ConfigError
from astra_stream.records import Group

AnyAdvantage = TypeVar("AnyAdvantage", bound=Callable[..., np.ndarray])


def needs_group_of(size: int) -> Callable[[AnyAdvantage], AnyAdvantage]:
    """Decorate an advantage function that tells nothing about smaller groups."""

    def declare(function: AnyAdvantage) -> AnyAdvantage:
        vars(function)["min_group_size"] = size
        return function

    return declare


def min_group_size(function: Callable[..., object]) -> int:
    """Smallest group that an advantage function can tell apart; 1 where it declares nothing."""
    return int(getattr(function, "min_group_size", 1))


@needs_group_of(2)
def group_relative(
    groups: Sequence[Group],
    *,
    scale: Literal["std", "none"] = "std",
    ddof: int = 1,
    eps: float = 1e-6,
    baseline: Literal["mean", "leave_one_out"] = "mean",
) -> np.ndarray:
    """Score each reward against its siblings.

    The defaults are those of GRPO in verl; ``scale="none"`` is Dr. GRPO, and RLOO with
    ``baseline="leave_one_out"`` as well.

    Args:
        groups: Whose valid trajectories are scored.
        scale: Whether the difference is divided by the group's standard deviation + ``eps``.
        ddof: Delta degrees of freedom of that deviation: 0 population, 1 sample.
        eps: Keeps a uniform group at 0 instead of NaN.
        baseline: The mean of the group, or of the other samples of the group.

    Returns:
        [N] float32, one per valid trajectory, by group, then by sample index.

    Raises:
        ConfigError: ``scale`` or ``baseline`` is none of those.
    """
    if scale not in {"std", "none"}:
        raise ConfigError(f"scale must be 'std' or 'none': got {scale!r}. Choose one.")
    if baseline not in {"mean", "leave_one_out"}:
        raise ConfigError(
            f"baseline must be 'mean' or 'leave_one_out': got {baseline!r}. Choose one."
        )
    scored = []
    for group in groups:
        rewards = np.array(group.rewards, dtype=np.float64)
        centered = _center(rewards, leave_one_out=baseline == "leave_one_out")
        if scale == "std" and len(rewards) > ddof:
            centered /= rewards.std(ddof=ddof) + eps
        scored.append(centered)
    return np.concatenate(scored).astype(np.float32) if scored else np.zeros(0, np.float32)


def per_sample(groups: Sequence[Group], advantages: np.ndarray) -> np.ndarray:
    """Give every trainable sample the advantage of its trajectory.

    Args:
        groups: As given to the advantage function.
        advantages: [N], one per valid trajectory.

    Returns:
        [number of trainable samples] float32 in the order of ``trainable_samples(groups)``.

    Raises:
        ConfigError: The advantage function returned another number of values.
    """
    valid = [t.trajectory_id for group in groups for t in group.trajectories if t.reward_valid]
    if advantages.shape != (len(valid),):
        raise ConfigError(
            f"advantages must have {len(valid)} entries, one per valid trajectory: got "
            f"{advantages.shape}. Correct the advantage function."
        )
    index = {trajectory_id: i for i, trajectory_id in enumerate(valid)}
    chosen = [index[one.trajectory.trajectory_id] for one in trainable_samples(groups)]
    return advantages[np.array(chosen, dtype=np.int64)].astype(np.float32)


def _center(rewards: np.ndarray, *, leave_one_out: bool) -> np.ndarray:
    num_samples = len(rewards)
    if num_samples < 2:
        return np.zeros(num_samples)
    centered = rewards - rewards.mean()
    return centered * num_samples / (num_samples - 1) if leave_one_out else centered
