"""Evaluation: how a version does on held-out prompts."""

from dataclasses import dataclass

from astra_stream.records.checks import require_at_least, require_text
from astra_stream.records.weights import PolicyVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Scores of one evaluation; the versions are those that really made the tokens."""

    policy: str
    """The policy."""
    suite: str
    """Name of the set of prompts."""
    requested_version: PolicyVersion
    """Oldest version that was asked for."""
    min_version: PolicyVersion
    """Oldest version used."""
    max_version: PolicyVersion
    """Newest version used."""
    num_prompts: int
    """Prompts with at least one valid sample."""
    num_samples: int
    """Valid samples."""
    k: int
    """Samples per prompt."""
    mean_at_k: float
    """Mean reward over prompts of the mean over their samples."""
    pass_at_k: float
    """Share of prompts with at least one correct sample among k."""
    temperature: float
    """Temperature of the samples; 0 is greedy."""
    mean_length_tokens: float
    """Mean number of sampled tokens."""
    num_invalid: int = 0
    """Samples without a valid reward."""
    final: bool = False
    """True on the last evaluation of the run."""
    at_s: float = 0.0
    """Unix time at which it was complete, seconds."""

    def __post_init__(self) -> None:
        require_text("evaluation.policy", self.policy)
        require_at_least("evaluation.k", self.k, 1)
