"""Follows announced snapshots: download, verify every byte, keep the newest two on disk.

Nothing that differs from its announcement is handed out, and no version older than the one held.
"""

import re
import shutil
from pathlib import Path, PurePosixPath

import xxhash

from astra_stream.engines.interface import WeightUpdate
from astra_stream.errors import WeightsError
from astra_stream.records import ObjectEntry, PolicyVersion, WeightAnnouncement
from astra_stream.store.blobs import Store, checked_key, file_sha256
from astra_stream.weights.hashing import canonical_bytes, root_hash
from astra_stream.weights.publisher import HASH_DIGITS, WEIGHTS_FILE, require_model_file
from astra_stream.weights.snapshot import FormatError, read_snapshot

KEPT_VERSIONS = 2
"""Versions that stay on disk: the one in use, and the one before while it is replaced."""
_HASHED_NAME = re.compile(rf"(.+)-([0-9a-f]{{{HASH_DIGITS}}})(\.[^.]+)?")
_UNFINISHED = ".unfinished"


class SnapshotFollower:
    """Completes snapshots of one policy below a directory that is its own."""

    def __init__(self, store: Store, directory: Path, policy: str) -> None:
        """Keep versions below ``directory``, which may hold those of an earlier start."""
        self._store = store
        self._directory = directory
        self._policy = policy
        self._held: WeightAnnouncement | None = None

    @property
    def version(self) -> PolicyVersion | None:
        """Newest version that was verified; None before the first."""
        return self._held.version if self._held else None

    def fetch(self, announcement: WeightAnnouncement) -> WeightUpdate:
        """Bring a version here and verify every byte of it; see ``Follower.fetch``."""
        directory = self.model_directory(announcement)
        try:
            tensors = read_snapshot(directory / WEIGHTS_FILE, announcement.tensors)
        except FormatError as error:
            raise self._refused(announcement, str(error)) from error
        return WeightUpdate(
            version=announcement.version,
            tensors=tensors,
            dtypes={entry.name: entry.dtype for entry in announcement.tensors},
        )

    def model_directory(self, announcement: WeightAnnouncement) -> Path:
        """A Hugging Face directory of a version, fetched and verified where it is not here yet."""
        self._require_newer(announcement)
        target = self._place(announcement)
        if announcement.version != self.version or not target.is_dir():
            self._require_described(announcement)
            self._complete(announcement, target)
            self._held = announcement
            self._forget_old()
        return target

    def _complete(self, announcement: WeightAnnouncement, target: Path) -> None:
        """Download what is missing or damaged beside the final name, verify, then rename."""
        unfinished = target.with_name(target.name + _UNFINISHED)
        shutil.rmtree(unfinished, ignore_errors=True)
        if target.is_dir():
            target.replace(unfinished)
        unfinished.mkdir(parents=True, exist_ok=True)
        for entry in announcement.objects:
            self._bring(announcement, entry, unfinished / self._file_name(announcement, entry))
        self._require_tensors(announcement, unfinished / WEIGHTS_FILE)
        unfinished.replace(target)

    def _bring(self, announcement: WeightAnnouncement, entry: ObjectEntry, path: Path) -> None:
        if path.is_file() and file_sha256(path) == entry.sha256:
            return
        try:
            self._store.get_file(entry.key, path, max_bytes=entry.size_bytes)
        except KeyError:
            raise self._refused(
                announcement, f"object {entry.key!r} must be in the store: got none"
            ) from None
        except WeightsError as error:
            raise self._refused(announcement, str(error).rstrip(".")) from error
        size_bytes, sha256 = path.stat().st_size, file_sha256(path)
        if size_bytes != entry.size_bytes or sha256 != entry.sha256:
            path.unlink()
            raise self._refused(
                announcement,
                f"sha256 of {entry.key!r} must be that announced: got {sha256[:12]}... of "
                f"{size_bytes} bytes, expected {entry.sha256[:12]}... of {entry.size_bytes}",
            )

    def _require_newer(self, announcement: WeightAnnouncement) -> None:
        if announcement.policy != self._policy:
            raise self._refused(
                announcement, f"policy must be {self._policy!r}: got {announcement.policy!r}"
            )
        if announcement.kind != "snapshot":
            raise self._refused(announcement, f"kind must be snapshot: got {announcement.kind!r}")
        held = self._held
        if held is None or announcement.version > held.version:
            return
        if announcement.version < held.version or announcement.root_hash != held.root_hash:
            raise self._refused(
                announcement,
                f"version must be newer than {held.version}: got {announcement.version} with "
                f"root hash {announcement.root_hash[:12]}...",
            )

    def _require_described(self, announcement: WeightAnnouncement) -> None:
        root = root_hash(announcement.tensors)
        if root != announcement.root_hash:
            raise self._refused(
                announcement,
                f"root hash of the tensor table must be {announcement.root_hash[:12]}...: got "
                f"{root[:12]}...",
            )
        names = [self._file_name(announcement, entry) for entry in announcement.objects]
        if names.count(WEIGHTS_FILE) != 1 or len(set(names)) != len(names):
            raise self._refused(
                announcement, f"objects must be one {WEIGHTS_FILE} and other files: got {names}"
            )

    def _require_tensors(self, announcement: WeightAnnouncement, path: Path) -> None:
        try:
            tensors = read_snapshot(path, announcement.tensors)
        except FormatError as error:
            raise self._refused(announcement, str(error)) from error
        for entry in announcement.tensors:
            found = xxhash.xxh3_128_hexdigest(canonical_bytes(tensors[entry.name]))
            if found != entry.xxh3:
                raise self._refused(
                    announcement,
                    f"tensor {entry.name!r} must hash to {entry.xxh3[:12]}...: got {found[:12]}...",
                )

    def _file_name(self, announcement: WeightAnnouncement, entry: ObjectEntry) -> str:
        try:
            name = _name_in(entry)
        except ValueError as error:
            raise self._refused(announcement, str(error).rstrip(".")) from error
        return name

    def _place(self, announcement: WeightAnnouncement) -> Path:
        lineage, number = announcement.version
        return (
            self._directory / f"{lineage:04d}-{number:08d}-{announcement.root_hash[:HASH_DIGITS]}"
        )

    def _forget_old(self) -> None:
        whole = sorted(path for path in self._directory.iterdir() if path.suffix != _UNFINISHED)
        for path in whole[:-KEPT_VERSIONS]:
            shutil.rmtree(path)

    def _refused(self, announcement: WeightAnnouncement, what: str) -> WeightsError:
        kept = self.version or "none"
        return WeightsError(f"weights {announcement.version}: {what}. Keeping {kept}.")


def _name_in(entry: ObjectEntry) -> str:
    """The file name of an object, whose key has its hash put in."""
    match = _HASHED_NAME.fullmatch(PurePosixPath(checked_key(entry.key)).name)
    if match is None or not entry.sha256.startswith(match[2]):
        raise ValueError(
            f"an object key must end in its content's hash: got {entry.key!r}. "
            "Do not follow who sent it."
        )
    name = match[1] + (match[3] or "")
    require_model_file(name)
    return name
