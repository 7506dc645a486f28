"""What weights hash to: xxh3-128 of each tensor, SHA-256 over their table.

A cryptographic hash of every byte would take longer than the upload; the objects have one.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import xxhash

from astra_stream.records import TensorEntry

NUMPY_DTYPES: Mapping[str, str] = {
    "BF16": "<u2",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "I8": "|i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "U8": "|u1",
    "BOOL": "|b1",
}
"""safetensors dtype to the numpy dtype that carries it; bf16 travels as the same 16 bits."""


def canonical_bytes(array: np.ndarray) -> memoryview:
    """A tensor's little-endian bytes in C order; copied only where they do not lie so."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def tensor_table(
    tensors: Mapping[str, np.ndarray], dtypes: Mapping[str, str]
) -> tuple[TensorEntry, ...]:
    """Name, dtype, shape and hash of every tensor, in the mapping's order.

    Raises:
        ValueError: A tensor has no dtype, or its array is not the one that carries it.
    """
    for name, array in tensors.items():
        wanted = NUMPY_DTYPES.get(dtypes.get(name, ""))
        if wanted is None or array.dtype != np.dtype(wanted):
            raise ValueError(
                f"tensor {name!r} must be carried by the array type of its dtype: got "
                f"{array.dtype} for {dtypes.get(name)!r}. Known: {dict(NUMPY_DTYPES)}."
            )
    return tuple(
        TensorEntry(
            name=name,
            dtype=dtypes[name],
            shape=array.shape,
            xxh3=xxhash.xxh3_128_hexdigest(canonical_bytes(array)),
        )
        for name, array in tensors.items()
    )


def root_hash(table: Iterable[TensorEntry]) -> str:
    """SHA-256 over the ordered table, 64 hex digits."""
    rows = [[entry.name, entry.dtype, list(entry.shape), entry.xxh3] for entry in table]
    return hashlib.sha256(_unambiguous(rows)).hexdigest()


def model_fingerprint(config: bytes, table: Sequence[TensorEntry]) -> str:
    """SHA-256 of what stays the same while a model trains, 64 hex digits.

    Args:
        config: The model's ``config.json``.
        table: Its tensors; their hashes do not count.
    """
    rows = [[entry.name, entry.dtype, list(entry.shape)] for entry in table]
    return hashlib.sha256(hashlib.sha256(config).digest() + _unambiguous(rows)).hexdigest()


def _unambiguous(rows: Sequence[Sequence[object]]) -> bytes:
    return json.dumps(rows, separators=(",", ":")).encode()
