"""Hostile bytes for the codec: records that were flipped, cut, joined, stretched or made up.

Whatever comes in, decoding refuses it with ``RecordError`` or makes a record that travels on, in
memory and time that the length of the bytes bounds.
"""

import contextlib
import random
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from astra_stream.errors import RecordError
from astra_stream.log.codec import HEADER_BYTES, Codec
from astra_stream.records import same_record

MEASURED_EVERY = 32
"""One input in so many has its memory measured, which makes it slower."""
FIXED_BYTES = 256 * 1024
BYTES_PER_BYTE = 256
"""Peak of decoding: this times the length of the bytes, and ``FIXED_BYTES``. An Avro block of empty
parts costs most: each takes a byte or two, and becomes a dict."""
LONGEST_S = 0.5
"""CPU time for one input of a few kilobytes; it takes microseconds, save for a pause of the
interpreter's own."""

Samples = Sequence[bytes]
Mutate = Callable[[random.Random, Samples], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class FuzzReport:
    """What became of the inputs."""

    inputs: int
    refused: int
    """With ``RecordError``; the others were decoded."""
    slowest_s: float
    """CPU time of the slowest, of those whose memory was not measured."""
    peak_bytes: int
    """Largest peak of memory among those measured."""


def fuzz(codec: Codec, samples: Samples, *, num_inputs: int, seed: int) -> FuzzReport:
    """Decode mutations of encoded records, every kind of mutation as often as every other.

    Args:
        codec: What is tried.
        samples: Encoded records.
        num_inputs: How many to try.
        seed: Of all randomness.

    Raises:
        AssertionError: Names the first input, in hex, that did anything else, and what it did.
    """
    rng = random.Random(seed)
    refused, slowest_s, peak_bytes = 0, 0.0, 0
    for index in range(num_inputs):
        data = MUTATIONS[index % len(MUTATIONS)](rng, samples)
        if rng.randrange(MEASURED_EVERY):
            began_s = time.thread_time()
            refused += not _travels(codec, data)
            took_s = time.thread_time() - began_s
            slowest_s = max(slowest_s, took_s)
            assert took_s < LONGEST_S, f"{took_s:.3f} s: {data.hex()}"
        else:
            tracemalloc.start()
            refused += not _travels(codec, data)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            peak_bytes = max(peak_bytes, peak)
            assert peak < FIXED_BYTES + BYTES_PER_BYTE * len(data), f"{peak} bytes: {data.hex()}"
    return FuzzReport(
        inputs=num_inputs, refused=refused, slowest_s=slowest_s, peak_bytes=peak_bytes
    )


def _travels(codec: Codec, data: bytes) -> bool:
    """Decode, and say whether a record came of it, which must come back from its own bytes."""
    is_refused, is_same = True, True
    try:
        with contextlib.suppress(RecordError):
            record = codec.decode(data)
            is_refused = False
        if not is_refused:
            is_same = same_record(codec.decode(codec.encode(record)), record)
    except BaseException as error:
        raise AssertionError(f"{error!r}: {data.hex()}") from error
    assert is_same, f"another record: {data.hex()}"
    return not is_refused


def _flipped(rng: random.Random, samples: Samples) -> bytes:
    data = bytearray(rng.choice(samples))
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(HEADER_BYTES, len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _cut(rng: random.Random, samples: Samples) -> bytes:
    data = rng.choice(samples)
    return data[: rng.randrange(len(data))]


def _joined(rng: random.Random, samples: Samples) -> bytes:
    head, tail = rng.choice(samples), rng.choice(samples)
    return head[: rng.randrange(len(head))] + tail[rng.randrange(len(tail)) :]


def _claiming_gigabytes(rng: random.Random, samples: Samples) -> bytes:
    """A length or a count, often negative, that is far beyond the bytes there are."""
    data = rng.choice(samples)
    place = rng.randrange(HEADER_BYTES, len(data))
    claim = _varint(rng.getrandbits(rng.randint(24, 64)))
    return data[:place] + claim + data[place + rng.randint(0, len(claim)) :]


def _stretched(rng: random.Random, samples: Samples) -> bytes:
    """A part of it many times over."""
    data = rng.choice(samples)
    start = rng.randrange(HEADER_BYTES, len(data))
    end = start + rng.randint(1, 8)
    return data[:end] + data[start:end] * rng.randint(1, 64) + data[end:]


def _made_up(rng: random.Random, samples: Samples) -> bytes:
    kept = rng.randint(HEADER_BYTES, 2 * HEADER_BYTES)
    return rng.choice(samples)[:kept] + rng.randbytes(rng.randrange(256))


def _of_another_schema(rng: random.Random, samples: Samples) -> bytes:
    body = rng.choice(samples)[HEADER_BYTES:]
    if rng.randrange(2):
        return rng.choice(samples)[:HEADER_BYTES] + body
    return rng.choice(samples)[:2] + rng.randbytes(HEADER_BYTES - 2) + body


def _zeroed(rng: random.Random, samples: Samples) -> bytes:
    """A hole of zeros or ones, as a torn write leaves."""
    data = rng.choice(samples)
    start = rng.randrange(len(data))
    end = rng.randint(start, len(data))
    return data[:start] + bytes([rng.choice((0, 255))]) * (end - start) + data[end:]


MUTATIONS: Sequence[Mutate] = (
    _flipped,
    _cut,
    _joined,
    _claiming_gigabytes,
    _stretched,
    _made_up,
    _of_another_schema,
    _zeroed,
)


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])
