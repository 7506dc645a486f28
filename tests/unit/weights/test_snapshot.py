import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load

from astra_stream.records import TensorEntry
from astra_stream.weights.hashing import NUMPY_DTYPES, tensor_table
from astra_stream.weights.snapshot import FormatError, read_snapshot, snapshot_pieces

TENSORS = {
    "z.weight": np.arange(3, dtype="<u2"),
    "a.bias": np.arange(4, dtype="<f4").reshape(2, 2),
    "empty": np.zeros((0, 5), "<f4"),
}
DTYPES = {"z.weight": "BF16", "a.bias": "F32", "empty": "F32"}
TABLE = tensor_table(TENSORS, DTYPES)


def _bytes(tensors: dict[str, np.ndarray], table: tuple[TensorEntry, ...]) -> bytes:
    return b"".join(snapshot_pieces(tensors, table))


def test_a_snapshot_reads_back_in_the_models_order(tmp_path: Path):
    (tmp_path / "m").write_bytes(_bytes(TENSORS, TABLE))
    tensors = read_snapshot(tmp_path / "m", TABLE)
    assert list(tensors) == list(TENSORS)
    for name, array in tensors.items():
        assert array.flags.aligned
        assert not array.flags.writeable
        np.testing.assert_array_equal(array, TENSORS[name])


def test_the_bytes_do_not_depend_on_the_order_of_the_mapping():
    shuffled = {name: TENSORS[name] for name in reversed(TENSORS)}
    assert _bytes(shuffled, TABLE) == _bytes(TENSORS, TABLE)


@given(
    st.dictionaries(
        st.text("ab.é", min_size=1, max_size=3),
        st.tuples(
            st.sampled_from(sorted(set(NUMPY_DTYPES) - {"BF16"})),
            st.lists(st.integers(0, 3), max_size=3),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_the_library_of_the_format_reads_it(shapes: dict[str, tuple[str, list[int]]]):
    tensors = {
        name: np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(NUMPY_DTYPES[dtype])
        for name, (dtype, shape) in shapes.items()
    }
    table = tensor_table(tensors, {name: dtype for name, (dtype, _) in shapes.items()})
    loaded = load(_bytes(tensors, table))
    assert loaded.keys() == tensors.keys()
    for name, array in tensors.items():
        assert loaded[name].dtype == array.dtype
        np.testing.assert_array_equal(loaded[name], array)


def _rewritten(path: Path, change: Callable[[dict[str, Any]], None], data_end: int | None) -> None:
    raw = _bytes(TENSORS, TABLE)
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :][:data_end])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h.update(odd=h.pop("z.weight")), "names must be those announced: .*'odd'"),
        (lambda h: h.update(more=h["z.weight"]), "names must be those announced: .*'more'"),
        (lambda h: h["a.bias"].update(dtype="I32"), "'a.bias' must have dtype F32"),
        (lambda h: h.update({"a.bias": 3}), "'a.bias' must have dtype F32: got 3"),
        (lambda h: h["a.bias"].update(shape=[4]), r"'a.bias' must have shape \[2, 2\]"),
        (lambda h: h["a.bias"].update(data_offsets=[0, 8]), "must have 16 bytes"),
        (lambda h: h["a.bias"].update(data_offsets=[-16, 0]), "must follow one another: got -16"),
        (lambda h: h["a.bias"].update(data_offsets=[6, 22]), "must follow one another"),
        (lambda h: h["a.bias"].update(data_offsets=[0, 1, 2]), "must have two offsets"),
        (lambda h: h["a.bias"].update(data_offsets=[False, 16]), "two offsets: got .False"),
    ],
)
def test_a_header_that_differs_from_the_table_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
):
    _rewritten(tmp_path / "m", change, None)
    with pytest.raises(FormatError, match=message):
        read_snapshot(tmp_path / "m", TABLE)


def test_missing_data_is_refused(tmp_path: Path):
    _rewritten(tmp_path / "m", lambda _: None, -1)
    with pytest.raises(FormatError, match="must fill the file's 21 data bytes: got 22"):
        read_snapshot(tmp_path / "m", TABLE)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0" * 7,
        b"\0" * 8,
        b"\xff" * 16,
        (2**40).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"{{",
    ],
)
def test_a_broken_header_is_refused(tmp_path: Path, raw: bytes):
    (tmp_path / "m").write_bytes(raw)
    with pytest.raises(FormatError, match="header"):
        read_snapshot(tmp_path / "m", TABLE)


def test_a_dtype_that_nothing_carries_is_refused(tmp_path: Path):
    table = (TensorEntry(name="a", dtype="F4", shape=(1,), xxh3=""),)
    text = b'{"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}}'
    (tmp_path / "m").write_bytes(len(text).to_bytes(8, "little") + text + b"x")
    with pytest.raises(FormatError, match="'a' must have one of"):
        read_snapshot(tmp_path / "m", table)
