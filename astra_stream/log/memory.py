"""A whole log in memory, under Kafka's contract: transactions, groups, fencing, holes.

For tests, demonstrations and docs. One process, any number of threads; nothing outlives it.
"""

from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager

from astra_stream.clock import Clock, SystemClock
from astra_stream.errors import FencedError, RebalancedError
from astra_stream.log.interface import (
    MAX_MESSAGE_BYTES,
    Committed,
    Message,
    Partition,
    PartitionsChanged,
    Reader,
    TopicSettings,
    existing_topic,
    missing_topic,
    require_size,
)
from astra_stream.log.memory_reader import MemoryReader, SharedState
from astra_stream.log.memory_state import GroupState, PartitionRecords
from astra_stream.log.partitioner import partition_for


class MemoryLog:
    """Topics, groups and transactional ids in dictionaries; a log and its own admin.

    Args:
        partitions: Topics to make at once, name to number of partitions.
        clock: Stamps records as the broker would.
        deadline_s: How long ``committed`` waits for a pending transaction.
    """

    def __init__(
        self,
        partitions: Mapping[str, int] | None = None,
        *,
        clock: Clock | None = None,
        deadline_s: float = 30.0,
    ) -> None:
        self._clock = clock or SystemClock()
        self._deadline_s = deadline_s
        self._state = SharedState()
        self._topics: dict[str, TopicSettings] = {}
        self._writers: dict[str, MemoryWriter] = {}
        self._num_transactions = 0
        self._num_keyless = 0
        self._num_created = 0
        self.create(
            [
                TopicSettings(name=name, partitions=count, settings={})
                for name, count in (partitions or {}).items()
            ]
        )

    def subscribe(
        self,
        topics: Sequence[str],
        *,
        group: str,
        on_assigned: PartitionsChanged | None = None,
        on_revoked: PartitionsChanged | None = None,
    ) -> MemoryReader:
        """Join a consumer group; partitions come and go."""
        reader = MemoryReader(
            self._state,
            {topic: self.num_partitions(topic) for topic in topics},
            group=group,
            deadline_s=self._deadline_s,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
        )
        reader.join()
        return reader

    def assign(self, topics: Sequence[str], *, group: str = "") -> MemoryReader:
        """Read every partition of ``topics``, alone."""
        counts = {topic: self.num_partitions(topic) for topic in topics}
        reader = MemoryReader(self._state, counts, group=group, deadline_s=self._deadline_s)
        reader.take_all()
        return reader

    def writer(self, transactional_id: str) -> "MemoryWriter":
        """Make a transactional writer, fencing the earlier one of this id."""
        with self._state.changed:
            earlier = self._writers.get(transactional_id)
            if earlier is not None:
                earlier.fence()
            writer = MemoryWriter(self, transactional_id)
            self._writers[transactional_id] = writer
            return writer

    def num_partitions(self, topic: str) -> int:
        """Partitions of a topic."""
        if topic not in self._topics:
            raise missing_topic(topic, "the memory log")
        return self._topics[topic].partitions

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Topic to its id; a missing one is left out."""
        with self._state.changed:
            return {name: self._state.ids[name] for name in topics if name in self._state.ids}

    def close(self) -> None:
        """Nothing to free."""

    def topics(self, prefix: str) -> dict[str, TopicSettings]:
        """Topics whose name starts with ``prefix``."""
        return {name: t for name, t in sorted(self._topics.items()) if name.startswith(prefix)}

    def create(self, topics: Sequence[TopicSettings]) -> None:
        """Create topics; one that exists is an error."""
        with self._state.changed:
            for topic in topics:
                if topic.name in self._topics:
                    raise existing_topic(topic.name)
                self._topics[topic.name] = topic
                self._num_created += 1
                self._state.ids[topic.name] = f"memory-{self._num_created}"
                for index in range(topic.partitions):
                    self._state.partitions[Partition(topic.name, index)] = PartitionRecords()

    def delete(self, topic: str) -> None:
        """Delete a topic with its records, and the positions of all groups in it, as Kafka does."""
        with self._state.changed:
            del self._state.ids[topic]
            for index in range(self._topics.pop(topic).partitions):
                partition = Partition(topic, index)
                del self._state.partitions[partition]
                for group in self._state.groups.values():
                    group.committed.pop(partition, None)
            self._state.changed.notify_all()

    def configure(self, topic: TopicSettings) -> None:
        """Set the topic's configuration to what is given; partitions stay as they are."""
        count = self.num_partitions(topic.name)
        self._topics[topic.name] = TopicSettings(
            name=topic.name, partitions=count, settings=topic.settings
        )

    def trim(self, partition: Partition, offset: int) -> None:
        """Delete records below ``offset``."""
        with self._state.changed:
            held = self._state.partitions[partition]
            held.start = max(held.start, min(offset, held.end))

    def records(self, topic: str) -> list[Message]:
        """All committed records of a topic, by partition and offset."""
        with self._state.changed:
            held = [
                self._state.partitions[Partition(topic, index)]
                for index in range(self.num_partitions(topic))
            ]
            return [
                message
                for partition in held
                for message in partition.records[partition.start : partition.stable_end]
                if message is not None
            ]

    def begin(self, writer: "MemoryWriter") -> "MemoryTransaction":
        """A new open transaction; only writers call it."""
        with self._state.changed:
            self._num_transactions += 1
            return MemoryTransaction(self, writer, self._num_transactions)

    @property
    def state(self) -> SharedState:
        """Partitions and groups, for writers."""
        return self._state

    def place(self, topic: str, key: bytes | None, partition: int | None) -> int:
        """Partition for a record: as asked, by key, or in turn."""
        count = self.num_partitions(topic)
        if partition is not None:
            if not 0 <= partition < count:
                raise ValueError(
                    f"partition of {topic!r} must be below {count}: got {partition}. "
                    "Ask num_partitions."
                )
            return partition
        if key is not None:
            return partition_for(key, count)
        self._num_keyless += 1
        return self._num_keyless % count

    def max_message_bytes(self, topic: str) -> int:
        """Largest record that a topic takes."""
        self.num_partitions(topic)
        declared = int(self._topics[topic].settings.get("max.message.bytes", MAX_MESSAGE_BYTES))
        return min(declared, MAX_MESSAGE_BYTES)

    def now_ms(self) -> int:
        """Time that a record written now is stamped with."""
        return int(self._clock.now_s() * 1000)


class MemoryWriter:
    """A transactional producer of a memory log."""

    def __init__(self, log: MemoryLog, transactional_id: str) -> None:
        self._log = log
        self._transactional_id = transactional_id
        self._open: MemoryTransaction | None = None
        self._fenced = False

    @contextmanager
    def transaction(self) -> Generator["MemoryTransaction"]:
        """One transaction: committed when the block ends, aborted when it raises."""
        self.require_unfenced()
        if self._open is not None:
            raise ValueError("transaction must be the only open one: got a second. End the first.")
        self._open = self._log.begin(self)
        try:
            yield self._open
            self._open.commit()
        except BaseException:
            self._open.abort()
            raise
        finally:
            self._open = None

    def close(self) -> None:
        """Abort what is open."""
        if self._open is not None:
            self._open.abort()

    def fence(self) -> None:
        """A newer writer holds the id: abort what is open and refuse all that follows."""
        self._fenced = True
        if self._open is not None:
            self._open.abort()

    def require_unfenced(self) -> None:
        """Refuse to go on when a newer writer holds the id."""
        if self._fenced:
            raise FencedError(
                f"writer {self._transactional_id!r} must be the newest of its id: got fenced. "
                "Another instance does this work; stop this one."
            )


class MemoryTransaction:
    """Writes take their offsets at once and become visible at the commit."""

    def __init__(self, log: MemoryLog, writer: MemoryWriter, number: int) -> None:
        self._log = log
        self._writer = writer
        self._number = number
        self._offsets: dict[Partition, list[int]] = {}
        self._positions: list[tuple[MemoryReader, dict[Partition, Committed]]] = []
        self._ended = False

    def write(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Add a record. Without ``partition`` the key decides it (murmur2)."""
        with self._log.state.changed:
            self._require_open()
            index = self._log.place(topic, key, partition)
            limit_bytes = self._log.max_message_bytes(topic)
            require_size(topic, key, value, headers=headers, limit_bytes=limit_bytes)
            place = Partition(topic, index)
            held = self._log.state.partitions[place]
            message = Message(
                topic, index, held.end, key, value, self._log.now_ms(), tuple(headers)
            )
            held.append(message, self._number)
            self._offsets.setdefault(place, []).append(message.offset)

    def commit_offsets(self, reader: Reader, positions: Mapping[Partition, Committed]) -> None:
        """Move the reader's group to these positions with this transaction."""
        if not isinstance(reader, MemoryReader) or not reader.group:
            raise ValueError(
                f"reader must be of this log and have a group: got {reader!r}. Name a group."
            )
        with self._log.state.changed:
            self._require_open()
            self._require_membership(reader, positions)
            self._positions.append((reader, dict(positions)))
            self._group(reader).pending.update(positions.keys())

    def commit(self) -> None:
        """Make everything visible at once."""
        with self._log.state.changed:
            self._writer.require_unfenced()
            for reader, positions in self._positions:
                self._require_membership(reader, positions)
            for reader, positions in self._positions:
                self._group(reader).committed.update(positions)
            self._end(committed=True)

    def abort(self) -> None:
        """Undo everything; harmless after the end."""
        with self._log.state.changed:
            if not self._ended:
                self._end(committed=False)

    def _require_open(self) -> None:
        self._writer.require_unfenced()
        if self._ended:
            raise ValueError("transaction must be open: got a write after its end. Begin another.")

    def _end(self, *, committed: bool) -> None:
        self._ended = True
        for partition, offsets in self._offsets.items():
            held = self._log.state.partitions[partition]
            held.finish(self._number, offsets, committed=committed)
        for reader, positions in self._positions:
            self._group(reader).pending.subtract(positions.keys())
        self._log.state.changed.notify_all()

    def _group(self, reader: MemoryReader) -> GroupState:
        return self._log.state.groups.setdefault(reader.group, GroupState())

    def _require_membership(
        self, reader: MemoryReader, positions: Mapping[Partition, Committed]
    ) -> None:
        if not reader.may_commit(positions.keys()):
            raise RebalancedError(
                f"group {reader.group!r} must still give this reader "
                f"{sorted(map(str, positions))}: got another member there. "
                "Drop the work of partitions that were taken away."
            )
