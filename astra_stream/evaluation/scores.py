"""Scores of a set of prompts from what its samples got."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Scores(NamedTuple):
    """Means over prompts, each prompt counting once."""

    mean_at_k: float
    """Mean over prompts of the mean reward of their samples; NaN without samples."""
    pass_at_k: float
    """Share of prompts with at least one sample of the full reward; NaN without samples."""
    num_prompts: int
    """Prompts with a valid sample."""


def score(rewards_by_prompt: Mapping[str, Sequence[float]], *, full_reward: float = 1.0) -> Scores:
    """Score prompts by the rewards of their valid samples.

    Args:
        rewards_by_prompt: Prompt to the rewards of its valid samples; a prompt without any is left
            out of the means.
        full_reward: What a sample must reach to pass.
    """
    scored = [rewards for rewards in rewards_by_prompt.values() if rewards]
    if not scored:
        return Scores(float("nan"), float("nan"), 0)
    means = [sum(rewards) / len(rewards) for rewards in scored]
    passes = [max(rewards) >= full_reward for rewards in scored]
    return Scores(sum(means) / len(scored), sum(passes) / len(scored), len(scored))
