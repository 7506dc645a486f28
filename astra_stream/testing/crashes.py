"""Crash points: a log and a store whose process dies between two of its effects, by name.

A point is ``before`` or ``after`` an effect: ``fence`` (a writer is made), ``write <what>``,
``positions <of>``, ``commit <of>``, ``put <what>``, ``delete <what>``. A written record is called
after its topic, an object after its file, a transaction after the first record in it, or ``alone``
where it holds positions and no record.

Who is dead reaches nothing any more: blocks that unwind neither abort nor leave a group, and what
was open stays open until a successor or a timeout settles it, as after SIGKILL.
"""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from astra_stream.log.interface import (
    Committed,
    Log,
    Message,
    Partition,
    PartitionsChanged,
    Reader,
    Transaction,
    Writer,
)
from astra_stream.store.blobs import Store, StoredObject

ALONE = "alone"
"""Name of a transaction that holds positions and no record."""


class CrashError(BaseException):
    """Stands in for SIGKILL: nothing catches it."""


def crash(point: str) -> None:
    """Die as far as a thread can.

    Raises:
        CrashError: Always.
    """
    raise CrashError(point)


class Life:
    """One process of a service, from its start to its end or to a crash point.

    Args:
        dies_at: Point to passage, counted from 1 in this life: it dies at the first one it reaches.
        die: Told the point; ends the process, or raises.
    """

    def __init__(
        self, dies_at: Mapping[str, int] | None = None, *, die: Callable[[str], None] = crash
    ) -> None:
        self.passed: Counter[str] = Counter()
        """How often each point was passed; the discovery of points reads it."""
        self.died_at = ""
        """The point at which it died; empty while it lives."""
        self._dies_at = dict(dies_at or {})
        self._die = die
        self._lock = threading.Lock()
        self._left_open: list[object] = []

    def passes(self, point: str) -> None:
        """Pass a point, or die there."""
        with self._lock:
            self.require_alive()
            self.passed[point] += 1
            if self.passed[point] != self._dies_at.get(point):
                return
            self.died_at = point
        self._die(point)

    def require_alive(self) -> None:
        """Refuse what a dead process asks for.

        Raises:
            CrashError: It is dead.
        """
        if self.died_at:
            raise CrashError(self.died_at)

    def leave_open(self, block: object) -> None:
        """Keep an unfinished block from the garbage collector, which would end it."""
        self._left_open.append(block)

    @contextmanager
    def around(self, effect: str) -> Generator[None]:
        """Have an effect, and a point on both sides of it."""
        self.passes(f"before {effect}")
        yield
        self.passes(f"after {effect}")


def record_kind(topic: str) -> str:
    """What the records of a topic are, whatever run, policy or pool it is of.

    Args:
        topic: ``<run>.<records>[.<policy>]``, or ``<group>.<state>.changelog``.
    """
    return "changelog" if topic.endswith(".changelog") else topic.split(".")[1]


def object_kind(key: str) -> str:
    """What an object is, whatever its version and hash: ``<folder>/<file>``."""
    path = PurePosixPath(key)
    return f"{path.parts[0]}/{path.stem.partition('-')[0]}{path.suffix}"


class CrashingReader:
    """A reader of a process that may be dead."""

    def __init__(self, reader: Reader, life: Life) -> None:
        self._reader = reader
        self._life = life

    @property
    def alive(self) -> Reader:
        """The real one.

        Raises:
            CrashError: Its process is dead.
        """
        self._life.require_alive()
        return self._reader

    def poll(self, timeout_s: float, *, max_messages: int = 500) -> list[Message]:
        """See ``Reader.poll``."""
        return self.alive.poll(timeout_s, max_messages=max_messages)

    def assignment(self) -> frozenset[Partition]:
        """See ``Reader.assignment``."""
        return self.alive.assignment()

    def committed(self, partitions: Collection[Partition]) -> dict[Partition, Committed]:
        """See ``Reader.committed``."""
        return self.alive.committed(partitions)

    def positions(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """See ``Reader.positions``."""
        return self.alive.positions(partitions)

    def seek(self, partition: Partition, offset: int) -> None:
        """See ``Reader.seek``."""
        self.alive.seek(partition, offset)

    def pause(self, partitions: Collection[Partition]) -> None:
        """See ``Reader.pause``."""
        self.alive.pause(partitions)

    def resume(self, partitions: Collection[Partition]) -> None:
        """See ``Reader.resume``."""
        self.alive.resume(partitions)

    def end_offsets(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """See ``Reader.end_offsets``."""
        return self.alive.end_offsets(partitions)

    def offsets_at(self, partitions: Collection[Partition], time_ms: int) -> dict[Partition, int]:
        """See ``Reader.offsets_at``."""
        return self.alive.offsets_at(partitions, time_ms)

    def close(self) -> None:
        """Leave the group, unless dead."""
        self.alive.close()


class CrashingTransaction:
    """A transaction with a point on both sides of each write and of its positions."""

    def __init__(self, transaction: Transaction, life: Life) -> None:
        self.holds = ""
        """Kind of its first record, or ``alone``; empty while it holds nothing."""
        self._transaction = transaction
        self._life = life

    def write(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """See ``Transaction.write``."""
        kind = record_kind(topic)
        self.holds = self.holds or kind
        with self._life.around(f"write {kind}"):
            self._transaction.write(topic, key, value, partition=partition, headers=headers)

    def commit_offsets(self, reader: Reader, positions: Mapping[Partition, Committed]) -> None:
        """See ``Transaction.commit_offsets``."""
        if not isinstance(reader, CrashingReader):
            raise TypeError(f"reader must be of this log: got {reader!r}. Ask this log for one.")
        self.holds = self.holds or ALONE
        with self._life.around(f"positions {self.holds}"):
            self._transaction.commit_offsets(reader.alive, positions)


class CrashingWriter:
    """A writer of a process that may die in the middle of a transaction."""

    def __init__(self, writer: Writer, life: Life) -> None:
        self._writer = writer
        self._life = life

    @contextmanager
    def transaction(self) -> Generator[CrashingTransaction]:
        """See ``Writer.transaction``; the dead neither commit nor abort."""
        self._life.require_alive()
        block = self._writer.transaction()
        transaction = CrashingTransaction(block.__enter__(), self._life)
        try:
            yield transaction
            if transaction.holds:
                self._life.passes(f"before commit {transaction.holds}")
        except BaseException as error:
            if self._life.died_at:
                self._life.leave_open(block)
            else:
                block.__exit__(type(error), error, error.__traceback__)
            raise
        block.__exit__(None, None, None)
        if transaction.holds:
            self._life.passes(f"after commit {transaction.holds}")

    def close(self) -> None:
        """Free it, unless dead."""
        self._life.require_alive()
        self._writer.close()


class CrashingLog:
    """A log as one process sees it.

    Args:
        log: The real one, which outlives the process.
        life: Of the process.
    """

    def __init__(self, log: Log, life: Life) -> None:
        self.members: list[Reader] = []
        """Real readers that joined a group: once their process is dead, the group expires them."""
        self.writers: list[Writer] = []
        """Real writers that were made."""
        self._log = log
        self._life = life

    def subscribe(
        self,
        topics: Sequence[str],
        *,
        group: str,
        on_assigned: PartitionsChanged | None = None,
        on_revoked: PartitionsChanged | None = None,
    ) -> CrashingReader:
        """See ``Log.subscribe``."""
        self._life.require_alive()
        member = self._log.subscribe(
            topics, group=group, on_assigned=on_assigned, on_revoked=on_revoked
        )
        self.members.append(member)
        return CrashingReader(member, self._life)

    def assign(self, topics: Sequence[str], *, group: str = "") -> CrashingReader:
        """See ``Log.assign``."""
        self._life.require_alive()
        return CrashingReader(self._log.assign(topics, group=group), self._life)

    def writer(self, transactional_id: str) -> CrashingWriter:
        """See ``Log.writer``."""
        with self._life.around("fence"):
            writer = self._log.writer(transactional_id)
            self.writers.append(writer)
        return CrashingWriter(writer, self._life)

    def num_partitions(self, topic: str) -> int:
        """See ``Log.num_partitions``."""
        self._life.require_alive()
        return self._log.num_partitions(topic)

    def max_message_bytes(self, topic: str) -> int:
        """See ``Log.max_message_bytes``."""
        self._life.require_alive()
        return self._log.max_message_bytes(topic)

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """See ``Log.topic_ids``."""
        self._life.require_alive()
        return self._log.topic_ids(topics)

    def close(self) -> None:
        """Free what this process holds, unless dead."""
        self._life.require_alive()
        self._log.close()


class CrashingStore:
    """A store as one process sees it, with a point on both sides of each object that it writes.

    Args:
        store: The real one, which outlives the process.
        life: Of the process.
    """

    def __init__(self, store: Store, life: Life) -> None:
        self._store = store
        self._life = life

    def put(self, key: str, data: bytes | memoryview) -> None:
        """See ``Store.put``."""
        with self._life.around(f"put {object_kind(key)}"):
            self._store.put(key, data)

    def put_file(self, key: str, path: Path) -> None:
        """See ``Store.put_file``."""
        with self._life.around(f"put {object_kind(key)}"):
            self._store.put_file(key, path)

    def get(self, key: str, *, max_bytes: int) -> bytes:
        """See ``Store.get``."""
        self._life.require_alive()
        return self._store.get(key, max_bytes=max_bytes)

    def get_file(self, key: str, path: Path, *, max_bytes: int) -> None:
        """See ``Store.get_file``."""
        self._life.require_alive()
        self._store.get_file(key, path, max_bytes=max_bytes)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """See ``Store.list``."""
        self._life.require_alive()
        return self._store.list(prefix)

    def delete(self, key: str) -> None:
        """See ``Store.delete``."""
        with self._life.around(f"delete {object_kind(key)}"):
            self._store.delete(key)
