"""RolloutRequest: the scheduler's order for a group of episodes."""

from dataclasses import dataclass

from astra_stream.records.checks import require_at_least, require_one_of, require_text
from astra_stream.records.prompt import Prompt
from astra_stream.records.weights import PolicyVersion

PURPOSES = ("train", "evaluate")
STAGES = ("full", "pilot", "commit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn."""

    temperature: float = 1.0
    """Divides the logits; 0 is greedy and only for evaluation."""
    top_p: float = 1.0
    """Nucleus mass in (0, 1]; 1 keeps all."""
    top_k: int = 0
    """Tokens kept; 0 keeps all."""
    max_new_tokens: int = 256
    """Most tokens a turn may add."""
    stop: tuple[str, ...] = ()
    """Texts that end a turn."""
    seed: int = 0
    """Seed of the draw; sample i of the request uses stream i of it."""

    def __post_init__(self) -> None:
        require_at_least("sampling.temperature", self.temperature, 0.0)
        require_at_least("sampling.top_k", self.top_k, 0)
        require_at_least("sampling.max_new_tokens", self.max_new_tokens, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyNeed:
    """A policy that plays in the episode, and how new it has to be."""

    policy: str
    """Name of the policy."""
    min_version: PolicyVersion
    """Oldest version that may start this request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """An order for samples of one prompt: a whole group or the missing part of one."""

    request_id: str
    """Identity: <group_id>/<first_sample>/<attempt>."""
    group_id: str
    """Group that the samples belong to."""
    prompt: Prompt
    """The task, whole, so that a worker needs no other topic."""
    policies: tuple[PolicyNeed, ...]
    """Who plays; one entry for a single policy."""
    first_sample: int
    """Index in the group of the first sample wanted."""
    num_samples: int
    """How many samples are wanted."""
    group_size: int
    """Samples in the whole group."""
    sampling: Sampling
    """How tokens are drawn."""
    attempt: int = 0
    """Times these samples were requested before."""
    stage: str = "full"
    """full, pilot or commit."""
    propensity: float = 1.0
    """Probability with which the selector chose this prompt, in (0, 1]."""
    data_epoch: int = 0
    """Pass over the prompts."""
    issued_at_s: float = 0.0
    """Unix time of the scheduler's decision, seconds."""
    deadline_s: float = 0.0
    """Seconds an episode may take once started; 0 means no limit."""
    purpose: str = "train"
    """train or evaluate."""

    def __post_init__(self) -> None:
        require_text("rollout_request.request_id", self.request_id)
        require_text("rollout_request.group_id", self.group_id)
        require_one_of("rollout_request.purpose", self.purpose, PURPOSES)
        require_one_of("rollout_request.stage", self.stage, STAGES)
        require_at_least("rollout_request.num_samples", self.num_samples, 1)
        require_at_least("rollout_request.first_sample", self.first_sample, 0)
        end = self.first_sample + self.num_samples
        require_at_least("rollout_request.group_size", self.group_size, end)
        require_at_least("rollout_request.policies", len(self.policies), 1)
        for need in self.policies:
            require_at_least("rollout_request.min_version", need.min_version.number, 0)
