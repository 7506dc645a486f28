import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_stream.weights.hashing import model_fingerprint, root_hash, tensor_table


def _table(**tensors: np.ndarray):
    return tensor_table(tensors, dict.fromkeys(tensors, "F32"))


def test_the_table_keeps_the_models_order():
    table = _table(b=np.zeros(2, "<f4"), a=np.ones((1, 2), "<f4"))
    assert [(e.name, e.dtype, e.shape) for e in table] == [("b", "F32", (2,)), ("a", "F32", (1, 2))]


def test_the_hash_is_xxh3_128_with_seed_0():
    # The value of the empty input, from the algorithm's own test vectors.
    assert _table(a=np.zeros(0, "<f4"))[0].xxh3 == "99aa06d3014798d86001c324468d497f"


def test_a_transposed_tensor_hashes_as_it_is_read():
    array = np.arange(6, dtype="<f4").reshape(2, 3)
    assert _table(a=array.T) == _table(a=np.ascontiguousarray(array.T))


def test_tensors_without_elements_or_axes_have_a_hash():
    table = _table(empty=np.zeros((0, 3), "<f4"), scalar=np.float32(1.0).reshape(()))
    assert [entry.shape for entry in table] == [(0, 3), ()]


@given(place=st.integers(0, 7), bit=st.integers(0, 7))
def test_any_flipped_bit_changes_the_root(place: int, bit: int):
    array = np.arange(8, dtype=np.uint8)
    changed = array.copy()
    changed[place] ^= 1 << bit
    hashes = {root_hash(tensor_table({"a": a}, {"a": "U8"})) for a in (array, changed)}
    assert len(hashes) == 2


def test_name_dtype_shape_and_order_count_in_the_root():
    a, b = np.zeros(2, "<f4"), np.ones(2, "<f4")
    tables = [
        _table(a=a, b=b),
        _table(b=b, a=a),
        _table(a=b, b=a),
        _table(a=a, c=b),
        _table(a=a.reshape(2, 1), b=b),
        tensor_table({"a": a.view("<i4"), "b": b}, {"a": "I32", "b": "F32"}),
    ]
    assert len({root_hash(table) for table in tables}) == len(tables)


def test_training_leaves_the_fingerprint():
    before, after = _table(a=np.zeros(2, "<f4")), _table(a=np.ones(2, "<f4"))
    assert model_fingerprint(b"{}", before) == model_fingerprint(b"{}", after)
    assert model_fingerprint(b"{ }", before) != model_fingerprint(b"{}", before)
    assert model_fingerprint(b"{}", _table(b=np.zeros(2, "<f4"))) != model_fingerprint(b"{}", after)


@pytest.mark.parametrize("dtype", ["BF16", "F64", "F8_E4M3", ""])
def test_an_array_that_does_not_carry_its_dtype_is_refused(dtype: str):
    with pytest.raises(ValueError, match="tensor 'a' must be carried by the array type"):
        tensor_table({"a": np.zeros(2, "<f4")}, {"a": dtype})
