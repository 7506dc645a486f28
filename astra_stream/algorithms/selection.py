"""Which groups train: processors that drop groups without a use."""

from collections.abc import Iterator

from astra_stream.algorithms.interface import processor
from astra_stream.records import Group


@processor
def drop_uniform_groups(group: Group, *, tolerance: float = 0.0) -> Iterator[Group]:
    """Keep a group only if its rewards differ: a uniform group has no gradient.

    Args:
        group: Looked at are the rewards of its valid samples.
        tolerance: Largest difference that still counts as none, in units of reward.
    """
    rewards = group.rewards
    if rewards and max(rewards) - min(rewards) > tolerance:
        yield group


@processor
def drop_truncated_groups(group: Group, *, max_fraction: float = 0.5) -> Iterator[Group]:
    """Drop a group in which too many samples hit the token limit.

    Args:
        group: Its trajectories' ``status`` is looked at.
        max_fraction: Largest share of truncated samples that stays, 0 to 1.
    """
    truncated = sum(t.status == "truncated" for t in group.trajectories)
    if truncated <= max_fraction * len(group.trajectories):
        yield group
