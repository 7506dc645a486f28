"""Whole weights as one safetensors file: equal bytes every time, read with distrust.

``https://github.com/huggingface/safetensors`` has the format: length, JSON header, data.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from astra_stream.records import TensorEntry
from astra_stream.weights.hashing import NUMPY_DTYPES, canonical_bytes

LENGTH_BYTES = 8
ALIGNMENT_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""


class FormatError(ValueError):
    """A file is not the snapshot that its table describes."""


def snapshot_pieces(
    tensors: Mapping[str, np.ndarray], table: Sequence[TensorEntry]
) -> Iterator[memoryview]:
    """The bytes of a safetensors file, piece by piece.

    The header lists tensors in the table's order. The data stands by falling item size, so that
    every tensor is aligned.

    Args:
        tensors: Name to array.
        table: The tensors' entries, in model order.
    """
    by_size = sorted(table, key=lambda entry: -_item_bytes(entry))
    begins: dict[str, int] = {}
    end = 0
    for entry in by_size:
        begins[entry.name] = end
        end += _num_bytes(entry)
    header = {"__metadata__": {"format": "pt"}} | {
        entry.name: {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [begins[entry.name], begins[entry.name] + _num_bytes(entry)],
        }
        for entry in table
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT_BYTES)
    yield memoryview(len(text).to_bytes(LENGTH_BYTES, "little") + text)
    for entry in by_size:
        yield canonical_bytes(tensors[entry.name])


def read_snapshot(path: Path, table: Sequence[TensorEntry]) -> dict[str, np.ndarray]:
    """Map a safetensors file that must hold exactly the tensors of ``table``.

    Args:
        path: The file.
        table: What was announced, in model order.

    Returns:
        Name to read-only array over the file, in the table's order.

    Raises:
        FormatError: Header or length differ from the table.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if not 0 < length <= min(MAX_HEADER_BYTES, size - LENGTH_BYTES):
            raise FormatError(f"header length must fit the file's {size} bytes: got {length}")
        header = _header(file.read(length))
    start = LENGTH_BYTES + length
    _require_described(header, table)
    _require_covered(header, table, size - start)
    data = np.memmap(path, dtype=np.uint8, mode="r", offset=start) if size > start else _NOTHING
    return {entry.name: _tensor(data, header[entry.name], entry) for entry in table}


_NOTHING = np.zeros(0, dtype=np.uint8)


def _header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except ValueError as error:
        raise FormatError(f"header must be JSON: got {error}") from error
    if not isinstance(header, dict):
        raise FormatError(f"header must be an object: got {type(header).__name__}")
    header.pop("__metadata__", None)
    return header


def _require_described(header: dict[str, Any], table: Sequence[TensorEntry]) -> None:
    wanted = {entry.name for entry in table}
    if header.keys() != wanted:
        odd = sorted(header.keys() ^ wanted)[:3]
        raise FormatError(f"tensor names must be those announced: got a difference in {odd}")
    for entry in table:
        found = header[entry.name]
        if not isinstance(found, dict) or found.get("dtype") != entry.dtype:
            raise FormatError(f"tensor {entry.name!r} must have dtype {entry.dtype}: got {found}")
        if found.get("shape") != list(entry.shape):
            raise FormatError(
                f"tensor {entry.name!r} must have shape {list(entry.shape)}: got {found}"
            )
        if entry.dtype not in NUMPY_DTYPES:
            raise FormatError(
                f"tensor {entry.name!r} must have one of {sorted(NUMPY_DTYPES)}: got {entry.dtype}"
            )


def _require_covered(header: dict[str, Any], table: Iterable[TensorEntry], size: int) -> None:
    """Tensors must lie one after another, without hole or overlap, to the end of the file."""
    spans = []
    for entry in table:
        span = header[entry.name].get("data_offsets")
        if not (isinstance(span, list) and len(span) == 2 and all(type(n) is int for n in span)):
            raise FormatError(f"tensor {entry.name!r} must have two offsets: got {span}")
        if span[1] - span[0] != _num_bytes(entry):
            raise FormatError(
                f"tensor {entry.name!r} must have {_num_bytes(entry)} bytes: got offsets {span}"
            )
        spans.append(span)
    place = 0
    for begin, end in sorted(spans):
        if begin != place:
            raise FormatError(f"tensors must follow one another: got {begin} after {place}")
        place = end
    if place != size:
        raise FormatError(f"tensors must fill the file's {size} data bytes: got {place}")


def _tensor(data: np.ndarray, found: dict[str, Any], entry: TensorEntry) -> np.ndarray:
    begin, end = found["data_offsets"]
    return data[begin:end].view(NUMPY_DTYPES[entry.dtype]).reshape(entry.shape)


def _item_bytes(entry: TensorEntry) -> int:
    return np.dtype(NUMPY_DTYPES[entry.dtype]).itemsize


def _num_bytes(entry: TensorEntry) -> int:
    return math.prod(entry.shape) * _item_bytes(entry)
