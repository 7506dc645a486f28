"""Readers of the memory log: in a group or alone.

A partition changes hands only when its owner polls, as with Kafka: nobody reads it in between.
"""

import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from astra_stream.errors import TransientError
from astra_stream.log.interface import (
    Committed,
    Message,
    Partition,
    PartitionsChanged,
    missing_offset,
    require_same_topics,
)
from astra_stream.log.memory_state import GroupState, PartitionRecords


@dataclass(slots=True)
class SharedState:
    """All that a memory log holds, and the condition that guards it and tells of changes."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    partitions: dict[Partition, PartitionRecords] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    """Topic to its id."""
    groups: dict[str, GroupState] = field(default_factory=dict)
    num_members: int = 0


class MemoryReader:
    """Reads committed records of a memory log."""

    def __init__(
        self,
        state: SharedState,
        topics: Mapping[str, int],
        *,
        group: str,
        deadline_s: float,
        on_assigned: PartitionsChanged | None = None,
        on_revoked: PartitionsChanged | None = None,
    ) -> None:
        self.group = group
        self._state = state
        self._topics = topics
        self._ids = {topic: state.ids[topic] for topic in topics}
        self._deadline_s = deadline_s
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._positions: dict[Partition, int] = {}
        self._paused: set[Partition] = set()
        self._turn = 0
        self._closed = False
        self._member = 0

    def join(self) -> None:
        """Become a member of the group; partitions arrive while polling."""
        with self._state.changed:
            self._state.num_members += 1
            self._member = self._state.num_members
            self._group.join(self._member, self._topics)
            self._state.changed.notify_all()

    def take_all(self) -> None:
        """Read every partition, alone."""
        partitions = [
            Partition(t, index) for t, count in self._topics.items() for index in range(count)
        ]
        self._positions = self._starts(partitions)

    def poll(self, timeout_s: float, *, max_messages: int = 500) -> list[Message]:
        """Wait for records, at most ``timeout_s`` seconds; return what there is."""
        if self._closed:
            raise ValueError("reader must be open: got a poll after close. Make another.")
        end_s = time.monotonic() + timeout_s
        while True:
            if self._member:
                self._follow_group()
            with self._state.changed:
                require_same_topics(self._ids, self._state.ids)
                messages = self._take(max_messages)
                remaining_s = end_s - time.monotonic()
                if messages or remaining_s <= 0:
                    return messages
                if not self._is_out_of_step():
                    self._state.changed.wait(remaining_s)

    def assignment(self) -> frozenset[Partition]:
        """Partitions that this reader reads now."""
        return frozenset(self._positions)

    def committed(self, partitions: Collection[Partition]) -> dict[Partition, Committed]:
        """The group's stable positions; waits for pending transactions of the group."""
        with self._state.changed:
            stable = self._state.changed.wait_for(
                lambda: not any(self._group.pending[p] for p in partitions), self._deadline_s
            )
            if not stable:
                raise TransientError(
                    f"positions of group {self.group!r} must settle within "
                    f"{self._deadline_s:g} s: got a transaction that is still pending. "
                    "Stop its writer, or wait for its timeout."
                )
            known = self._group.committed
            return {p: known[p] for p in partitions if p in known}

    def positions(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Next offset to be delivered; at the end it lies past trailing control records."""
        self._require_assigned(partitions)
        return {p: self._positions[p] for p in partitions}

    def seek(self, partition: Partition, offset: int) -> None:
        """Continue reading ``partition`` at ``offset``."""
        self._require_assigned([partition])
        self._positions[partition] = offset

    def pause(self, partitions: Collection[Partition]) -> None:
        """Deliver nothing from these until ``resume``."""
        self._require_assigned(partitions)
        self._paused.update(partitions)

    def resume(self, partitions: Collection[Partition]) -> None:
        """Deliver from these again."""
        self._require_assigned(partitions)
        self._paused.difference_update(partitions)

    def end_offsets(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """High watermarks, pending transactions included."""
        with self._state.changed:
            return {p: self._state.partitions[p].end for p in partitions}

    def offsets_at(self, partitions: Collection[Partition], time_ms: int) -> dict[Partition, int]:
        """First offset at or after a time, per partition; the end where all is older."""
        with self._state.changed:
            return {p: self._state.partitions[p].first_at(time_ms) for p in partitions}

    def close(self) -> None:
        """Leave the group; positions that nobody committed are forgotten."""
        if self._closed:
            return
        self._closed = True
        if self._member:
            held = frozenset(self._positions)
            if held and self._on_revoked is not None:
                self._on_revoked(held)
            with self._state.changed:
                self._group.leave(self._member)
                self._state.changed.notify_all()
        self._positions.clear()

    def expire(self) -> None:
        """Be evicted, as after a poll that came too late: others get the partitions at once."""
        with self._state.changed:
            self._group.leave(self._member)
            self._state.changed.notify_all()

    def may_commit(self, partitions: Collection[Partition]) -> bool:
        """Whether the group still lets this reader move these positions; the caller locks."""
        if not self._member:
            return True
        return self._group.owned_by(self._member) >= frozenset(partitions)

    @property
    def _group(self) -> GroupState:
        return self._state.groups.setdefault(self.group, GroupState())

    def _require_assigned(self, partitions: Collection[Partition]) -> None:
        for partition in partitions:
            if partition not in self._positions:
                raise ValueError(
                    f"{partition} must be assigned to this reader: got "
                    f"{sorted(map(str, self._positions))}. Wait until it is assigned."
                )

    def _starts(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        known = self.committed(partitions) if self.group else {}
        beginnings = {p: Committed(self._state.partitions[p].start) for p in partitions}
        return {p: known.get(p, beginnings[p]).offset for p in partitions}

    def _is_out_of_step(self) -> bool:
        if not self._member:
            return False
        return self._group.due_to(self._member) != frozenset(self._positions)

    def _follow_group(self) -> None:
        with self._state.changed:
            if self._member not in self._group.members:
                wanted: frozenset[Partition] = frozenset()
                rejoin = True
            else:
                wanted = frozenset(p for p, m in self._group.target.items() if m == self._member)
                rejoin = False
        lost = frozenset(self._positions) - wanted
        if lost:
            self._let_go(lost)
        if rejoin:
            self.join()
        self._gain()

    def _let_go(self, lost: frozenset[Partition]) -> None:
        if self._on_revoked is not None:
            self._on_revoked(lost)
        with self._state.changed:
            for partition in lost:
                del self._positions[partition]
                self._paused.discard(partition)
                if self._group.owners.get(partition) == self._member:
                    del self._group.owners[partition]
            self._state.changed.notify_all()

    def _gain(self) -> None:
        with self._state.changed:
            gained = self._group.due_to(self._member) - frozenset(self._positions)
            for partition in gained:
                self._group.owners[partition] = self._member
        if not gained:
            return
        self._positions.update(self._starts(sorted(gained)))
        if self._on_assigned is not None:
            self._on_assigned(gained)

    def _take(self, max_messages: int) -> list[Message]:
        messages: list[Message] = []
        readable = sorted(self._positions.keys() - self._paused)
        if not readable:
            return messages
        self._turn = (self._turn + 1) % len(readable)
        for partition in readable[self._turn :] + readable[: self._turn]:
            for message in self._from(partition, max_messages - len(messages)):
                messages.append(message)
        return messages

    def _from(self, partition: Partition, max_messages: int) -> Iterator[Message]:
        held = self._state.partitions[partition]
        position = self._positions[partition]
        if not held.start <= position <= held.end:
            raise missing_offset(partition, position)
        while max_messages > 0 and position < held.stable_end:
            message = held.records[position]
            position += 1
            self._positions[partition] = position
            if message is not None:
                max_messages -= 1
                yield message
