"""Trajectory and Group: what an episode leaves, and all that one prompt got.

``behavior_logprobs[i]`` belongs to ``tokens[i]`` and is 0.0 where the loss mask is 0.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from astra_stream.errors import RecordError
from astra_stream.records.checks import (
    require_array,
    require_at_least,
    require_finite,
    require_number,
    require_one_of,
    require_text,
)
from astra_stream.records.request import Sampling
from astra_stream.records.weights import PolicyVersion

STATUSES = ("done", "truncated", "aborted", "error")
AXES = ("token", "sample", "episode")
PLAIN_DTYPE = re.compile(r"<[fiu][248]|\|?[iub]1")
"""What numpy takes for a dtype is a language; it fails in many ways, and may be costly."""


class VersionSpan(NamedTuple):
    """From this token on, these weights made the logits."""

    start: int
    """Token offset in the segment."""
    lineage: int
    """Lineage of the version."""
    number: int
    """Number of the version."""


class Turn(NamedTuple):
    """One engine reply and the messages before it."""

    start: int
    """Token offset in the segment at which the turn begins."""
    reward: float
    """Reward of this turn; 0 where only the episode is rewarded."""
    state_id: str
    """Environment state that the turn began in; may be empty."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Extra:
    """A further array, aligned to tokens, samples or the episode."""

    dtype: str
    """Little-endian numpy dtype, such as <f4."""
    shape: tuple[int, ...]
    """Lengths of the axes."""
    axis: str
    """token, sample or episode."""
    data: bytes
    """The values; empty when the object holds them."""
    claim: str = ""
    """Key of the object that holds the values; empty when they are here."""

    def __post_init__(self) -> None:
        require_one_of("extra.axis", self.axis, AXES)
        if not PLAIN_DTYPE.fullmatch(self.dtype):
            raise RecordError(
                "extra.dtype must be a little-endian number's, such as '<f4', '<i8' or 'u1': got "
                f"{self.dtype!r}. Convert it first."
            )
        for length in self.shape:
            require_at_least("extra.shape", length, 0)
        wanted = math.prod(self.shape) * np.dtype(self.dtype).itemsize
        if not self.claim and len(self.data) != wanted:
            raise RecordError(
                f"extra.data must have {wanted} bytes: got {len(self.data)}. Correct the shape."
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """One token sequence of an episode; a rewritten history starts another."""

    segment_id: int = 0
    """Index in the trajectory."""
    parent: int = -1
    """Segment that this one continues; -1 for none."""
    parent_offset: int = 0
    """Tokens shared with the parent, counted from its start."""
    agent: str = ""
    """Agent that speaks; empty where there is one."""
    tokens: np.ndarray
    """[T] int32 token ids, prompt and replies, never decoded and re-encoded."""
    loss_mask: np.ndarray
    """[T] uint8, 1 on tokens that train."""
    behavior_logprobs: np.ndarray
    """[T] float32 natural log-probability of each token when sampled; 0 where the mask is 0."""
    spans: tuple[VersionSpan, ...]
    """Which weights made which tokens, by start; empty only where nothing was sampled."""
    turns: tuple[Turn, ...] = ()
    """Turns by start."""
    finish_reason: str = ""
    """Why the last reply ended: stop, length, abort, or empty."""

    def __post_init__(self) -> None:
        num_tokens = len(self.tokens)
        require_array("segment.tokens", self.tokens, "<i4", (num_tokens,))
        require_array("segment.loss_mask", self.loss_mask, "u1", (num_tokens,))
        require_array("segment.behavior_logprobs", self.behavior_logprobs, "<f4", (num_tokens,))
        require_finite("segment.behavior_logprobs", self.behavior_logprobs)
        before = -1
        for start, _, number in self.spans:
            if number < 0:
                require_at_least("segment.spans.number", number, 0)
            if not before < start < num_tokens:
                raise RecordError(
                    f"segment.spans.start must rise and stay below the {num_tokens} tokens: "
                    f"got {start} after {before}. Count from the segment's start."
                )
            before = start

    def token_versions(self) -> np.ndarray:
        """[T] int32 version number of each token; -1 before the first span."""
        versions = np.full(len(self.tokens), -1, dtype=np.int32)
        for span in self.spans:
            versions[span.start :] = span.number
        return versions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trajectory:
    """The record that an episode leaves for one policy."""

    trajectory_id: str
    """Identity: <group_id>/<sample_index>/<policy>, the same on every attempt."""
    group_id: str
    """Group that it belongs to."""
    sample_index: int
    """Index within the group."""
    group_size: int
    """Samples in the whole group."""
    attempt: int = 0
    """Times that this sample was played before."""
    policy: str
    """Whose tokens the loss mask marks."""
    prompt_id: str
    """The prompt."""
    environment: str = ""
    """Environment that judged it."""
    answer: str = ""
    """The prompt's checkable answer."""
    prompt_fields: Mapping[str, str] = field(default_factory=dict)
    """The prompt's environment fields, name to JSON text."""
    purpose: str = "train"
    """train or evaluate."""
    stage: str = "full"
    """full, pilot or commit."""
    propensity: float = 1.0
    """Probability with which the prompt was chosen."""
    data_epoch: int = 0
    """Pass over the prompts."""
    episode_id: str
    """The episode, shared by the trajectories of its policies."""
    segments: tuple[Segment, ...]
    """Token sequences; empty for a policy that did not speak or an episode that failed early."""
    reward: float
    """What the environment said, after shaping."""
    raw_outcome: float
    """What the environment said first; never rewritten."""
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    """Named parts of the reward."""
    reward_valid: bool = True
    """False keeps the sample out of statistics and losses: an infrastructure failure is no 0."""
    status: str = "done"
    """done, truncated, aborted or error."""
    error_kind: str = ""
    """Class of the error; empty without one."""
    error: str = ""
    """What went wrong, one line; empty without an error."""
    retryable: bool = False
    """Whether the same sample may be requested again."""
    sampling: Sampling
    """How tokens were drawn."""
    tokenizer_hash: str = ""
    """SHA-256 of tokenizer and chat template, 64 hex digits."""
    model_fingerprint: str = ""
    """SHA-256 of the model's configuration, names, dtypes and shapes."""
    engine: str = ""
    """Engine and its settings that matter, as JSON text."""
    on_swap: str = "keep_kv"
    """How new weights entered a running sequence: keep_kv, recompute_kv or drain."""
    started_at_s: float = 0.0
    """Unix time at which the episode began, seconds."""
    finished_at_s: float = 0.0
    """Unix time at which the episode ended, seconds."""
    worker: str = ""
    """Who played it."""
    extras: Mapping[str, Extra] = field(default_factory=dict)
    """Further arrays by name."""

    def __post_init__(self) -> None:
        require_text("trajectory.trajectory_id", self.trajectory_id)
        require_text("trajectory.group_id", self.group_id)
        require_one_of("trajectory.status", self.status, STATUSES)
        require_number("trajectory.reward", self.reward)
        require_number("trajectory.raw_outcome", self.raw_outcome)
        require_at_least("trajectory.sample_index", self.sample_index, 0)
        require_at_least("trajectory.group_size", self.group_size, self.sample_index + 1)

    @property
    def trained_tokens(self) -> int:
        """Tokens with a loss mask of 1."""
        return sum(int(segment.loss_mask.sum()) for segment in self.segments)

    @property
    def version_range(self) -> tuple[PolicyVersion, PolicyVersion] | None:
        """Oldest and newest version among the trained tokens; None where none trains."""
        versions = [
            PolicyVersion(span.lineage, span.number)
            for segment in self.segments
            for span in trained_spans(segment)
        ]
        return (min(versions), max(versions)) if versions else None


def trained_spans(segment: Segment) -> Iterator[VersionSpan]:
    """The spans that made at least one trained token."""
    ends = [*(span.start for span in segment.spans[1:]), len(segment.tokens)]
    for span, end in zip(segment.spans, ends, strict=False):
        if segment.loss_mask[span.start : end].any():
            yield span


class GroupStatistics(NamedTuple):
    """Statistics over the raw outcomes of the valid samples of a group."""

    mean: float
    """Mean raw outcome; 0 without valid samples."""
    std: float
    """Standard deviation with the ddof named beside it."""
    ddof: int
    """Delta degrees of freedom of std: 0 population, 1 sample."""
    num_valid: int
    """Samples with a valid reward."""
    all_equal: bool
    """Whether every valid outcome is the same."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """All trajectories of one prompt for one policy."""

    group_id: str
    """Identity, made by the scheduler."""
    prompt_id: str
    """The prompt."""
    policy: str
    """The policy."""
    trajectories: tuple[Trajectory, ...]
    """By sample index."""
    statistics: GroupStatistics
    """Over raw outcomes, before any shaping."""
    min_version: PolicyVersion
    """Oldest version among trained tokens."""
    max_version: PolicyVersion
    """Newest version among trained tokens."""

    def __post_init__(self) -> None:
        require_text("group.group_id", self.group_id)
        require_at_least("group.trajectories", len(self.trajectories), 1)
        require_at_least("group.min_version.number", self.min_version.number, 0)

    @property
    def rewards(self) -> tuple[float, ...]:
        """Rewards of the valid samples, by sample index."""
        return tuple(t.reward for t in self.trajectories if t.reward_valid)
