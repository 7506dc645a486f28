"""Publishes whole weights: serialise, upload, read back; announcing is the caller's transaction.

Effects, in order: model files, then the weights, each under a name that ends in its content's hash.
A crash after any of them leaves objects that nothing names; the next attempt finds them equal.
"""

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import numpy as np

from astra_stream.errors import WeightsError
from astra_stream.records import ObjectEntry, PolicyVersion, WeightAnnouncement
from astra_stream.store.blobs import Store, file_sha256
from astra_stream.weights.hashing import model_fingerprint, root_hash, tensor_table
from astra_stream.weights.snapshot import snapshot_pieces

WEIGHTS_FILE = "model.safetensors"
HASH_DIGITS = 16
"""Hex digits of a content's SHA-256 in its key."""
CONFIG_FILE = "config.json"

FILE_SUFFIXES = frozenset({".json", ".txt", ".jinja", ".model", ".safetensors"})
"""What a model directory may hold: data, and nothing that runs when it is loaded."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def require_model_file(name: str) -> None:
    """Refuse a file name that could lie elsewhere or be code.

    Raises:
        ValueError: It is not a plain name with one of ``FILE_SUFFIXES``.
    """
    if not _PLAIN_NAME.fullmatch(name) or PurePosixPath(name).suffix not in FILE_SUFFIXES:
        raise ValueError(
            f"a model file must be a plain name ending in one of {sorted(FILE_SUFFIXES)}: got "
            f"{name!r}. Leave it out."
        )


def hashed_name(name: str, sha256: str) -> str:
    """``config.json`` to ``config-<hash>.json``."""
    path = PurePosixPath(name)
    return f"{path.stem}-{sha256[:HASH_DIGITS]}{path.suffix}"


class SnapshotPublisher:
    """Publishes every version whole, as files that any Hugging Face program can load."""

    def __init__(
        self, store: Store, *, policy: str, files: Mapping[str, bytes], prefix: str = "weights"
    ) -> None:
        """Publish below ``<prefix>/<policy>/``.

        Args:
            store: Where to.
            policy: Name of the policy.
            files: Name to content of the model's other files: ``config.json``, the tokenizer's.
            prefix: First part of every key.

        Raises:
            ValueError: A file's name is no plain name, or is that of code.
        """
        for name in files:
            require_model_file(name)
        self._store = store
        self._files = dict(sorted(files.items()))
        self._policy = policy
        self._prefix = f"{prefix}/{policy}"
        self._uploaded: dict[str, ObjectEntry] = {}

    def publish(
        self,
        tensors: Mapping[str, np.ndarray],
        dtypes: Mapping[str, str],
        *,
        version: PolicyVersion,
        train_metrics: Mapping[str, float] | None = None,
        num_trained_samples: int = 0,
        num_trained_tokens: int = 0,
        batch_id: str = "",
        checkpoint: str = "",
    ) -> WeightAnnouncement:
        """Upload a version and make the record that announces it; see ``Publisher.publish``."""
        table = tensor_table(tensors, dtypes)
        objects = [self._put_model_file(*file) for file in self._files.items()]
        with tempfile.TemporaryDirectory(prefix="astra-publish-") as directory:
            path = Path(directory) / WEIGHTS_FILE
            with path.open("wb") as file:
                for piece in snapshot_pieces(tensors, table):
                    file.write(piece)
            folder = f"{self._prefix}/{version.lineage}/{version.number:08d}"
            objects.append(self._put(folder, path))
        return WeightAnnouncement(
            policy=self._policy,
            version=version,
            kind="snapshot",
            root_hash=root_hash(table),
            model_fingerprint=model_fingerprint(self._files.get(CONFIG_FILE, b""), table),
            tensors=table,
            objects=tuple(objects),
            num_bytes=sum(entry.size_bytes for entry in objects),
            train_metrics=dict(train_metrics or {}),
            num_trained_samples=num_trained_samples,
            num_trained_tokens=num_trained_tokens,
            batch_id=batch_id,
            checkpoint=checkpoint,
        )

    def _put_model_file(self, name: str, content: bytes) -> ObjectEntry:
        """They are the same for every version: uploaded with the first."""
        if name not in self._uploaded:
            with tempfile.TemporaryDirectory(prefix="astra-publish-") as directory:
                path = Path(directory) / name
                path.write_bytes(content)
                self._uploaded[name] = self._put(f"{self._prefix}/files", path)
        return self._uploaded[name]

    def _put(self, folder: str, path: Path) -> ObjectEntry:
        sha256, size_bytes = file_sha256(path), path.stat().st_size
        key = f"{folder}/{hashed_name(path.name, sha256)}"
        self._store.put_file(key, path)
        self._require_readable(key, size_bytes, sha256, path.with_suffix(".read-back"))
        return ObjectEntry(key=key, size_bytes=size_bytes, sha256=sha256, raw_size_bytes=size_bytes)

    def _require_readable(self, key: str, size_bytes: int, sha256: str, copy: Path) -> None:
        """Read it back whole: what is announced stands for ever, and no follower can repair it."""
        self._store.get_file(key, copy, max_bytes=size_bytes)
        found = file_sha256(copy)
        copy.unlink()
        if found != sha256:
            raise WeightsError(
                f"object {key!r} must be stored as it was sent: got sha256 {found}, expected "
                f"{sha256}. Nothing was announced: delete the object, check the store's disk, and "
                "start again."
            )
