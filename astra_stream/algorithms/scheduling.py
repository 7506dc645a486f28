"""The admission rule, and which partition gets the next request.

Whatever is admitted can be trained in time: of the open groups, the newest is in the batch that is
``max_staleness`` versions away at most.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

GOLDEN_SECTION = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRule:
    """How many groups may be open at once."""

    groups_per_batch: int
    """Groups that one version is trained on."""
    max_staleness: int
    """Versions that may lie between sampling and training."""
    steps: int
    """Versions to train in the whole run."""

    def room(self, *, num_open: int, steps_done: int) -> int:
        """Groups that may be issued now; never negative.

        Args:
            num_open: Groups issued and neither trained nor dropped.
            steps_done: Versions trained.
        """
        ahead = min(self.max_staleness + 1, self.steps - steps_done)
        return max(0, ahead * self.groups_per_batch - num_open)


def fits_later(
    versions: Sequence[int], *, next_version: int, groups_per_batch: int, max_staleness: int
) -> bool:
    """Say whether batches from ``next_version`` on can take every group before it expires.

    Args:
        versions: Oldest version of each group that is left, in any order.
        next_version: Version that the first of those batches trains.
        groups_per_batch: Groups that each takes.
        max_staleness: Versions that may lie between sampling and training.
    """
    for place, version in enumerate(sorted(versions)):
        trains = next_version + place // groups_per_batch
        if trains - version > max_staleness:
            return False
    return True


def least_loaded(loads: Sequence[int], *, turn: int = 0) -> int:
    """Index of the smallest load; equal ones take turns.

    Workers share the partitions in ranges or in turn. Turns a golden section apart reach both
    halves of either share with every few requests, however few are open at once.

    Args:
        loads: Open requests of each partition.
        turn: Counts the requests.
    """
    first = int(turn * GOLDEN_SECTION % 1.0 * len(loads))
    return min(range(len(loads)), key=lambda i: (loads[i], (i - first) % len(loads)))


def shuffled(num_prompts: int, epoch: int, *, seed: int = 0) -> np.ndarray:
    """Every prompt once, in an order that seed and epoch alone decide.

    Args:
        num_prompts: N.
        epoch: Pass over the prompts, from 0.
        seed: Of the run.

    Returns:
        [N] int64, a permutation of 0 to N - 1.
    """
    return np.random.default_rng([seed, epoch]).permutation(num_prompts)
