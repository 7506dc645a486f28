"""A store in a dictionary, for tests and demonstrations; passes the contract of the others."""

from collections.abc import Iterator
from pathlib import Path
from threading import Lock

from astra_stream.clock import Clock, SystemClock
from astra_stream.store.blobs import (
    StoredObject,
    checked_key,
    other_bytes,
    too_large,
    whole_file,
)


class MemoryStore:
    """Objects in memory; safe to share between threads."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        """Start empty; ``clock`` says when an object is written."""
        self._objects: dict[str, tuple[bytes, float]] = {}
        self._clock = clock or SystemClock()
        self._lock = Lock()

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Write an object that does not exist yet; see ``Store.put``."""
        given = bytes(data)
        with self._lock:
            written = (given, self._clock.now_s())
            if self._objects.setdefault(checked_key(key), written)[0] != given:
                raise other_bytes(key, "memory")

    def put_file(self, key: str, path: Path) -> None:
        """The same for a file's bytes."""
        self.put(key, path.read_bytes())

    def get(self, key: str, *, max_bytes: int) -> bytes:
        """Read an object of at most ``max_bytes``; see ``Store.get``."""
        with self._lock:
            data, _ = self._objects[checked_key(key)]
        if len(data) > max_bytes:
            raise too_large(key, len(data), max_bytes)
        return data

    def get_file(self, key: str, path: Path, *, max_bytes: int) -> None:
        """The same into a file, which appears whole or not at all."""
        data = self.get(key, max_bytes=max_bytes)
        with whole_file(path) as file:
            file.write(data)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Objects whose keys begin with a prefix, in the order of their keys."""
        with self._lock:
            found = sorted(
                StoredObject(key, len(data), modified_s)
                for key, (data, modified_s) in self._objects.items()
                if key.startswith(prefix)
            )
        yield from found

    def delete(self, key: str) -> None:
        """Remove an object; none is no error."""
        with self._lock:
            self._objects.pop(checked_key(key), None)
