"""What every service asks of the log: readers, transactional writers, and what they exchange.

Offsets that a reader delivers have holes (control records): compare them, never count with them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from astra_stream.errors import AstraStreamError, ConfigError, RecordError

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Largest record that is written and read, whatever a topic admits."""
FRAMING_BYTES = 128
"""What a record takes beside key, value and headers, at most."""


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    index: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.index}]"


class Committed(NamedTuple):
    """A group's position in a partition: the next offset to read, and what was said with it."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One record of a topic, as bytes."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes], ...] = ()

    @property
    def source(self) -> Partition:
        """Where it stands."""
        return Partition(self.topic, self.partition)

    @property
    def coordinates(self) -> str:
        """``topic[partition]@offset``, for messages to people."""
        return f"{self.topic}[{self.partition}]@{self.offset}"


PartitionsChanged = Callable[[Collection[Partition]], None]
"""Told, on the thread that polls, which partitions were gained or lost."""


class Reader(Protocol):
    """Reads committed records; one thread uses it at a time."""

    def poll(self, timeout_s: float, *, max_messages: int = 500) -> list[Message]:
        """Wait for records, at most ``timeout_s`` seconds; return what there is, perhaps nothing.

        Records of one partition come in order. Group callbacks run inside.

        Raises:
            TransientError: The log cannot be reached within the deadline; names its address.
            FencedError: Another member took this one's place.
            AstraStreamError: Records were deleted before they were read, or are not as written; or
                a topic was deleted, also where it was made anew: noticed within seconds.
        """
        ...

    def assignment(self) -> frozenset[Partition]:
        """Partitions that this reader reads now."""
        ...

    def committed(self, partitions: Collection[Partition]) -> dict[Partition, Committed]:
        """The group's stable positions; a partition without one is left out.

        Waits for pending transactions of the group, to the deadline.
        """
        ...

    def positions(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Next offset to be delivered, per partition.

        Once all that is committed was delivered it lies past trailing control records too, so that
        a reader that reached ``end_offsets`` knows it.
        """
        ...

    def seek(self, partition: Partition, offset: int) -> None:
        """Continue reading ``partition`` at ``offset``."""
        ...

    def pause(self, partitions: Collection[Partition]) -> None:
        """Deliver nothing from these until ``resume``; membership goes on."""
        ...

    def resume(self, partitions: Collection[Partition]) -> None:
        """Deliver from these again."""
        ...

    def end_offsets(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """High watermarks: one past the last record written, pending transactions included."""
        ...

    def offsets_at(self, partitions: Collection[Partition], time_ms: int) -> dict[Partition, int]:
        """First offset at or after a time, per partition; the end where all is older."""
        ...

    def close(self) -> None:
        """Leave the group and free what it holds; twice is harmless."""
        ...


class Transaction(Protocol):
    """Writes and positions that become visible together or not at all."""

    def write(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Add a record. Without ``partition`` the key decides it (murmur2).

        Raises:
            ConfigError: The topic is missing; says which command makes it.
            RecordError: The value is too large.
            FencedError: A newer writer holds the id.
        """
        ...

    def commit_offsets(self, reader: Reader, positions: Mapping[Partition, Committed]) -> None:
        """Move the reader's group to these positions with this transaction.

        Raises:
            RebalancedError: The group has given one of these partitions to another member.
        """
        ...


class Writer(Protocol):
    """A transactional producer; making one fences the earlier one of the same id."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """One transaction: committed when the block ends, aborted when it raises.

        An empty one costs nothing. After a ``TransientError`` nothing is known of a commit that was
        asked for and all else is undone: end the process, and let the next one read what stands.

        Raises:
            FencedError: A newer writer holds the id.
            RebalancedError: The group has moved on; write again what is still owned.
            TransientError: The log cannot be reached within the deadline.
        """
        ...

    def close(self) -> None:
        """Free what it holds; an open transaction is aborted."""
        ...


def missing_topic(topic: str, place: str) -> ConfigError:
    """The error for a topic that nobody has made; services never make one."""
    return ConfigError(
        f"topic {topic!r} must exist: got none in {place}. Run: astra topics apply RUN.toml."
    )


def existing_topic(detail: str) -> ConfigError:
    """The error for creating a topic that is there already."""
    return ConfigError(f"topic must be new: got {detail!r}. Run: astra topics plan RUN.toml.")


def require_size(
    topic: str,
    key: bytes | None,
    value: bytes | None,
    *,
    headers: Sequence[tuple[str, bytes]],
    limit_bytes: int,
) -> None:
    """Refuse a record that a topic would not take, before compression is known.

    Raises:
        RecordError: The record has more than ``limit_bytes`` bytes.
    """
    parts = (key or b"", value or b"", *(content for _, content in headers))
    num_bytes = sum(map(len, parts)) + FRAMING_BYTES
    if num_bytes > limit_bytes:
        name = f" {key.decode(errors='replace')!r}" if key else ""
        raise RecordError(
            f"{topic}: record{name} must have at most {limit_bytes} bytes: got {num_bytes}. "
            f"Make it smaller, or raise the topic's max.message.bytes up to {MAX_MESSAGE_BYTES}."
        )


def missing_offset(partition: Partition, offset: int) -> AstraStreamError:
    """The error for a position that the log no longer has, or never had."""
    return AstraStreamError(
        f"{partition}@{offset} must still be in the log: got a position outside of it. "
        "Records were deleted before they were read; restore the topic or reset the group."
    )


def damaged(partition: Partition, detail: str) -> AstraStreamError:
    """The error for records that are not what was written."""
    return AstraStreamError(
        f"{partition} must hold what was written: got {detail}. "
        "The broker's disk or network is damaged: restore the partition from a replica."
    )


def require_same_topics(expected: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Refuse a topic that is gone, or was deleted and made anew under its name.

    Args:
        expected: Topic to the id that it had when it was read before.
        found: Topic to the id that it has now; one that is gone is left out.

    Raises:
        AstraStreamError: Names the first that differs.
    """
    for topic, topic_id in expected.items():
        if found.get(topic) != topic_id:
            raise AstraStreamError(
                f"topic {topic!r} must be the one that was read before, with the id {topic_id}: "
                f"got {found.get(topic, 'no topic')}. It was deleted with records that are owed: "
                "restore it, or start a run of another name."
            )


class Log(Protocol):
    """A place of topics."""

    def subscribe(
        self,
        topics: Sequence[str],
        *,
        group: str,
        on_assigned: PartitionsChanged | None = None,
        on_revoked: PartitionsChanged | None = None,
    ) -> Reader:
        """Join a consumer group; partitions come and go.

        A partition starts at the group's committed offset, else at its beginning.
        """
        ...

    def assign(self, topics: Sequence[str], *, group: str = "") -> Reader:
        """Read every partition of ``topics``, alone.

        Starts at the group's committed offsets where ``group`` is given and has some, else at the
        beginning. Never joins the group; ``commit_offsets`` with it needs a group id.
        """
        ...

    def writer(self, transactional_id: str) -> Writer:
        """Make a transactional writer, fencing the earlier one of this id."""
        ...

    def num_partitions(self, topic: str) -> int:
        """Partitions of a topic.

        Raises:
            ConfigError: The topic is missing; says which command makes it.
        """
        ...

    def max_message_bytes(self, topic: str) -> int:
        """Largest record that is written to a topic: what it admits, and never more than clients.

        Raises:
            ConfigError: The topic is missing; says which command makes it.
        """
        ...

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Topic to its id; a topic made anew has another one, and a missing one is left out."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """A topic as it stands in the log or as it is declared."""

    name: str
    partitions: int
    settings: Mapping[str, str]
    """Kafka topic configuration, such as cleanup.policy."""


class LogAdmin(Protocol):
    """Creates topics and says which there are; only ``astra topics`` uses it."""

    def topics(self, prefix: str) -> dict[str, TopicSettings]:
        """Topics whose name starts with ``prefix``, by name, with the settings set on them."""
        ...

    def create(self, topics: Sequence[TopicSettings]) -> None:
        """Create topics; one that exists is an error."""
        ...

    def configure(self, topic: TopicSettings) -> None:
        """Set the topic's configuration to what is given."""
        ...

    def trim(self, partition: Partition, offset: int) -> None:
        """Delete the records below ``offset``; readers that still need them fail by name."""
        ...
