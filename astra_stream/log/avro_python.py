"""Python functions, made from a schema, that write and read one record as Avro binary.

fastavro spends 0.4 us on every field, which is 20 us for a trajectory whatever its length; these
functions do the same in a quarter of it. ``tests/unit/log_codec`` holds both to the same bytes.
"""

import functools
import operator
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from astra_stream.errors import SchemaError

Namespace = dict[str, Any]

Write = Callable[[Any, Callable[[bytes], None]], None]
"""Appends a record's bytes, piece by piece."""
Read = Callable[[bytes, int], tuple[Any, int]]
"""Makes the record that begins at an offset; also returns the offset after it."""

_MAX_VARINT_BITS = 63


def long_bytes(value: int) -> bytes:
    """Avro's zigzag variable-length form of a 64-bit integer."""
    number = operator.index(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise SchemaError(f"an integer must fit in 64 bits: got {number}. Correct the writer.")
    zigzag = (number << 1) ^ (number >> 63)
    out = bytearray()
    while zigzag > 127:
        out.append(zigzag & 127 | 128)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def read_long(data: bytes, place: int) -> tuple[int, int]:
    """The integer at ``place``, and the place after it."""
    zigzag = shift = 0
    while True:
        byte = data[place]
        place += 1
        zigzag |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > _MAX_VARINT_BITS:
            raise SchemaError("an integer must have at most 10 bytes: got more. Check the topic.")
    return (zigzag >> 1) ^ -(zigzag & 1), place


def read_bytes(data: bytes, place: int) -> tuple[bytes, int]:
    """The length-prefixed bytes at ``place``, and the place after them."""
    size, place = read_long(data, place)
    end = place + size
    if size < 0 or end > len(data):
        raise SchemaError(
            f"a length must be between 0 and the {len(data) - place} bytes left: got {size}. "
            "Check that nothing else writes to this topic."
        )
    return data[place:end], end


def read_text(data: bytes, place: int) -> tuple[str, int]:
    """The text at ``place``, and the place after it."""
    raw, place = read_bytes(data, place)
    return raw.decode(), place


def negative_length(zigzag: int) -> SchemaError:
    """The error of a length below 0."""
    return SchemaError(
        f"a length must be at least 0: got {(zigzag >> 1) ^ -(zigzag & 1)}. "
        "Check that nothing else writes to this topic."
    )


def odd_length(size: int, dtype: np.dtype[Any]) -> SchemaError:
    """The error of an array that ends within an item."""
    return SchemaError(
        f"an array of {dtype} must have a multiple of {dtype.itemsize} bytes: got {size}. "
        "Check the writer's version."
    )


def read_block(data: bytes, place: int) -> tuple[int, int]:
    """Items in the next block of an Avro array or map; 0 after the last."""
    count, place = read_long(data, place)
    if count < 0:
        count = -count
        _, place = read_long(data, place)
    return count, place


SHORT = [long_bytes(number) for number in range(4096)]
"""Encoded integers from 0, looked up because nearly all lengths, steps and versions are small."""

RUNTIME: Mapping[str, Any] = {
    "SHORT": SHORT,
    "BOOLEANS": (False, True),
    "long_bytes": functools.lru_cache(maxsize=16384)(long_bytes),
    "contiguous": np.ascontiguousarray,
    "frombuffer": np.frombuffer,
    "pack_double": struct.Struct("<d").pack,
    "unpack_double": struct.Struct("<d").unpack_from,
    "read_long": read_long,
    "read_bytes": read_bytes,
    "read_text": read_text,
    "negative_length": negative_length,
    "odd_length": odd_length,
    "read_block": read_block,
    "new_tuple": tuple.__new__,
}
"""What the made functions call."""


def compiled(name: str, lines: list[str], namespace: Namespace) -> Any:
    """Turn source lines into the function ``name``."""
    exec(compile("\n".join(lines), f"<avro {name}>", "exec"), namespace)
    return namespace[name]


def kind_of(schema: Any) -> str:
    """The Avro type of a schema's part; ``ndarray`` for bytes that are one; ``optional``."""
    if isinstance(schema, list):
        return "optional"
    if isinstance(schema, str):
        return schema
    return str(schema.get("logicalType", schema["type"]))
