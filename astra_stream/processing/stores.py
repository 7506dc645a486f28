"""Where the state of a changelog's partition lives in a process: in memory, or in a file.

A processor is handed its state as a mapping. What it puts there is there at once; what it says with
``Keep`` and ``Forget`` besides is what a restart finds.
"""

import logging
import sqlite3
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from typing_extensions import override

from astra_stream.clock import Clock
from astra_stream.errors import ConfigError, FencedError, SchemaError, TransientError
from astra_stream.log.headers import seal, unseal

logger = logging.getLogger(__name__)

Row = tuple[bytes, bytes | None]
"""Key and sealed value of a changelog's record; None deletes the key."""

FORMAT = 1
FLUSH_BYTES = 8 << 20
"""Committed rows that a file store holds in memory at most."""
FLUSH_S = 10.0
MAX_AGE_S = 12 * 3600.0
"""A file that was written longer ago is made anew. A topic keeps its tombstones for a day
(``delete.retention.ms``); of keys deleted before that, the changelog says nothing any more."""
BUSY_S = 5.0
"""How long another process may be writing the file."""
DELETED = object()
NOTES = b"notes"


class StateStore(Protocol):
    """State of one partition. Calls come from one thread."""

    @property
    def start(self) -> int:
        """Offset from which the changelog must be read; 0 where the store is new."""
        ...

    @property
    def notes(self) -> Mapping[str, Any]:
        """What was noted beside the state."""
        ...

    def note(self, key: str, value: Any) -> None:
        """Hold, with the next commit, what is no state but goes with it."""
        ...

    def take(self, key: bytes, value: Any) -> None:
        """Hold an entry of the changelog."""
        ...

    def delete(self, key: bytes) -> None:
        """Hold that the changelog deletes a key."""
        ...

    def restored(self) -> MutableMapping[str, Any]:
        """The state, once the changelog was read; called once."""
        ...

    def is_kept(self, key: str) -> bool:
        """Whether a committed transaction left an entry of this key."""
        ...

    def commit(self, rows: Iterable[Row], end: Callable[[], int]) -> None:
        """Take in what a transaction wrote to the changelog, once it is committed.

        Args:
            rows: What it wrote.
            end: Asks where the changelog's partition ends now.
        """
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


class MemoryStore:
    """Hands the state over to the processor, and remembers its keys."""

    def __init__(self) -> None:
        self._entries: dict[str, Any] = {}
        self._keys: set[str] = set()

    @property
    def start(self) -> int:
        """See ``StateStore``."""
        return 0

    @property
    def notes(self) -> Mapping[str, Any]:
        """See ``StateStore``."""
        return {}

    def note(self, key: str, value: Any) -> None:
        """See ``StateStore``."""

    def take(self, key: bytes, value: Any) -> None:
        """See ``StateStore``."""
        self._entries[key.decode()] = value

    def delete(self, key: bytes) -> None:
        """See ``StateStore``."""
        self._entries.pop(key.decode(), None)

    def restored(self) -> MutableMapping[str, Any]:
        """See ``StateStore``."""
        entries: dict[str, Any] = {}
        entries, self._entries = self._entries, entries
        self._keys = set(entries)
        return entries

    def is_kept(self, key: str) -> bool:
        """See ``StateStore``."""
        return key in self._keys

    def commit(self, rows: Iterable[Row], end: Callable[[], int]) -> None:
        """See ``StateStore``."""
        for key, value in rows:
            if value is None:
                self._keys.discard(key.decode())
            else:
                self._keys.add(key.decode())

    def close(self) -> None:
        """See ``StateStore``."""


class FileStore(MutableMapping[str, Any]):
    """Keeps the state in an SQLite file, so that memory stays bounded and a restart reads little.

    The file is the changelog's partition up to an offset. It is written after a commit, some
    seconds late: a crash leaves an older file, and the changelog from its offset on makes up for
    that. It is never the only place of anything: one that is damaged, too old, or of another topic
    is made anew from the whole changelog.

    Args:
        path: The file; made where it is missing.
        topic_id: Of the changelog.
        clock: Unix time, and when to write.

    Raises:
        ConfigError: The file cannot be made.
    """

    def __init__(self, path: Path, *, topic_id: str, clock: Clock) -> None:
        self._path = path
        self._topic_id = topic_id
        self._clock = clock
        self._owner = uuid.uuid4().hex
        self._open: dict[str, Any] = {}
        self._done: dict[bytes, bytes | None] = {}
        self._notes: dict[str, Any] = {}
        self._num_bytes = 0
        self._flush_at_s = clock.monotonic_s() + FLUSH_S
        self._start, self._written_s = 0, clock.now_s()
        self._file = self._found() or self._made()

    @property
    def start(self) -> int:
        """See ``StateStore``."""
        return self._start

    def forget_all(self) -> None:
        """Begin anew: the changelog is not what the file was made from."""
        self._file.close()
        self._file = self._made()

    @property
    def notes(self) -> Mapping[str, Any]:
        """See ``StateStore``."""
        return self._notes

    def note(self, key: str, value: Any) -> None:
        """See ``StateStore``."""
        self._notes[key] = value

    def take(self, key: bytes, value: Any) -> None:
        """See ``StateStore``."""
        self._put(key, seal(key, value))
        self._spill()

    def delete(self, key: bytes) -> None:
        """See ``StateStore``."""
        self._put(key, None)
        self._spill()

    def restored(self) -> MutableMapping[str, Any]:
        """See ``StateStore``."""
        return self

    def is_kept(self, key: str) -> bool:
        """See ``StateStore``."""
        return self._stored(key.encode()) is not DELETED

    def commit(self, rows: Iterable[Row], end: Callable[[], int]) -> None:
        """See ``StateStore``.

        Raises:
            FencedError: Another process has the file now.
            TransientError: The file cannot be written.
        """
        self._open.clear()
        for key, value in rows:
            self._put(key, value)
        if self._num_bytes > FLUSH_BYTES or self._clock.monotonic_s() >= self._flush_at_s:
            self._start, self._written_s = end(), self._clock.now_s()
            self._flush()

    def close(self) -> None:
        """See ``StateStore``."""
        self._file.close()

    @override
    def __getitem__(self, key: str) -> Any:
        value = self._open[key] if key in self._open else self._stored(key.encode())
        if value is DELETED:
            raise KeyError(key)
        return value

    @override
    def __setitem__(self, key: str, value: Any) -> None:
        self._open[key] = value

    @override
    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._open[key] = DELETED

    @override
    def __iter__(self) -> Iterator[str]:
        for key in self._stored_keys():
            if key.decode() not in self._open:
                yield key.decode()
        yield from [key for key, value in self._open.items() if value is not DELETED]

    @override
    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _put(self, key: bytes, value: bytes | None) -> None:
        self._done[key] = value
        self._num_bytes += len(key) + len(value or b"")

    def _stored(self, key: bytes) -> Any:
        """Value of a committed entry, or ``DELETED``."""
        if key in self._done:
            sealed = self._done[key]
        else:
            with self._readable():
                row = self._file.execute("SELECT value FROM entry WHERE key = ?", (key,)).fetchone()
            sealed = row[0] if row else None
        if sealed is None:
            return DELETED
        with self._readable():
            return unseal(key, sealed)

    def _stored_keys(self) -> Iterator[bytes]:
        """Keys of committed entries; those of the file are not held in memory."""
        with self._readable():
            for (key,) in self._file.execute("SELECT key FROM entry"):
                if key not in self._done:
                    yield key
        yield from [key for key, value in self._done.items() if value is not None]

    def _spill(self) -> None:
        """Write what a restore has read so far; the file's offset stays where it is."""
        if self._num_bytes > FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        """Write what is committed, all of it or nothing, unless another process has the file."""
        put = [(key, value) for key, value in self._done.items() if value is not None]
        gone = [(key,) for key, value in self._done.items() if value is None]
        try:
            with self._file:
                self._file.execute("BEGIN IMMEDIATE")
                mine = self._file.execute(
                    "UPDATE about SET start = ?, written_s = ?, notes = ? WHERE owner = ?",
                    (self._start, self._written_s, seal(NOTES, self._notes), self._owner),
                )
                if mine.rowcount == 0:
                    raise FencedError(
                        f"{self._path} must be this process's: got another owner. It is a newer "
                        "instance of this processor; end this one."
                    )
                self._file.executemany("INSERT OR REPLACE INTO entry VALUES (?, ?)", put)
                self._file.executemany("DELETE FROM entry WHERE key = ?", gone)
        except sqlite3.Error as error:
            raise TransientError(
                f"{self._path} must be writable: got {error}. Make room on its disk; the state is "
                "in the changelog, and the file may be deleted."
            ) from error
        self._done.clear()
        self._num_bytes = 0
        self._flush_at_s = self._clock.monotonic_s() + FLUSH_S

    def _found(self) -> sqlite3.Connection | None:
        """The file as a process before left it, if all of it can be used."""
        if not self._path.exists():
            return None
        file = None
        try:
            file = connect(self._path)
            topic_id, start, written_s, notes = self._read(file)
            self._require_usable(topic_id, written_s)
            file.execute("UPDATE about SET owner = ?", (self._owner,))
        except (sqlite3.Error, SchemaError) as error:
            logger.warning("state made anew", extra={"path": str(self._path), "why": str(error)})
            if file is not None:
                file.close()
            return None
        self._start, self._written_s, self._notes = start, written_s, notes
        return file

    def _read(self, file: sqlite3.Connection) -> tuple[str, int, float, dict[str, Any]]:
        """Topic, offset, time and notes of a file whose every entry is as it was written."""
        for (found,) in file.execute("PRAGMA integrity_check"):
            if found != "ok":
                raise SchemaError(f"{self._path} must be whole: got {found}. It is made anew.")
        for key, sealed in file.execute("SELECT key, value FROM entry"):
            unseal(key, sealed)
        found = file.execute(
            "SELECT topic_id, start, written_s, notes FROM about WHERE format = ?", (FORMAT,)
        ).fetchone()
        if found is None:
            raise SchemaError(f"{self._path} must be of format {FORMAT}: it is made anew.")
        return *found[:3], unseal(NOTES, found[3])

    def _require_usable(self, topic_id: str, written_s: float) -> None:
        age_s = self._clock.now_s() - written_s
        if topic_id != self._topic_id:
            raise SchemaError(
                f"{self._path} must be of topic {self._topic_id}: got {topic_id}. It is made anew."
            )
        if not 0 <= age_s <= MAX_AGE_S:
            raise SchemaError(
                f"{self._path} must be written within {MAX_AGE_S:.0f} s: got {age_s:.0f}, after "
                "which the changelog may say nothing of deleted keys. It is made anew."
            )

    def _made(self) -> sqlite3.Connection:
        """An empty file. Whoever has the old one open keeps that, and writes to nobody's."""
        self._open.clear()
        self._done.clear()
        self._notes.clear()
        self._num_bytes = 0
        self._start, self._written_s = 0, self._clock.now_s()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            for path in files_of(self._path):
                path.unlink(missing_ok=True)
            file = connect(self._path)
            file.execute("CREATE TABLE entry (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")
            file.execute(
                "CREATE TABLE about (format INTEGER, topic_id TEXT, owner TEXT, start INTEGER, "
                "written_s REAL, notes BLOB)"
            )
            about = (FORMAT, self._topic_id, self._owner, 0, self._written_s, seal(NOTES, {}))
            file.execute("INSERT INTO about VALUES (?, ?, ?, ?, ?, ?)", about)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"state file {self._path} must be writable: got {error}. Name another directory "
                "with --work."
            ) from error
        return file

    @contextmanager
    def _readable(self) -> Generator[None]:
        """Turn damage into an end of this process, whose successor makes the file anew."""
        try:
            yield
        except (sqlite3.Error, SchemaError) as error:
            raise TransientError(
                f"{self._path} must be as it was written: got {error}. Start again: it is made "
                "anew from the changelog."
            ) from error


def connect(path: Path) -> sqlite3.Connection:
    """Open an SQLite file: a crash leaves whole transactions, power cut the older ones of them."""
    file = sqlite3.connect(path, isolation_level=None, timeout=BUSY_S)
    file.execute("PRAGMA journal_mode = WAL")
    file.execute("PRAGMA synchronous = NORMAL")
    return file


def files_of(path: Path) -> list[Path]:
    """An SQLite file and what stands beside it."""
    return [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))]
