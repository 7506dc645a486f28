"""Folds trajectories into groups and runs a chain of group processors over them.

A group that a stage does not pass on leaves an outcome with the stage's name as reason; one that a
stage cannot process leaves a dead letter besides. Either way its slot comes back.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from astra_stream.algorithms.grouping import make_group
from astra_stream.errors import AstraStreamError, RecordError, SchemaError, TransientError
from astra_stream.log.codec import Codec
from astra_stream.log.dead_letters import make_dead_letter
from astra_stream.log.interface import MAX_MESSAGE_BYTES, Message
from astra_stream.log.processor import (
    Effect,
    Forget,
    Incoming,
    Keep,
    Processor,
    Write,
    group_of,
)
from astra_stream.processing.recent import RecentlyEnded
from astra_stream.records import Group, Outcome, Trajectory

GROUP_OVERHEAD_BYTES = 64 * 1024
"""What a group takes beside its trajectories, in its topic and in the changelogs that hold it."""
MAX_CONSECUTIVE_FAILURES = 3
"""Unexpected errors in a row after which the stage, not the record, is at fault."""


class StageError(AstraStreamError):
    """A stage failed on every record it was given: a bug in the stage; exit 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A group processor with its parameters bound, and its name in outcomes."""

    name: str
    function: Callable[[Group], Iterable[Group]] | None = None
    """A stateless processor; None where ``stepper`` is given."""
    stepper: Any = None
    """A ``GroupStep``."""


class DeadLetters:
    """Makes dead letters, and counts each stage's failures in a row."""

    def __init__(self, topic: str, service: str) -> None:
        self._topic = topic
        self._service = service
        self._in_a_row: Counter[str] = Counter()

    def succeeded(self, stage: str) -> None:
        """A record went through a stage."""
        self._in_a_row[stage] = 0

    def letter(self, message: Message, stage: str, error: Exception, now_s: float) -> Write:
        """A dead letter for ``message``.

        Raises:
            StageError: This was one unexpected error too many in a row.
        """
        expected = isinstance(error, RecordError)
        self._in_a_row[stage] = 0 if expected else self._in_a_row[stage] + 1
        if self._in_a_row[stage] >= MAX_CONSECUTIVE_FAILURES:
            raise StageError(
                f"{self._service}: stage {stage} must process a record: got "
                f"{self._in_a_row[stage]} failures in a row, the last at {message.coordinates} "
                f"({type(error).__name__}: {error}). Correct the stage."
            ) from error
        record = make_dead_letter(message, error, service=self._service, stage=stage, now_s=now_s)
        return Write(self._topic, message.coordinates, record)


def process_message(
    message: Message, processor: Processor, *, codec: Codec, letters: DeadLetters, now_s: float
) -> list[Effect]:
    """Decode a record and hand it over; one that fails becomes a dead letter."""
    try:
        record = codec.decode(message.value or b"")
    except RecordError as error:
        letter = letters.letter(message, processor.name, error, now_s)
        return [letter, *processor.unreadable(message, now_s)]
    try:
        effects = list(processor.handle(Incoming(message, record), now_s))
    except (StageError, TransientError):
        raise
    except Exception as error:  # noqa: BLE001 - user code may raise anything; the flow goes on
        letter = letters.letter(message, processor.name, error, now_s)
        return [letter, *processor.unreadable(message, now_s)]
    letters.succeeded(processor.name)
    return effects


def require_trajectory(record: Any) -> Trajectory:
    """Refuse a record of another kind, which is no failure of the pipeline."""
    if not isinstance(record, Trajectory):
        raise SchemaError(
            f"the record must be a Trajectory: got {type(record).__name__}. "
            "Check which topic it was written to."
        )
    return record


class Pipeline:
    """A processor: trajectories in, groups and outcomes out."""

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        policy: str,
        groups_topic: str,
        outcomes_topic: str,
        letters: DeadLetters,
        codec: Codec,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        min_valid: int = 2,
    ) -> None:
        self._stages = stages
        self._policy = policy
        self._groups_topic = groups_topic
        self._outcomes_topic = outcomes_topic
        self._letters = letters
        self._codec = codec
        self._max_group_bytes = max_message_bytes - GROUP_OVERHEAD_BYTES
        self._min_valid = min_valid
        self._states: dict[int, MutableMapping[str, Any]] = {}
        self._ended: dict[int, RecentlyEnded] = {}

    @property
    def name(self) -> str:
        """Word for logs, dead letters and the changelog."""
        return f"pipeline.{self._policy}"

    def restore(self, partition: int, entries: MutableMapping[str, Any]) -> None:
        """Take over the unfinished groups and the stages' states of a partition."""
        self._states[partition] = entries
        self._ended[partition] = RecentlyEnded(entries)

    def release(self, partition: int) -> None:
        """Another process has the partition now."""
        self._states.pop(partition, None)
        self._ended.pop(partition, None)

    def handle(self, incoming: Incoming, now_s: float) -> Iterator[Effect]:
        """Add a trajectory to its group; a complete group goes through the stages."""
        trajectory = require_trajectory(incoming.record)
        partition, group_id = incoming.message.partition, trajectory.group_id
        if group_id in self._ended_in(partition):
            return
        key, state = f"group/{group_id}", self._states[partition]
        members: dict[int, bytes] = state.get(key, {}) | {
            trajectory.sample_index: incoming.message.value or b""
        }
        self._require_size(group_id, sum(map(len, members.values())))
        if len(members) < trajectory.group_size:
            state[key] = members
            yield Keep(key, members)
            return
        yield from self._close(partition, group_id)
        trajectories = [self._codec.decode(value) for value in members.values()]
        yield from self._finish(make_group(trajectories), incoming.message, now_s)

    def unreadable(self, message: Message, now_s: float) -> Iterator[Effect]:
        """Drop the group of a trajectory that does not decode; what else comes of it is late."""
        group_id = group_of(message)
        if not group_id or group_id in self._ended_in(message.partition):
            return
        yield from self._close(message.partition, group_id)
        record = Outcome(
            group_id=group_id,
            prompt_id=(message.key or b"").decode(errors="replace"),
            policy=self._policy,
            event="dropped",
            stage="pipeline",
            reason="dead_letter",
            at_s=now_s,
        )
        yield Write(self._outcomes_topic, record.prompt_id, record)

    def _ended_in(self, partition: int) -> RecentlyEnded:
        return self._ended[partition]

    def _close(self, partition: int, group_id: str) -> Iterator[Effect]:
        self._states[partition].pop(f"group/{group_id}", None)
        yield Forget(f"group/{group_id}")
        yield self._ended_in(partition).add(group_id)

    def tick(self, now_s: float) -> Iterator[Effect]:
        """Nothing here depends on time."""
        return iter(())

    def _finish(self, group: Group, message: Message, now_s: float) -> Iterator[Effect]:
        if group.statistics.num_valid < self._min_valid:
            yield self._outcome(group, now_s, dropped_by="too_few_valid")
            return
        passed = [group]
        for index, stage in enumerate(self._stages):
            try:
                passed, effects = self._run_stage(index, stage, passed, message.partition)
            except TransientError:
                raise
            except Exception as error:  # noqa: BLE001 - a user's stage may raise anything
                yield self._letters.letter(message, stage.name, error, now_s)
                yield self._outcome(group, now_s, dropped_by="dead_letter")
                return
            self._letters.succeeded(stage.name)
            yield from effects
            if not passed:
                yield self._outcome(group, now_s, dropped_by=stage.name)
                return
        try:
            writes = [self._group(kept) for kept in passed]
        except RecordError as error:
            yield self._letters.letter(message, self.name, error, now_s)
            yield self._outcome(group, now_s, dropped_by="dead_letter")
            return
        for kept, write in zip(passed, writes, strict=True):
            yield write
            yield self._outcome(kept, now_s)

    def _group(self, group: Group) -> Write:
        value = self._codec.encode(group)
        self._require_size(group.group_id, len(value))
        return Write(
            self._groups_topic, group.prompt_id, group, group_id=group.group_id, value=value
        )

    def _require_size(self, group_id: str, num_bytes: int) -> None:
        if num_bytes > self._max_group_bytes:
            raise RecordError(
                f"group {group_id!r} must have at most {self._max_group_bytes} bytes, to be one "
                f"record: got {num_bytes}. Lower group_size or max_new_tokens."
            )

    def _run_stage(
        self, index: int, stage: Stage, groups: Sequence[Group], partition: int
    ) -> tuple[list[Group], list[Effect]]:
        if stage.function is not None:
            return [out for group in groups for out in stage.function(group)], []
        states = self._states[partition]
        passed: list[Group] = []
        effects: list[Effect] = []
        for group in groups:
            key = f"stage/{index}/{stage.stepper.key(group)}"
            state = stage.stepper.State(**states.get(key, {}))
            after, kept = stage.stepper.step(state, group)
            states[key] = dataclasses.asdict(after)
            effects.append(Keep(key, states[key]))
            passed.extend(kept)
        return passed, effects

    def _outcome(self, group: Group, now_s: float, *, dropped_by: str = "") -> Write:
        valid = [t for t in group.trajectories if t.reward_valid]
        record = Outcome(
            group_id=group.group_id,
            prompt_id=group.prompt_id,
            policy=group.policy,
            event="dropped" if dropped_by else "completed",
            stage="pipeline",
            reason=dropped_by,
            rewards=np.array([t.raw_outcome for t in valid], dtype="<f4"),
            lengths=np.array([t.trained_tokens for t in valid], dtype="<i4"),
            min_version=group.min_version.number,
            max_version=group.max_version.number,
            at_s=now_s,
        )
        return Write(self._outcomes_topic, group.prompt_id, record)
