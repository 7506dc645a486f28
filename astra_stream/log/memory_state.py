"""What a memory log remembers: partitions and consumer groups; no locks here.

A partition keeps ``None`` where readers must see nothing: control records and aborted writes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from astra_stream.log.interface import Committed, Message, Partition


@dataclass(slots=True)
class PartitionRecords:
    """Records of one partition; the index is the offset."""

    records: list[Message | None] = field(default_factory=list)
    """None is a hole."""
    start: int = 0
    """First offset that has not been trimmed."""
    pending: dict[int, int] = field(default_factory=dict)
    """Open transaction to its first offset here."""

    @property
    def end(self) -> int:
        """High watermark."""
        return len(self.records)

    @property
    def stable_end(self) -> int:
        """Last stable offset: committed readers stop here."""
        return min(self.pending.values(), default=self.end)

    def append(self, message: Message, transaction: int) -> None:
        """Add a record of an open transaction."""
        self.pending.setdefault(transaction, message.offset)
        self.records.append(message)

    def finish(self, transaction: int, offsets: Sequence[int], *, committed: bool) -> None:
        """End a transaction: its control record takes an offset; aborted records become holes."""
        del self.pending[transaction]
        if not committed:
            for offset in offsets:
                self.records[offset] = None
        self.records.append(None)

    def first_at(self, time_ms: int) -> int:
        """First offset at or after a time, or the end."""
        for message in self.records[self.start :]:
            if message is not None and message.timestamp_ms >= time_ms:
                return message.offset
        return self.end


@dataclass(slots=True)
class GroupState:
    """A consumer group: positions, members, and who reads what."""

    committed: dict[Partition, Committed] = field(default_factory=dict)
    pending: Counter[Partition] = field(default_factory=Counter)
    """Open transactions that hold a position of the partition."""
    members: dict[int, Mapping[str, int]] = field(default_factory=dict)
    """Member id to the topics that it wants and their partitions, in the order of joining."""
    owners: dict[Partition, int] = field(default_factory=dict)
    """Who reads a partition until it lets go."""
    target: dict[Partition, int] = field(default_factory=dict)
    """Who shall read it."""

    def join(self, member: int, topics: Mapping[str, int]) -> None:
        """Add a member and say anew who shall read what."""
        self.members[member] = topics
        self.target = balance(self.members, self.target)

    def leave(self, member: int) -> None:
        """Remove a member; what it read is free at once."""
        self.members.pop(member, None)
        self.owners = {p: owner for p, owner in self.owners.items() if owner != member}
        self.target = balance(self.members, self.target)

    def owned_by(self, member: int) -> frozenset[Partition]:
        """Partitions that a member reads."""
        return frozenset(p for p, owner in self.owners.items() if owner == member)

    def due_to(self, member: int) -> frozenset[Partition]:
        """Partitions that a member shall read and that nobody else holds."""
        return frozenset(
            p
            for p, wanted in self.target.items()
            if wanted == member and self.owners.get(p, member) == member
        )


def balance(
    members: Mapping[int, Mapping[str, int]], before: Mapping[Partition, int]
) -> dict[Partition, int]:
    """Share partitions out so that loads differ by at most one and few of them move."""
    load: dict[int, list[Partition]] = {member: [] for member in members}
    topics = {topic: count for wanted in members.values() for topic, count in wanted.items()}
    for topic in sorted(topics):
        candidates = [member for member, wanted in members.items() if topic in wanted]
        for partition in (Partition(topic, index) for index in range(topics[topic])):
            owner = before.get(partition)
            if owner not in candidates:
                owner = min(candidates, key=lambda member: len(load[member]))
            load[owner].append(partition)
    while _move_one(members, load):
        pass
    return {partition: member for member, held in load.items() for partition in held}


def _move_one(members: Mapping[int, Mapping[str, int]], load: dict[int, list[Partition]]) -> bool:
    for giver in sorted(load, key=lambda member: -len(load[member])):
        for taker in sorted(load, key=lambda member: len(load[member])):
            if len(load[giver]) - len(load[taker]) < 2:
                break
            for partition in reversed(load[giver]):
                if partition.topic in members[taker]:
                    load[giver].remove(partition)
                    load[taker].append(partition)
                    return True
    return False
