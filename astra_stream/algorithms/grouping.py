"""Folds trajectories into groups.

A group is complete once it has ``group_size`` trajectories of different sample index, failed ones
included: what is missing is still being played.
"""

from collections.abc import Iterable

import numpy as np

from astra_stream.records import Group, GroupStatistics, PolicyVersion, Trajectory

DDOF = 1
"""Standard deviations of groups are those of a sample."""


def make_group(trajectories: Iterable[Trajectory]) -> Group:
    """Fold the trajectories of one group, in any order.

    Raises:
        ValueError: There are none.
    """
    ordered = tuple(sorted(trajectories, key=lambda t: t.sample_index))
    if not ordered:
        raise ValueError("a group must have at least one trajectory: got none.")
    ranges = [r for t in ordered if t.reward_valid and (r := t.version_range) is not None]
    unplayed = PolicyVersion(0, 0)
    return Group(
        group_id=ordered[0].group_id,
        prompt_id=ordered[0].prompt_id,
        policy=ordered[0].policy,
        trajectories=ordered,
        statistics=outcome_statistics([t.raw_outcome for t in ordered if t.reward_valid]),
        min_version=min((low for low, _ in ranges), default=unplayed),
        max_version=max((high for _, high in ranges), default=unplayed),
    )


def outcome_statistics(outcomes: list[float]) -> GroupStatistics:
    """Statistics over the raw outcomes of valid samples; one sample has a deviation of 0."""
    values = np.asarray(outcomes, dtype=np.float64)
    return GroupStatistics(
        mean=float(values.mean()) if len(values) else 0.0,
        std=float(values.std(ddof=DDOF)) if len(values) > DDOF else 0.0,
        ddof=DDOF,
        num_valid=len(values),
        all_equal=bool((values == values[:1]).all()) if len(values) else True,
    )
