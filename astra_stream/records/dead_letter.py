"""DeadLetter: a record that could not be processed, whole where it fits, with what went wrong."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from astra_stream.records.checks import require_at_least, require_text


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Source coordinates, error and the original bytes."""

    topic: str
    """Topic that it was read from."""
    partition: int
    """Partition of that topic."""
    offset: int
    """Offset in that partition."""
    service: str
    """Who could not process it."""
    stage: str
    """Stage that failed."""
    error_kind: str
    """Class of the error."""
    error: str
    """What it said."""
    stack: str
    """Stack trace; empty where the record was refused by rule."""
    key: bytes
    """Original key; empty without one."""
    value: bytes
    """Original value; empty without one."""
    headers: Mapping[str, bytes] = field(default_factory=dict)
    """Original headers."""
    at_s: float = 0.0
    """Unix time of the failure, seconds."""
    num_bytes: int = 0
    """Bytes of key, value and headers where the record stood; more than here where it was cut."""

    def __post_init__(self) -> None:
        require_text("dead_letter.topic", self.topic)
        require_at_least("dead_letter.offset", self.offset, 0)

    @property
    def is_cut(self) -> bool:
        """Whether the record is larger than what is here: it stands whole at its coordinates."""
        return size_bytes(self.key, self.value, self.headers) < self.num_bytes


def size_bytes(key: bytes | None, value: bytes | None, headers: Mapping[str, bytes]) -> int:
    """Bytes of a record's key, value and headers, with their names."""
    names = (name.encode() for name in headers)
    return sum(map(len, (key or b"", value or b"", *names, *headers.values())))
