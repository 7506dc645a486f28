from pathlib import Path

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_stream.errors import SchemaError
from astra_stream.log.headers import pack, unpack

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text("aé\0", max_size=3)
    | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("ab", max_size=2) | st.integers(-9, 9), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=50)
@given(plain)
def test_what_is_packed_unpacks_to_the_same(value: object):
    assert unpack(pack(value)) == value


def test_a_tuple_comes_back_as_a_list():
    assert unpack(pack((1, (2,)))) == [1, [2]]


@pytest.mark.parametrize("value", [{1, 2}, Path("p"), 2**64, 1j, [1, {"a": {2}}]], ids=repr)
def test_what_is_not_plain_is_refused(value: object):
    with pytest.raises(SchemaError, match="state and headers must hold plain values"):
        pack(value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        pack([1, 2])[:-1],
        pack(1) + pack(2),
        b"\xdd\xff\xff\xff\xff",
        msgpack.packb(msgpack.ExtType(5, b"x")),
        b"\x81\x90\x01",
        b"\xa1\xff",
        b"\x91" * 5000,
    ],
    ids=["empty", "unknown", "cut", "two", "huge", "extension", "list as key", "no text", "deep"],
)
def test_bytes_that_are_not_one_plain_value_are_refused(data: bytes):
    with pytest.raises(SchemaError, match="state and headers must be one msgpack value"):
        unpack(data)
