"""Readers on Kafka: members of a group, or alone with every partition.

A partition starts where its group committed, else at its beginning. A position that the log no
longer has is an error and never a jump: ``auto.offset.reset`` is ``error``.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from astra_stream.errors import AstraStreamError, RebalancedError
from astra_stream.log.interface import (
    Committed,
    Message,
    Partition,
    PartitionsChanged,
    damaged,
    require_same_topics,
)
from astra_stream.log.kafka_client import (
    FENCED,
    RETRIABLE,
    Connection,
    NotYetError,
    Settings,
    error_of,
    fenced,
    lost_place,
    refused,
)
from astra_stream.log.watchdog import Guard

Result = TypeVar("Result")

SLICE_S = 1.0
"""Longest single wait inside the client, so that a broker that is down is noticed."""
PROBE_S = 1.0
TOPICS_LOOKED_AT_S = 10.0
"""How often topics are looked at, since the client reads on in silence when one is deleted."""


@dataclass(frozen=True, slots=True)
class Lookups:
    """Questions about offsets that a reader passes on."""

    start_offsets: Callable[[Collection[Partition]], dict[Partition, int]]
    """First offsets there are."""
    end_offsets: Callable[[Collection[Partition]], dict[Partition, int]]
    """High watermarks."""
    offsets_at: Callable[[Collection[Partition], int], dict[Partition, int]]
    """First offsets at or after a time in milliseconds."""
    topic_ids: Callable[[Collection[str]], dict[str, str]]
    """Topic to its id; a missing one is left out."""


class KafkaReader:
    """Reads committed records; made by ``KafkaLog``."""

    def __init__(
        self,
        connection: Connection,
        topics: Sequence[str],
        *,
        group: str,
        settings: Settings,
        lookups: Lookups,
        on_assigned: PartitionsChanged | None = None,
        on_revoked: PartitionsChanged | None = None,
    ) -> None:
        self.group = group
        self._connection = connection
        self._topics = list(topics)
        self._name = f"reader of {', '.join(topics)}"
        self._lookups = lookups
        self._ids = lookups.topic_ids(self._topics)
        self._looks_again_s = time.monotonic() + TOPICS_LOOKED_AT_S
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._consumer = Consumer(settings)
        self._metadata: object = self._consumer.consumer_group_metadata()
        self._polling = threading.RLock()
        self._assigned: set[Partition] = set()
        self._starting: dict[Partition, int] | None = None
        self._paused: set[Partition] = set()
        self._reached: dict[Partition, int] = {}
        self._batch: list[Message] = []
        self._errors: deque[AstraStreamError] = deque()
        self._guard: Guard | None = None
        self._is_member = False
        self._closed = False

    def join(self) -> None:
        """Become a member of the group; partitions arrive while polling."""
        self._is_member = True
        self._consumer.subscribe(
            self._topics, on_assign=self._gained, on_revoke=self._lost, on_lost=self._lost
        )

    def take_all(self, partitions: Sequence[Partition]) -> None:
        """Read these partitions, alone; the client is told at the first poll."""
        for topic in self._topics:
            # The client asks for the leaders of a new topic only once a second.
            self._call("leaders", lambda s, topic=topic: self._consumer.list_topics(topic, s))
        self._assigned = set(partitions)
        self._starting = self._starts(partitions)
        self._reached = dict(self._starting)

    def poll(self, timeout_s: float, *, max_messages: int = 500) -> list[Message]:
        """Wait for records, at most ``timeout_s`` seconds; return what there is."""
        if self._closed:
            raise ValueError("reader must be open: got a poll after close. Make another.")
        if self._errors:
            raise self._errors.popleft()
        self._start_alone()
        self._require_same_topics()
        with self._polling:
            batch = self._collect(time.monotonic() + timeout_s, max_messages)
            if self._is_member:
                self._metadata = self._consumer.consumer_group_metadata()
        if self._errors and not batch:
            raise self._errors.popleft()
        return batch

    def _collect(self, ends_s: float, max_messages: int) -> list[Message]:
        self._batch = []
        while len(self._batch) < max_messages:
            waits_s = 0.0 if self._batch else max(ends_s - time.monotonic(), 0.0)
            message = self._next(min(waits_s, SLICE_S))
            if message is not None:
                self._take(message)
            elif self._batch or self._errors or time.monotonic() >= ends_s:
                break
            else:
                self._require_reachable()
        batch = self._batch
        self._batch = []
        return batch

    def assignment(self) -> frozenset[Partition]:
        """Partitions that this reader reads now."""
        return frozenset(self._assigned)

    def committed(self, partitions: Collection[Partition]) -> dict[Partition, Committed]:
        """The group's stable positions; waits for pending transactions, to the deadline."""
        if not partitions:
            return {}
        asked = [TopicPartition(p.topic, p.index) for p in partitions]
        answers = self._call("positions", lambda s: self._committed_once(asked, s))
        return {
            Partition(a.topic, a.partition): Committed(a.offset, a.metadata or "")
            for a in answers
            if a.offset >= 0
        }

    def positions(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Next offset to be delivered; at the end it lies past trailing control records."""
        self._require_assigned(partitions)
        return {p: self._reached[p] for p in partitions}

    def seek(self, partition: Partition, offset: int) -> None:
        """Continue reading ``partition`` at ``offset``."""
        self._require_assigned([partition])
        self._reached[partition] = offset
        if self._starting is not None and partition in self._starting:
            self._starting[partition] = offset
            return
        self._call("seek", lambda _: self._seek_once(partition, offset))

    def pause(self, partitions: Collection[Partition]) -> None:
        """Deliver nothing from these until ``resume``; membership goes on."""
        self._require_assigned(partitions)
        self._paused.update(partitions)
        if self._starting is None:
            self._consumer.pause([TopicPartition(p.topic, p.index) for p in partitions])

    def resume(self, partitions: Collection[Partition]) -> None:
        """Deliver from these again."""
        self._require_assigned(partitions)
        self._paused.difference_update(partitions)
        if self._starting is None:
            self._consumer.resume([TopicPartition(p.topic, p.index) for p in partitions])

    def end_offsets(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """High watermarks, pending transactions included."""
        return self._lookups.end_offsets(partitions)

    def offsets_at(self, partitions: Collection[Partition], time_ms: int) -> dict[Partition, int]:
        """First offset at or after a time, per partition; the end where all is older."""
        return self._lookups.offsets_at(partitions, time_ms)

    def close(self) -> None:
        """Leave the group and free the client; twice is harmless."""
        if self._closed:
            return
        self._closed = True
        self._let_go(frozenset(self._assigned))
        with self._connection.watchdog.guard(self._connection.deadline_s, f"{self._name}: close"):
            self._consumer.close()

    def group_metadata(self) -> object:
        """Proof of membership for a transaction: as of now, or of the last poll while one waits.

        Asked for while another thread polls, the client was seen to stop the whole process for
        15 s. A proof gone stale fails the transaction, no more.
        """
        if self._polling.acquire(blocking=False):
            try:
                self._metadata = self._consumer.consumer_group_metadata()
            finally:
                self._polling.release()
        return self._metadata

    def require_owned(self, partitions: Collection[Partition]) -> None:
        """Refuse positions of partitions that the group has taken away."""
        foreign = sorted(str(p) for p in partitions if p not in self._assigned)
        if self._is_member and foreign:
            raise RebalancedError(
                f"group {self.group!r} must still give this reader {foreign}: got another "
                "member there. Drop the work of partitions that were taken away."
            )

    def _call(self, verb: str, action: Callable[[float], Result]) -> Result:
        what = f"{self._name}: {verb}"
        try:
            return self._connection.call(what, action)
        except KafkaException as exception:
            raise refused(what, error_of(exception)) from exception

    def _committed_once(
        self, asked: list[TopicPartition], timeout_s: float
    ) -> list[TopicPartition]:
        answers = self._consumer.committed(asked, timeout_s)
        for answer in answers:
            if answer.error is not None:
                raise KafkaException(answer.error)
        return answers

    def _seek_once(self, partition: Partition, offset: int) -> None:
        try:
            self._consumer.seek(TopicPartition(partition.topic, partition.index, offset))
        except KafkaException as exception:
            if error_of(exception).code() != KafkaError._STATE:
                raise
            # The client is still taking up the partition.
            raise NotYetError from exception

    def _start_alone(self) -> None:
        if self._is_member or self._starting is None:
            return
        starting, self._starting = self._starting, None
        self._consumer.assign(_at(starting))
        self._apply_pauses(starting)

    def _starts(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        known = self.committed(partitions) if self.group else {}
        # Asked here, since the client's own question about the beginning takes it half a second.
        beginnings = self._lookups.start_offsets([p for p in partitions if p not in known])
        return beginnings | {p: position.offset for p, position in known.items()}

    def _next(self, timeout_s: float) -> KafkaMessage | None:
        if timeout_s <= 0:
            return self._consumer.poll(0)
        watchdog = self._connection.watchdog
        with watchdog.guard(self._connection.deadline_s, f"{self._name}: poll") as self._guard:
            message = self._consumer.poll(timeout_s)
        self._guard = None
        return message

    def _take(self, message: Any) -> None:
        error = message.error()
        if error is None:
            self._connection.answered()
            converted = _convert(message)
            self._reached[converted.source] = converted.offset + 1
            self._batch.append(converted)
            return
        what = f"{self._name}: poll"
        if error.code() == KafkaError._PARTITION_EOF:
            self._reached[Partition(message.topic(), message.partition())] = message.offset()
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            place = Partition(message.topic(), message.partition())
            self._errors.append(lost_place(place, message.offset(), error))
        elif error.code() == KafkaError._BAD_MSG:
            place = Partition(message.topic(), message.partition())
            self._errors.append(damaged(place, error.str()))
        elif error.fatal() or error.code() in FENCED:
            self._errors.append(fenced(what, error))
        elif error.code() == KafkaError._MAX_POLL_EXCEEDED or error.code() in RETRIABLE:
            self._connection.note(error)
        else:
            self._errors.append(refused(what, error))

    def _require_same_topics(self) -> None:
        if time.monotonic() < self._looks_again_s or self._connection.down_s is not None:
            return
        self._looks_again_s = time.monotonic() + TOPICS_LOOKED_AT_S
        require_same_topics(self._ids, self._lookups.topic_ids(self._topics))

    def _require_reachable(self) -> None:
        if self._connection.down_s is None:
            return
        try:
            self._consumer.list_topics(self._topics[0], PROBE_S)
        except KafkaException as exception:
            self._connection.note(error_of(exception))
            if self._connection.down_s > self._connection.deadline_s:
                raise self._connection.unreachable(f"{self._name}: poll") from exception
        else:
            self._connection.answered()

    def _gained(self, consumer: Consumer, gained: list[TopicPartition]) -> None:
        partitions = frozenset(Partition(g.topic, g.partition) for g in gained)
        with self._unwatched():
            self._starting = self._starts(partitions)
            self._reached.update(self._starting)
            self._assigned |= partitions
            if partitions and self._on_assigned is not None:
                self._on_assigned(partitions)
        starting, self._starting = self._starting, None
        consumer.incremental_assign(_at(starting))
        self._apply_pauses(starting)

    def _lost(self, consumer: Consumer, lost: list[TopicPartition]) -> None:
        partitions = frozenset(Partition(p.topic, p.partition) for p in lost)
        with self._unwatched():
            self._let_go(partitions & self._assigned)
        still_paused = partitions & self._paused
        if still_paused:
            # The client would remember the pause and give the partition back paused.
            consumer.resume([TopicPartition(p.topic, p.index) for p in still_paused])
        self._paused -= partitions
        self._batch = [message for message in self._batch if message.source not in partitions]
        consumer.incremental_unassign(lost)

    def _let_go(self, partitions: frozenset[Partition]) -> None:
        if partitions and self._is_member and self._on_revoked is not None:
            self._on_revoked(partitions)
        self._assigned -= partitions

    @contextmanager
    def _unwatched(self) -> Generator[None]:
        if self._guard is None:
            yield
            return
        with self._guard.suspended():
            yield

    def _apply_pauses(self, partitions: Collection[Partition]) -> None:
        paused = [TopicPartition(p.topic, p.index) for p in partitions if p in self._paused]
        if paused:
            self._consumer.pause(paused)

    def _require_assigned(self, partitions: Collection[Partition]) -> None:
        for partition in partitions:
            if partition not in self._assigned:
                raise ValueError(
                    f"{partition} must be assigned to this reader: got "
                    f"{sorted(map(str, self._assigned))}. Wait until it is assigned."
                )


def _at(starting: Mapping[Partition, int]) -> list[TopicPartition]:
    return [TopicPartition(p.topic, p.index, offset) for p, offset in starting.items()]


def _convert(message: Any) -> Message:
    return Message(
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        message.timestamp()[1],
        tuple(message.headers() or ()),
    )
