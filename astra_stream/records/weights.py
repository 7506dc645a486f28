"""Policy versions and the announcement that names the bytes of one; no tensors travel here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from astra_stream.records.checks import require_at_least, require_one_of, require_text

KINDS = ("snapshot", "delta", "skip", "final")


class PolicyVersion(NamedTuple):
    """How many batches made these weights, and in which lineage; ordered."""

    lineage: int
    """Counts trainers that could not reproduce the one before; 0 for the first."""
    number: int
    """How many batches were trained to make these weights; 0 for the initial ones."""

    def next(self) -> Self:
        """The version that the next batch makes."""
        return self._replace(number=self.number + 1)

    def __str__(self) -> str:
        return f"v{self.number}" if self.lineage == 0 else f"v{self.lineage}.{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor of the model, in the order of the snapshot."""

    name: str
    """Hugging Face parameter name."""
    dtype: str
    """safetensors dtype, such as BF16."""
    shape: tuple[int, ...]
    """Lengths of the axes."""
    xxh3: str
    """xxh3-128 of the canonical bytes, 32 hex digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectEntry:
    """One object in the store."""

    key: str
    """Key below the run's prefix; ends in the content's hash."""
    size_bytes: int
    """Bytes as stored."""
    sha256: str
    """SHA-256 of the stored bytes, 64 hex digits."""
    raw_size_bytes: int
    """Bytes once decompressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightAnnouncement:
    """Says that a version exists, which bytes it is, and where they lie."""

    policy: str
    """Name of the policy."""
    version: PolicyVersion
    """Which version the bytes are."""
    kind: str
    """snapshot, delta, skip, or final (no bytes: the last version stands, training has ended)."""
    base: PolicyVersion | None = None
    """Version that a delta applies to; null for a snapshot."""
    base_hash: str = ""
    """Root hash of the base; empty for a snapshot."""
    root_hash: str
    """SHA-256 over the ordered tensor table, 64 hex digits."""
    model_fingerprint: str
    """SHA-256 of the model's configuration, names, dtypes and shapes, 64 hex digits."""
    tensors: tuple[TensorEntry, ...]
    """Every tensor, in order."""
    objects: tuple[ObjectEntry, ...]
    """Where the bytes lie."""
    changed_fraction: float = 1.0
    """Share of elements that differ from the base; 1 for a snapshot."""
    num_bytes: int = 0
    """Bytes that a reader fetches."""
    train_metrics: Mapping[str, float] = field(default_factory=dict)
    """Diagnostics of the step that made this version, name to value."""
    num_trained_samples: int = 0
    """Samples trained up to and including this version."""
    num_trained_tokens: int = 0
    """Trained tokens up to and including this version."""
    batch_id: str = ""
    """Batch that made this version; empty for version 0."""
    checkpoint: str = ""
    """Key of the trainer checkpoint written for this version; empty where there is none."""

    def __post_init__(self) -> None:
        require_text("weight_announcement.policy", self.policy)
        require_one_of("weight_announcement.kind", self.kind, KINDS)
        require_at_least("weight_announcement.version.lineage", self.version.lineage, 0)
        require_at_least("weight_announcement.version.number", self.version.number, 0)
        for entry in self.objects:
            require_at_least("weight_announcement.objects.size_bytes", entry.size_bytes, 0)
