"""Records with readable defaults for tests: say what matters, the rest is filled in.

Tokens are drawn from a generator seeded by the record's own name: equal calls, equal records.
"""

import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from astra_stream.algorithms.advantage import group_relative, per_sample
from astra_stream.algorithms.packing import Batch, join_slices, pack_batch
from astra_stream.records import (
    ChatMessage,
    Group,
    GroupStatistics,
    PolicyVersion,
    Prompt,
    Sampling,
    Segment,
    Trajectory,
    VersionSpan,
)

VOCABULARY = 64
"""Token ids of built records are below this."""


def make_prompt(text: str = "1 + 1 =", *, answer: str = "2", split: str = "train") -> Prompt:
    """A prompt with an id made of its text."""
    content_hash = f"{zlib.crc32(f'{text}{answer}'.encode()):08x}"
    return Prompt(
        prompt_id=f"sums/0/{content_hash}",
        split=split,
        messages=(ChatMessage(role="user", content=text),),
        environment="verifiable",
        answer=answer,
        dataset="sums",
    )


def make_segment(
    *,
    prompt_tokens: int = 4,
    reply_tokens: int = 3,
    versions: Sequence[int] = (0,),
    segment_id: int = 0,
    name: str = "segment",
) -> Segment:
    """A prompt of untrained tokens and a reply of trained ones.

    Args:
        prompt_tokens: At least 1.
        reply_tokens: 0 leaves a segment that does not train.
        versions: Numbers of the versions that made the reply, in equal shares.
        segment_id: Index in the trajectory.
        name: Seeds the tokens.
    """
    rng = np.random.default_rng(zlib.crc32(f"{name}/{segment_id}".encode()))
    num_tokens = prompt_tokens + reply_tokens
    loss_mask = np.zeros(num_tokens, np.uint8)
    loss_mask[prompt_tokens:] = 1
    logprobs = -rng.exponential(1.0, num_tokens).astype(np.float32)
    share = reply_tokens / len(versions)
    return Segment(
        segment_id=segment_id,
        tokens=rng.integers(4, VOCABULARY, num_tokens, dtype=np.int32),
        loss_mask=loss_mask,
        behavior_logprobs=np.where(loss_mask == 1, logprobs, np.float32(0)).astype(np.float32),
        spans=tuple(
            VersionSpan(prompt_tokens + int(i * share), 0, number)
            for i, number in enumerate(versions)
            if reply_tokens
        ),
        finish_reason="stop",
    )


def make_trajectory(
    reward: float = 1.0,
    *,
    group_id: str = "g0",
    sample_index: int = 0,
    group_size: int | None = None,
    policy: str = "main",
    prompt_id: str = "sums/0/00000000",
    segments: Sequence[Segment] | None = None,
    prompt_tokens: int = 4,
    reply_tokens: int = 3,
    versions: Sequence[int] = (0,),
    raw_outcome: float | None = None,
    reward_valid: bool = True,
    status: str = "done",
    retryable: bool = False,
    temperature: float = 1.0,
    attempt: int = 0,
    purpose: str = "train",
) -> Trajectory:
    """One trajectory, of one segment unless ``segments`` are given."""
    name = f"{group_id}/{sample_index}/{policy}"
    segment = make_segment(
        prompt_tokens=prompt_tokens, reply_tokens=reply_tokens, versions=versions, name=name
    )
    return Trajectory(
        trajectory_id=name,
        group_id=group_id,
        sample_index=sample_index,
        group_size=group_size or sample_index + 1,
        attempt=attempt,
        policy=policy,
        prompt_id=prompt_id,
        purpose=purpose,
        episode_id=f"{group_id}/{sample_index}",
        segments=(segment,) if segments is None else tuple(segments),
        reward=reward,
        raw_outcome=reward if raw_outcome is None else raw_outcome,
        reward_valid=reward_valid,
        status=status,
        error_kind="" if status != "error" else "TimeoutError",
        retryable=retryable,
        sampling=Sampling(temperature=temperature, max_new_tokens=16),
    )


def make_group(
    *rewards: float,
    group_id: str = "g0",
    prompt_id: str = "sums/0/00000000",
    policy: str = "main",
    versions: Sequence[int] = (0,),
    prompt_tokens: int = 4,
    reply_tokens: int | Sequence[int] = 3,
    temperature: float = 1.0,
    trajectories: Sequence[Trajectory] | None = None,
) -> Group:
    """A group with one trajectory per reward, or of the trajectories given.

    Args:
        rewards: By sample index.
        group_id: Its id.
        prompt_id: Its prompt.
        policy: Its policy.
        versions: Numbers of the versions that made each reply, in equal shares.
        prompt_tokens: Length of the prompt.
        reply_tokens: Length of each reply, or one length for all.
        temperature: Of the sampling.
        trajectories: Instead of rewards.
    """
    lengths = [reply_tokens] * len(rewards) if isinstance(reply_tokens, int) else reply_tokens
    if trajectories is None:
        trajectories = [
            make_trajectory(
                reward,
                group_id=group_id,
                sample_index=index,
                group_size=len(rewards),
                policy=policy,
                prompt_id=prompt_id,
                versions=versions,
                prompt_tokens=prompt_tokens,
                reply_tokens=length,
                temperature=temperature,
            )
            for index, (reward, length) in enumerate(zip(rewards, lengths, strict=True))
        ]
    raw = np.array([t.raw_outcome for t in trajectories if t.reward_valid], dtype=np.float64)
    ranges = [t.version_range for t in trajectories if t.version_range is not None]
    fallback = PolicyVersion(0, min(versions))
    return Group(
        group_id=group_id,
        prompt_id=prompt_id,
        policy=policy,
        trajectories=tuple(trajectories),
        statistics=GroupStatistics(
            mean=float(raw.mean()) if len(raw) else 0.0,
            std=float(raw.std(ddof=1)) if len(raw) > 1 else 0.0,
            ddof=1,
            num_valid=len(raw),
            all_equal=len(set(raw.tolist())) <= 1,
        ),
        min_version=min((low for low, _ in ranges), default=fallback),
        max_version=max((high for _, high in ranges), default=fallback),
    )


def make_batch(
    groups: Sequence[Group] | None = None,
    *,
    trains_version: int = 0,
    row_tokens: int = 32,
    policy: str = "main",
    last: bool = False,
    sample_columns: Mapping[str, np.ndarray] | None = None,
) -> Batch:
    """A batch of groups (two of four unless given), with group-relative advantages."""
    if groups is None:
        lengths = ((3, 5, 2, 4), (6, 1, 3, 2))
        groups = [
            make_group(1, 0, 0, 1, group_id=f"g{i}", reply_tokens=lengths[i]) for i in range(2)
        ]
    if sample_columns is None:
        sample_columns = {"advantages": per_sample(groups, group_relative(groups))}
    return join_slices(
        pack_batch(
            groups,
            batch_id=f"{policy}/{trains_version}",
            policy=policy,
            trains_version=trains_version,
            row_tokens=row_tokens,
            sample_columns=sample_columns,
            last=last,
        )
    )
