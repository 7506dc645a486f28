"""Decides which groups a version is trained on: groups in, batches out.

Batch k trains version k. Groups are taken oldest first; one whose staleness in batch k would exceed
the bound is dropped as expired. With ``on_slow = "wait"`` a batch waits for groups that are still
being played when, without them, the batches to come could not take all in time. It knows what is
being played from the requests.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from astra_stream.algorithms.advantage import per_sample
from astra_stream.algorithms.interface import AdvantageFunction
from astra_stream.algorithms.packing import pack_batch, require_packable, trainable_samples
from astra_stream.algorithms.scheduling import fits_later
from astra_stream.algorithms.staleness import Order, is_expired, order_groups
from astra_stream.log.codec import Codec
from astra_stream.log.interface import Message
from astra_stream.log.processor import Effect, Finish, Forget, Incoming, Keep, Write, group_of
from astra_stream.records import Group, Outcome, RolloutRequest

CURSOR = "cursor"
OPEN = "open/"
EARLY = "early/"
READY = "ready/"


@dataclass(frozen=True, slots=True, kw_only=True)
class AssemblerSettings:
    """What the run file says of batches."""

    policy: str
    groups_per_batch: int
    max_staleness: int
    row_tokens: int
    """Length of a packed row."""
    order: Order = "edf"
    on_slow: Literal["wait", "expire"] = "wait"
    last_batch: Literal["train", "drop"] = "train"
    """What becomes of a short remainder."""
    max_drops: int
    """Drops without a batch after which there is no signal."""
    on_no_signal: Literal["stop", "short_batch"] = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Where the assembler stands."""

    next_version: int = 0
    """Number of the version that the next batch trains."""
    num_drops: int = 0
    """Drops since the last batch."""
    num_requests: int = 0
    """Requests seen."""
    num_issued: int = -1
    """Requests of the whole run; -1 until the scheduler has closed."""
    is_finished: bool = False


class Assembler:
    """A processor with one instance: see the module's docstring."""

    def __init__(
        self,
        settings: AssemblerSettings,
        *,
        advantage: AdvantageFunction,
        codec: Codec,
        requests_topic: str,
        batches_topic: str,
        outcomes_topic: str,
    ) -> None:
        self._settings = settings
        self._advantage = advantage
        self._codec = codec
        self._requests_topic = requests_topic
        self._batches_topic = batches_topic
        self._outcomes_topic = outcomes_topic
        self._cursor = self._kept_cursor = Cursor()
        self._open: dict[str, tuple[int, float]] = {}
        self._early: set[str] = set()
        self._ready: dict[str, Group] = {}
        self._num_arrived = 0

    @property
    def name(self) -> str:
        """Word for logs, dead letters and the changelog."""
        return f"assembler.{self._settings.policy}"

    def restore(self, partition: int, entries: Mapping[str, Any]) -> None:
        """Take over what is open and what is ready."""
        if CURSOR in entries:
            self._cursor = self._kept_cursor = Cursor(**entries[CURSOR])
        arrived: list[tuple[int, Group]] = []
        for key, value in entries.items():
            if key.startswith(OPEN):
                self._open[key.removeprefix(OPEN)] = (value[0], value[1])
            elif key.startswith(EARLY):
                self._early.add(key.removeprefix(EARLY))
            elif key.startswith(READY):
                arrived.append((value[0], self._codec.decode(value[1])))
        self._num_arrived = 1 + max((number for number, _ in arrived), default=-1)
        self._ready = {g.group_id: g for _, g in sorted(arrived, key=lambda pair: pair[0])}

    def release(self, partition: int) -> None:
        """Never called: an assembler shares nothing."""

    def handle(self, incoming: Incoming, now_s: float) -> Iterator[Effect]:
        """Take a request, a group or an outcome into account."""
        record = incoming.record
        if isinstance(record, RolloutRequest) and record.purpose == "train":
            until_s = record.issued_at_s + record.deadline_s if record.deadline_s else np.inf
            version = record.policies[0].min_version.number
            yield from self._requested(record.group_id, version, until_s)
        elif isinstance(record, Group):
            yield from self._take(record, incoming.message, now_s)
        elif isinstance(record, Outcome) and record.event == "closed":
            self._cursor = replace(self._cursor, num_issued=record.num_issued)
        elif isinstance(record, Outcome) and is_dropped_before(record):
            self._cursor = replace(self._cursor, num_drops=self._cursor.num_drops + 1)
            yield from self._arrived(record.group_id)

    def unreadable(self, message: Message, now_s: float) -> Iterator[Effect]:
        """Count a request, whose group the worker ends; drop a group."""
        group_id = group_of(message)
        if group_id and message.topic == self._requests_topic:
            yield from self._requested(group_id, self._cursor.next_version, np.inf)
        elif group_id and group_id not in self._ready:
            yield from self._arrived(group_id)
            prompt_id = (message.key or b"").decode(errors="replace")
            yield self._dropped(group_id, prompt_id, "dead_letter", now_s)

    def tick(self, now_s: float) -> Iterator[Effect]:
        """Write every batch that can be written."""
        while not self._cursor.is_finished:
            yield from self._expire(now_s)
            size = self._next_size(now_s)
            if size is None:
                break
            yield from self._assemble(size, now_s)
        if self._cursor != self._kept_cursor:
            self._kept_cursor = self._cursor
            yield Keep(CURSOR, asdict(self._cursor))
        if self._cursor.is_finished:
            yield Finish()

    def _requested(self, group_id: str, version: int, until_s: float) -> Iterator[Effect]:
        """The group is being played, unless its end came before its request."""
        self._cursor = replace(self._cursor, num_requests=self._cursor.num_requests + 1)
        if group_id in self._early:
            self._early.remove(group_id)
            yield Forget(EARLY + group_id)
            return
        value = (version, float(until_s))
        self._open[group_id] = value
        yield Keep(OPEN + group_id, list(value))

    def _take(self, group: Group, message: Message, now_s: float) -> Iterator[Effect]:
        """Let a group wait for its batch; one of which nothing trains would never be trained.

        Raises:
            RecordError: A sample could not be part of any batch.
        """
        samples = list(trainable_samples([group]))
        require_packable(samples, self._settings.row_tokens)
        yield from self._arrived(group.group_id)
        if not samples:
            yield self._dropped(group.group_id, group.prompt_id, "nothing_trains", now_s)
            return
        self._ready[group.group_id] = group
        yield Keep(READY + group.group_id, [self._num_arrived, message.value])
        self._num_arrived += 1

    def _arrived(self, group_id: str) -> Iterator[Effect]:
        """The group is no longer played; its request may still be on its way to here."""
        if self._open.pop(group_id, None) is not None:
            yield Forget(OPEN + group_id)
        else:
            self._early.add(group_id)
            yield Keep(EARLY + group_id, True)

    def _expire(self, now_s: float) -> Iterator[Effect]:
        version = self._cursor.next_version
        for group in list(self._ready.values()):
            if is_expired(
                group, trains_version=version, max_staleness=self._settings.max_staleness
            ):
                yield from self._drop(group, "expired", now_s)

    def _drop(self, group: Group, reason: str, now_s: float) -> Iterator[Effect]:
        del self._ready[group.group_id]
        yield Forget(READY + group.group_id)
        record = Outcome(
            group_id=group.group_id,
            prompt_id=group.prompt_id,
            policy=group.policy,
            event="dropped",
            stage="assembler",
            reason=reason,
            rewards=np.array(group.rewards, dtype="<f4"),
            min_version=group.min_version.number,
            max_version=group.max_version.number,
            staleness=self._cursor.next_version - group.min_version.number,
            at_s=now_s,
        )
        self._cursor = replace(self._cursor, num_drops=self._cursor.num_drops + 1)
        yield Write(self._outcomes_topic, group.prompt_id, record)

    def _dropped(self, group_id: str, prompt_id: str, reason: str, now_s: float) -> Write:
        """The end of a group that was never ready."""
        self._cursor = replace(self._cursor, num_drops=self._cursor.num_drops + 1)
        record = Outcome(
            group_id=group_id,
            prompt_id=prompt_id,
            policy=self._settings.policy,
            event="dropped",
            stage="assembler",
            reason=reason,
            at_s=now_s,
        )
        return Write(self._outcomes_topic, prompt_id, record)

    def _next_size(self, now_s: float) -> int | None:
        """Groups to put into the next batch now; None to go on waiting."""
        settings, num_ready = self._settings, len(self._ready)
        if self._is_closing():
            return min(num_ready, settings.groups_per_batch)
        if settings.on_slow == "wait" and self._waits_for_slow(now_s):
            return None
        if num_ready >= settings.groups_per_batch:
            return settings.groups_per_batch
        no_signal = self._cursor.num_drops > settings.max_drops
        if settings.on_no_signal == "short_batch" and no_signal and num_ready:
            return num_ready
        return None

    def _is_closing(self) -> bool:
        return self._cursor.num_requests == self._cursor.num_issued and not self._open

    def _waits_for_slow(self, now_s: float) -> bool:
        playing = [version for version, until in self._open.values() if now_s < until]
        ready = order_groups(list(self._ready.values()), order=self._settings.order)
        later = [group.min_version.number for group in ready[self._settings.groups_per_batch :]]
        return bool(playing) and not fits_later(
            [*playing, *later],
            next_version=self._cursor.next_version + 1,
            groups_per_batch=self._settings.groups_per_batch,
            max_staleness=self._settings.max_staleness,
        )

    def _assemble(self, size: int, now_s: float) -> Iterator[Effect]:
        settings = self._settings
        is_last = self._is_closing() and len(self._ready) <= settings.groups_per_batch
        if is_last and size < settings.groups_per_batch and settings.last_batch == "drop":
            for group in list(self._ready.values()):
                yield from self._drop(group, "short_remainder", now_s)
            size = 0
        chosen = order_groups(list(self._ready.values()), order=settings.order)[:size]
        yield from self._write_batch(chosen, is_last=is_last)
        for group in chosen:
            del self._ready[group.group_id]
            yield Forget(READY + group.group_id)
        self._cursor = replace(
            self._cursor,
            next_version=self._cursor.next_version + 1,
            num_drops=0,
            is_finished=is_last,
        )

    def _write_batch(self, groups: Sequence[Group], *, is_last: bool) -> Iterator[Effect]:
        settings, version = self._settings, self._cursor.next_version
        columns = {}
        if groups:
            advantages = self._advantage(tuple(groups))
            columns["advantages"] = per_sample(groups, advantages)
        batch_id = f"{settings.policy}/{version}"
        slices = pack_batch(
            groups,
            batch_id=batch_id,
            policy=settings.policy,
            trains_version=version,
            row_tokens=settings.row_tokens,
            sample_columns=columns,
            last=is_last,
        )
        for piece in slices:
            yield Write(self._batches_topic, batch_id, piece, partition=0)


def is_dropped_before(outcome: Outcome) -> bool:
    """Say whether a stage before the assembler dropped the group."""
    return outcome.event == "dropped" and outcome.stage != "assembler"
