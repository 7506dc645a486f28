"""Blobs: immutable bytes under keys, and a directory that holds them.

A key is written once; whoever writes other bytes under it is refused, whoever repeats it is not.
"""

import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from astra_stream.errors import TransientError, WeightsError


class StoredObject(NamedTuple):
    """An object as a list of its store has it."""

    key: str
    size_bytes: int
    modified_s: float
    """Unix time of its write, by the store's own clock; equal bytes put again do not change it."""


class Store(Protocol):
    """Object storage below one prefix."""

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Write an object that does not exist yet.

        An object with equal bytes under the key is success; with other bytes it is refused.

        Raises:
            ValueError: The key leaves the prefix (``..``, absolute, empty part).
            TransientError: The store cannot be reached or is full; says which.
            WeightsError: The key holds other bytes.
        """
        ...

    def put_file(self, key: str, path: Path) -> None:
        """The same for a file's bytes, streamed."""
        ...

    def get(self, key: str, *, max_bytes: int) -> bytes:
        """Read an object of at most ``max_bytes``.

        Raises:
            KeyError: There is none.
            WeightsError: It is larger.
            TransientError: The store cannot be reached.
        """
        ...

    def get_file(self, key: str, path: Path, *, max_bytes: int) -> None:
        """The same into a file, which appears whole or not at all."""
        ...

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Objects whose keys begin with a prefix, in the order of their keys."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; none is no error."""
        ...


CHUNK_BYTES = 1024 * 1024
"""Bytes that are read, hashed and written at a time."""


def checked_key(key: str) -> str:
    """Refuse a key that could leave the store's prefix; return it unchanged.

    Raises:
        ValueError: It is absolute, has an empty, ``.`` or ``..`` part, a backslash or a control
            character.
    """
    parts = key.split("/")
    if not all(part not in {"", ".", ".."} for part in parts) or not _plain(key):
        raise ValueError(
            f"an object key must be relative, without empty, '.' or '..' parts and without "
            f"backslashes: got {key!r}. Do not follow who sent it."
        )
    return key


def _plain(key: str) -> bool:
    return key.isprintable() and "\\" not in key


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def other_bytes(key: str, where: str) -> WeightsError:
    """The error of an immutable key that holds something else."""
    return WeightsError(
        f"object {key!r} in {where} must keep its bytes: got others for the same key. "
        "Two writers made one name; compare them."
    )


def too_large(key: str, size_bytes: int, max_bytes: int) -> WeightsError:
    """The error of an object that is larger than its reader was told."""
    return WeightsError(
        f"object {key!r} must have at most {max_bytes} bytes: got {size_bytes}. "
        "Compare it with its announcement."
    )


class DirectoryStore:
    """Objects as files below one directory, for one machine."""

    def __init__(self, path: Path) -> None:
        """Use ``path``, made where it is missing."""
        self._root = path

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Write an object that does not exist yet; see ``Store.put``."""
        self._put(key, lambda file: file.write(data))

    def put_file(self, key: str, path: Path) -> None:
        """The same for a file's bytes, streamed."""
        with path.open("rb") as source:
            self._put(key, lambda file: shutil.copyfileobj(source, file, CHUNK_BYTES))

    def get(self, key: str, *, max_bytes: int) -> bytes:
        """Read an object of at most ``max_bytes``; see ``Store.get``."""
        return self._sized(key, max_bytes).read_bytes()

    def get_file(self, key: str, path: Path, *, max_bytes: int) -> None:
        """The same into a file, which appears whole or not at all."""
        source = self._sized(key, max_bytes)
        with whole_file(path) as file, source.open("rb") as stored:
            shutil.copyfileobj(stored, file, CHUNK_BYTES)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Objects whose keys begin with a prefix, in the order of their keys."""
        found = []
        for path in self._root.rglob("*"):
            key = path.relative_to(self._root).as_posix()
            if key.startswith(prefix) and path.is_file() and not path.name.endswith(PART_SUFFIX):
                stat = path.stat()
                found.append(StoredObject(key, stat.st_size, stat.st_mtime))
        yield from sorted(found)

    def delete(self, key: str) -> None:
        """Remove an object; none is no error."""
        (self._root / checked_key(key)).unlink(missing_ok=True)

    def _put(self, key: str, write: Callable[[BinaryIO], object]) -> None:
        target = self._root / checked_key(key)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            part = _part_of(target)
            try:
                with part.open("wb") as file:
                    write(file)
                    file.flush()
                    os.fsync(file.fileno())
                os.link(part, target)  # fails where the key exists: the first writer wins
            except FileExistsError:
                if file_sha256(part) != file_sha256(target):
                    raise other_bytes(key, str(self._root)) from None
            finally:
                part.unlink(missing_ok=True)
        except OSError as error:
            raise TransientError(
                f"store {self._root} must take {key!r}: got {error.strerror}. "
                "Make room or correct its permissions, then start again."
            ) from error

    def _sized(self, key: str, max_bytes: int) -> Path:
        path = self._root / checked_key(key)
        if not path.is_file():
            raise KeyError(key)
        size_bytes = path.stat().st_size
        if size_bytes > max_bytes:
            raise too_large(key, size_bytes, max_bytes)
        return path


PART_SUFFIX = ".part"
"""Ends the name of a file that is not whole yet."""


@contextmanager
def whole_file(path: Path) -> Generator[BinaryIO]:
    """Open a file that appears under its name when the block ends, and never when it raises."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _part_of(path)
    try:
        with part.open("wb") as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _part_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}{PART_SUFFIX}")
