"""Trainer checkpoints in the store: what the backend saves, and where the trainer stood.

Effects of an upload, in order: the state's files under keys that end in their hash, then the index
that names them. A crash before the index leaves files that nothing names; the announcement that
names the index comes later still.
"""

import contextlib
import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from astra_stream.errors import WeightsError
from astra_stream.store.blobs import Store
from astra_stream.training.interface import Backend

MAX_INDEX_BYTES = 1 << 20
READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFiles:
    """A checkpoint on local disk, not yet uploaded."""

    directory: Path
    facts: Mapping[str, Any]
    """Where the trainer stood: ``standing`` and ``next_offset``."""


class CheckpointStore:
    """Checkpoints of one policy below ``checkpoints/<policy>/<lineage>/<number>/``."""

    def __init__(self, store: Store, *, policy: str, directory: Path) -> None:
        self._store = store
        self._prefix = f"checkpoints/{policy}"
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def write(
        self, backend: Backend, *, standing: Mapping[str, Any], next_offset: int
    ) -> CheckpointFiles:
        """Save the backend's state to local disk; training may go on once this returns."""
        directory = Path(tempfile.mkdtemp(prefix="checkpoint-", dir=self._directory))
        backend.save(directory)
        facts = {"standing": standing, "next_offset": next_offset}
        return CheckpointFiles(directory=directory, facts=facts)

    def upload(self, checkpoint: CheckpointFiles) -> str:
        """Move a written checkpoint to the store.

        Returns:
            Key of the index, for the announcement.
        """
        lineage, number = checkpoint.facts["standing"]["version"]
        folder = f"{self._prefix}/{lineage}/{number:08d}"
        files = {}
        for path in sorted(checkpoint.directory.iterdir()):
            digest = sha256_of(path)
            key = f"{folder}/{path.stem}-{digest[:16]}{path.suffix}"
            self._store.put_file(key, path)
            files[path.name] = {"key": key, "sha256": digest, "size_bytes": path.stat().st_size}
        index = json.dumps({**checkpoint.facts, "files": files}, sort_keys=True).encode()
        key = f"{folder}/index-{hashlib.sha256(index).hexdigest()[:16]}.json"
        self._store.put(key, index)
        shutil.rmtree(checkpoint.directory)
        return key

    def restore(self, key: str, backend: Backend) -> dict[str, Any]:
        """Load a checkpoint into the backend.

        Returns:
            The facts that it was written with.

        Raises:
            WeightsError: The index or a file is not there, or not the one that was written; names
                it. Nothing is loaded.
        """
        index = json.loads(_index(self._store, key))
        with tempfile.TemporaryDirectory(dir=self._directory) as name:
            directory = Path(name)
            for file_name, entry in index["files"].items():
                path = directory / Path(file_name).name
                with contextlib.suppress(KeyError):
                    self._store.get_file(entry["key"], path, max_bytes=entry["size_bytes"])
                got = sha256_of(path) if path.is_file() else "no object"
                _require_sha256(entry["key"], got, entry["sha256"])
            backend.restore(directory)
        return index


def _require_sha256(key: str, got: str, expected: str) -> None:
    if got != expected:
        raise WeightsError(
            f"checkpoint file {key} must have sha256 {expected}: got {got}. "
            "Restore it from a copy of the bucket; without it an earlier checkpoint is used."
        )


def checkpoint_objects(store: Store, key: str) -> dict[str, int]:
    """The objects of a checkpoint by its index's key, the index included: key to bytes.

    Raises:
        WeightsError: The index is not there, or not the one of that key.
    """
    data = _index(store, key)
    entries = json.loads(data)["files"].values()
    return {key: len(data), **{entry["key"]: entry["size_bytes"] for entry in entries}}


def _index(store: Store, key: str) -> bytes:
    try:
        data = store.get(key, max_bytes=MAX_INDEX_BYTES)
    except KeyError:
        data = None
    got = "no object" if data is None else hashlib.sha256(data).hexdigest()
    named = PurePosixPath(key).stem.rpartition("-")[2]
    _require_sha256(key, got[: len(named)], named)
    return data or b""


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, 64 hex digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()
