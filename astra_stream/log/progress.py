"""Which offsets may be committed when work ends out of order.

The low-water mark moves over delivered offsets only: what was never delivered may be a hole (a
control record) or a record still to come. What is finished above it travels as metadata of the
commit, so that a restart repeats only unfinished work.
"""

import base64
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Self

from astra_stream.errors import SchemaError
from astra_stream.log.interface import Committed

METADATA_LIMIT_BYTES = 3500
"""Brokers refuse more than 4096 by default."""
MAX_NUMBERS = 1_000_000
"""More than any commit can say honestly; bounds what a damaged one can make us allocate."""
_FORMAT = "p2:"


class PartitionProgress:
    """What has been delivered from one partition, and what of it is finished.

    Bound to one assignment: when the partition is taken away, drop the object.

    Args:
        start_offset: Next offset that will be read.
        done: Offsets at or above it that are finished already.
        attempts: Offset to how often its work was started and not finished.
        first_starts_s: Offset to the Unix time of the first of those starts, whole seconds.
    """

    def __init__(
        self,
        start_offset: int,
        done: frozenset[int] = frozenset(),
        *,
        attempts: Mapping[int, int] | None = None,
        first_starts_s: Mapping[int, int] | None = None,
    ) -> None:
        self._low_water = start_offset
        self._next = start_offset
        self._waiting: deque[int] = deque()
        self._unfinished: set[int] = set()
        self._done = set(done)
        self._attempts = dict(attempts or {})
        self._first_starts_s = dict(first_starts_s or {})

    @classmethod
    def from_committed(cls, committed: Committed) -> Self:
        """Go on from a group's position.

        Raises:
            SchemaError: The metadata was not written by ``committed()``.
        """
        done, attempts, first_starts_s = _decode(committed)
        return cls(committed.offset, done, attempts=attempts, first_starts_s=first_starts_s)

    def delivered(self, offset: int) -> None:
        """Note that the log handed out a record; offsets must rise."""
        if offset < self._next:
            raise ValueError(
                f"delivered offset must be at least {self._next}: got {offset}. "
                "Make a new progress when a partition is read again."
            )
        self._next = offset + 1
        self._waiting.append(offset)
        if offset not in self._done:
            self._unfinished.add(offset)
        self._advance()

    def started(self, offset: int, *, at_s: float = 0.0) -> int:
        """Count a start of the work; return how often it has been started, this one included.

        Args:
            offset: Of a record that was delivered and is not finished.
            at_s: Unix time of the start, seconds; kept for the first of those that count.
        """
        self._require_unfinished(offset)
        self._first_starts_s.setdefault(offset, int(at_s))
        self._attempts[offset] = self._attempts.get(offset, 0) + 1
        return self._attempts[offset]

    def given_back(self, offset: int) -> None:
        """Take back a start of work that ended without a crash and without a result."""
        self._require_unfinished(offset)
        count = self._attempts.pop(offset, 1) - 1
        if count:
            self._attempts[offset] = count
        else:
            self._first_starts_s.pop(offset, None)

    def num_starts(self, offset: int) -> int:
        """How often this record's work was started and neither finished nor given back."""
        return self._attempts.get(offset, 0)

    def first_start_s(self, offset: int) -> int | None:
        """Unix time of the first of those starts, whole seconds; None where there is none."""
        return self._first_starts_s.get(offset)

    def finished(self, offset: int) -> None:
        """Note that the work of a delivered record has ended; once."""
        self._require_unfinished(offset)
        self._unfinished.discard(offset)
        self._forget_starts(offset)
        self._done.add(offset)
        self._advance()

    def is_done(self, offset: int) -> bool:
        """Whether this record's work has ended, here or before a restart."""
        return offset in self._done or (offset < self._low_water)

    @property
    def low_water(self) -> int:
        """Next offset to read after a restart: all that was delivered below it is finished."""
        return self._low_water

    @property
    def num_in_flight(self) -> int:
        """Delivered records whose work has not ended."""
        return len(self._unfinished)

    def committed(self, *, limit_bytes: int = METADATA_LIMIT_BYTES) -> Committed:
        """What to commit: the low-water mark, and what is known above it.

        Where that exceeds ``limit_bytes`` the highest finished offsets are left out, and a restart
        repeats them: stop taking work when it no longer ``fits``.
        """
        metadata = self._encoded()
        kept, attempts = sorted(self._done), sorted(self._attempts.items())
        while len(metadata) > limit_bytes:
            kept, attempts = kept[: len(kept) // 2], attempts[: len(attempts) // 2]
            metadata = encode(
                self._low_water, kept, dict(attempts), first_starts_s=self._first_starts_s
            )
        return Committed(self._low_water, metadata)

    def fits(self, limit_bytes: int = METADATA_LIMIT_BYTES) -> bool:
        """Whether all of it fits into a commit."""
        return len(self._encoded()) <= limit_bytes

    def _encoded(self) -> str:
        return encode(
            self._low_water, self._done, self._attempts, first_starts_s=self._first_starts_s
        )

    def _advance(self) -> None:
        while self._waiting and self._waiting[0] not in self._unfinished:
            passed = self._waiting.popleft()
            self._done.discard(passed)
            self._forget_starts(passed)
            self._low_water = passed + 1

    def _forget_starts(self, offset: int) -> None:
        self._attempts.pop(offset, None)
        self._first_starts_s.pop(offset, None)

    def _require_unfinished(self, offset: int) -> None:
        if offset not in self._unfinished:
            raise ValueError(
                f"offset must be delivered and unfinished: got {offset}. "
                "Drop work of partitions that were taken away."
            )


def encode(
    low_water: int,
    done: Iterable[int],
    attempts: Mapping[int, int],
    *,
    first_starts_s: Mapping[int, int] | None = None,
) -> str:
    """Metadata for a commit at ``low_water``; empty when there is nothing to say.

    Args:
        low_water: Offset that is committed.
        done: Finished offsets at or above it.
        attempts: Offset to starts that did not end.
        first_starts_s: Offset to the Unix time of the first of them, whole seconds; an offset of
            ``attempts`` that it lacks counts as started at 0.
    """
    if not done and not attempts:
        return ""
    numbers = list(_run_lengths(low_water, sorted(done)))
    started_s = {offset: (first_starts_s or {}).get(offset, 0) for offset in attempts}
    earliest_s = min(started_s.values(), default=0)
    body = [len(numbers), *numbers, earliest_s]
    before = low_water
    for offset, count in sorted(attempts.items()):
        body += [offset - before, count, started_s[offset] - earliest_s]
        before = offset
    packer = zlib.compressobj(9, strategy=zlib.Z_HUFFMAN_ONLY)
    packed = packer.compress(b"".join(map(_varint, body))) + packer.flush()
    return _FORMAT + base64.b85encode(packed).decode()


def decode(committed: Committed) -> tuple[frozenset[int], dict[int, int]]:
    """The finished offsets and the attempts that ``encode`` wrote.

    Raises:
        SchemaError: The text is of another origin or damaged.
    """
    done, attempts, _ = _decode(committed)
    return done, attempts


def _decode(committed: Committed) -> tuple[frozenset[int], dict[int, int], dict[int, int]]:
    """What ``decode`` says, and the times of first starts."""
    if not committed.metadata:
        return frozenset(), {}, {}
    try:
        body = _unpack(committed.metadata)
        runs, (earliest_s, *starts) = body[1 : 1 + body[0]], body[1 + body[0] :]
        done = _offsets_of(runs, committed.offset)
        attempts: dict[int, int] = {}
        first_starts_s: dict[int, int] = {}
        at = committed.offset
        for gap, count, later_s in zip(starts[::3], starts[1::3], starts[2::3], strict=True):
            at += gap
            attempts[at], first_starts_s[at] = count, earliest_s + later_s
    except (ValueError, IndexError, zlib.error) as error:
        raise SchemaError(
            f"metadata of a committed offset must be written by this package: got "
            f"{committed.metadata[:40]!r} ({error}). Reset the group's positions."
        ) from error
    return done, attempts, first_starts_s


def _unpack(metadata: str) -> list[int]:
    if not metadata.startswith(_FORMAT):
        raise ValueError("another format")
    packed = base64.b85decode(metadata[len(_FORMAT) :])
    unpacker = zlib.decompressobj()
    numbers = list(_numbers(unpacker.decompress(packed, MAX_NUMBERS)))
    if not unpacker.eof:
        raise ValueError("cut short")
    return numbers


def _offsets_of(runs: list[int], start: int) -> frozenset[int]:
    if sum(runs[1::2]) > MAX_NUMBERS:
        raise ValueError("too many offsets")
    offsets: set[int] = set()
    for gap, length in zip(runs[::2], runs[1::2], strict=True):
        offsets.update(range(start + gap, start + gap + length))
        start += gap + length
    return frozenset(offsets)


def _run_lengths(low_water: int, offsets: list[int]) -> Iterator[int]:
    if not offsets:
        return
    end = low_water
    starts = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(offsets)) if b != a + 1)]
    for first, past in pairwise([*starts, len(offsets)]):
        yield offsets[first] - end
        yield past - first
        end = offsets[first] + past - first


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def _numbers(data: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield number
            number = shift = 0
