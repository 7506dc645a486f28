"""Plays one episode: a prompt in, a trajectory out, whatever happens in between.

An error of the environment or the engine ends the episode with a trajectory that says so and whose
reward is not valid: an infrastructure failure is no reward of 0.
"""

import asyncio
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from astra_stream.clock import Clock
from astra_stream.engines.chat import ChatTokenizer
from astra_stream.engines.interface import Completion, Engine
from astra_stream.environments.interface import Environment, Step
from astra_stream.errors import AstraStreamError, TransientError
from astra_stream.records import (
    ChatMessage,
    Prompt,
    RolloutRequest,
    Segment,
    Trajectory,
    Turn,
    VersionSpan,
)

MakeEnvironment = Callable[[Prompt], Environment]
TURNS_PER_STREAM = 1_000
"""Turn t of sample i draws from stream ``i * TURNS_PER_STREAM + t``."""


@dataclass(frozen=True, kw_only=True)
class Player:
    """What every episode of a worker shares."""

    engine: Engine
    chat: ChatTokenizer
    make_environment: MakeEnvironment
    policy: str
    clock: Clock
    worker: str
    environment_name: str = ""
    engine_settings: str = ""
    """The engine's settings that matter, as JSON text."""
    on_swap: str = "keep_kv"
    model_fingerprint: str = ""


@dataclass(slots=True)
class Transcript:
    """What an episode has so far: aligned lists, one entry per token."""

    tokens: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    reward: float = 0.0
    reward_parts: dict[str, float] = field(default_factory=dict)
    finish_reason: str = ""

    def read(self, tokens: np.ndarray) -> None:
        """Add tokens that the policy did not make."""
        self.tokens += tokens.tolist()
        self.mask += [0] * len(tokens)
        self.logprobs += [0.0] * len(tokens)

    def sampled(self, completion: Completion) -> None:
        """Add tokens that it made."""
        start = len(self.tokens)
        for span in completion.spans:
            if not self.spans or self.spans[-1][1:] != span[1:]:
                self.spans.append(span._replace(start=span.start + start))
        self.tokens += completion.tokens.tolist()
        self.mask += [1] * len(completion.tokens)
        self.logprobs += completion.logprobs.tolist()
        self.finish_reason = completion.finish_reason

    def judged(self, step: Step, *, turn_start: int) -> None:
        """Add what the environment said of the last reply."""
        self.reward += step.reward
        self.turns.append(Turn(turn_start, step.reward, ""))
        for name, part in step.reward_parts.items():
            self.reward_parts[name] = self.reward_parts.get(name, 0.0) + part

    def segment(self) -> Segment:
        """The whole as one segment."""
        return Segment(
            tokens=np.array(self.tokens, dtype="<i4"),
            loss_mask=np.array(self.mask, dtype="u1"),
            behavior_logprobs=np.array(self.logprobs, dtype="<f4"),
            spans=tuple(self.spans),
            turns=tuple(self.turns),
            finish_reason=self.finish_reason,
        )


async def play_episode(
    request: RolloutRequest,
    sample_index: int,
    player: Player,
    *,
    max_attempts: int = 1,
    num_starts: int = 0,
) -> Trajectory:
    """Play one sample of a request; a failure that may pass is tried again.

    Args:
        request: Whose sample.
        sample_index: Index in the group; decides the randomness with the request's seed.
        player: Engine, environment and the rest.
        max_attempts: Times that a sample is played before its failure is the result.
        num_starts: Earlier starts of it, which ended with their process.

    Returns:
        A trajectory, also after an error.
    """
    trajectory = await _attempt(request, sample_index, player, num_starts)
    for attempt in range(1, max_attempts):
        if not trajectory.retryable:
            break
        trajectory = await _attempt(request, sample_index, player, num_starts + attempt)
    return trajectory


def given_up_episode(
    request: RolloutRequest, sample_index: int, player: Player, error: AstraStreamError
) -> Trajectory:
    """The trajectory of a sample that is not played: without tokens, not valid, and why."""
    return _trajectory(
        request,
        sample_index,
        player,
        transcript=Transcript(),
        started_at_s=player.clock.now_s(),
        error=error,
        attempt=0,
    )


async def _attempt(
    request: RolloutRequest, sample_index: int, player: Player, attempt: int
) -> Trajectory:
    transcript = Transcript()
    started_at_s = player.clock.now_s()
    error: BaseException | None = None
    try:
        async with asyncio.timeout(request.deadline_s or None):
            await _play(request, sample_index, player, transcript)
    except Exception as caught:  # noqa: BLE001 - a failed episode is data; the worker counts them
        error = caught
    return _trajectory(
        request,
        sample_index,
        player,
        transcript=transcript,
        started_at_s=started_at_s,
        error=error,
        attempt=attempt,
    )


async def _play(
    request: RolloutRequest, sample_index: int, player: Player, transcript: Transcript
) -> None:
    environment = player.make_environment(request.prompt)
    try:
        transcript.read(player.chat.opening(await environment.start()))
        for turn in range(TURNS_PER_STREAM):
            turn_start = len(transcript.tokens)
            completion = await player.engine.generate(
                np.array(transcript.tokens, dtype=np.int32),
                request.sampling,
                stream=sample_index * TURNS_PER_STREAM + turn,
            )
            transcript.sampled(completion)
            reply = ChatMessage(role="assistant", content=player.chat.decode(completion.tokens))
            step = await environment.step(reply)
            transcript.judged(step, turn_start=turn_start)
            if step.done or completion.finish_reason != "stop":
                return
            ended_by_token = int(completion.tokens[-1]) in player.chat.eos_ids
            transcript.read(
                player.chat.continuation(
                    step.messages, reply=reply.content, terminated=ended_by_token
                )
            )
    finally:
        await environment.close()


def _trajectory(
    request: RolloutRequest,
    sample_index: int,
    player: Player,
    *,
    transcript: Transcript,
    started_at_s: float,
    error: BaseException | None,
    attempt: int,
) -> Trajectory:
    status = {"length": "truncated", "abort": "aborted"}.get(transcript.finish_reason, "done")
    if error is not None:
        status = "aborted" if isinstance(error, TimeoutError) else "error"
    is_valid = status in ("done", "truncated")
    prompt = request.prompt
    return Trajectory(
        trajectory_id=f"{request.group_id}/{sample_index}/{player.policy}",
        group_id=request.group_id,
        sample_index=sample_index,
        group_size=request.group_size,
        attempt=request.attempt + attempt,
        policy=player.policy,
        prompt_id=prompt.prompt_id,
        environment=prompt.environment or player.environment_name,
        answer=prompt.answer,
        prompt_fields=prompt.fields,
        purpose=request.purpose,
        stage=request.stage,
        propensity=request.propensity,
        data_epoch=request.data_epoch,
        episode_id=f"{request.group_id}/{sample_index}",
        segments=(transcript.segment(),) if transcript.tokens else (),
        reward=transcript.reward if is_valid else 0.0,
        raw_outcome=transcript.reward if is_valid else 0.0,
        reward_parts=transcript.reward_parts,
        reward_valid=is_valid,
        status=status,
        error_kind=type(error).__name__ if error else "",
        error=error_text(error) if error else "",
        retryable=isinstance(error, TransientError),
        sampling=request.sampling,
        tokenizer_hash=player.chat.fingerprint,
        model_fingerprint=player.model_fingerprint,
        engine=player.engine_settings,
        on_swap=player.on_swap,
        started_at_s=started_at_s,
        finished_at_s=player.clock.now_s(),
        worker=player.worker,
    )


def error_text(error: BaseException) -> str:
    """What an error says, and the function and line that raised it.

    The place is what tells a user which of their functions it was.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return str(error)
    frame = frames[-1]
    place = f"{frame.name} at {Path(frame.filename).name}:{frame.lineno}"
    said = str(error).rstrip(".")
    return f"{said}, raised by {place}" if said else f"raised by {place}"
