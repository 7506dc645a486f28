import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_stream.errors import RecordError
from astra_stream.records import MetricPoint, PolicyVersion, same_record
from astra_stream.records.checks import (
    require_array,
    require_at_least,
    require_finite,
    require_number,
    require_one_of,
    require_text,
)


def test_an_array_of_another_dtype_is_refused():
    require_array("a", np.zeros(3, "<f4"), "<f4", (3,))
    with pytest.raises(RecordError, match=r"^a must have dtype float32: got float64\. Convert it"):
        require_array("a", np.zeros(3), "<f4", (3,))
    with pytest.raises(RecordError, match="a must have dtype float32: got >f4"):
        require_array("a", np.zeros(3, ">f4"), "<f4", (3,))


def test_an_array_of_another_shape_is_refused():
    with pytest.raises(RecordError, match=r"^a must have 512 entries: got 511\. Give one"):
        require_array("a", np.zeros(511, "u1"), "u1", (512,))
    with pytest.raises(RecordError, match=r"a must have \(2, 3\) entries: got \(3, 2\)"):
        require_array("a", np.zeros((3, 2), "u1"), "u1", (2, 3))
    with pytest.raises(RecordError, match=r"a must have \(2, 3\) entries: got 6"):
        require_array("a", np.zeros(6, "u1"), "u1", (2, 3))


@given(
    place=st.integers(0, 99),
    value=st.sampled_from([math.nan, math.inf, -math.inf]),
    shape=st.sampled_from([(100,), (10, 10)]),
)
def test_the_first_place_that_is_not_finite_is_named(
    place: int, value: float, shape: tuple[int, ...]
):
    array = np.zeros(100, "<f4")
    array[place:] = value
    with pytest.raises(RecordError, match=rf"^a\[{place}\] must be finite: got {value}"):
        require_finite("a", array.reshape(shape))


def test_values_whose_squares_overflow_are_finite():
    require_finite("a", np.full(4, 3e38, "<f4"))
    require_finite("a", np.zeros((0, 3), "<f4"))
    require_finite("a", np.zeros((4, 4), "<f4")[:, ::2])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused(value: float):
    require_number("a", 1.0)
    with pytest.raises(RecordError, match=f"a must be finite: got {value}"):
        require_number("a", value)


@pytest.mark.parametrize("value", [-1, -0.5, math.nan])
def test_a_number_below_the_minimum_is_refused(value: float):
    require_at_least("a", 0, 0)
    with pytest.raises(RecordError, match=f"a must be at least 0: got {value}"):
        require_at_least("a", value, 0)


def test_words_are_checked():
    require_text("a", "x")
    require_one_of("a", "x", ("x", "y"))
    with pytest.raises(RecordError, match="a must not be empty"):
        require_text("a", "")
    with pytest.raises(RecordError, match=r"a must be one of \['x', 'y'\]: got 'z'"):
        require_one_of("a", "z", ("y", "x"))


def test_same_record_compares_arrays_bit_for_bit():
    nan = np.array([math.nan], "<f4")
    assert same_record(nan, nan.copy())
    assert not same_record(nan, nan.astype("<f8"))
    assert not same_record(nan, nan.reshape(1, 1))
    assert not same_record(np.array([0.0]), np.array([-0.0]))
    assert not same_record(nan, [math.nan])


def test_same_record_compares_what_records_hold():
    point = MetricPoint(series="loss", value=math.nan, step=1, labels={"a": "b"})
    assert same_record(point, dataclasses.replace(point))
    assert not same_record(point, dataclasses.replace(point, step=2))
    assert not same_record(point, dataclasses.replace(point, labels={"a": "c"}))
    assert not same_record(point, dataclasses.replace(point, labels={}))
    assert not same_record(point, PolicyVersion(0, 1))
    assert same_record((1, [2]), (1, [2]))
    assert not same_record((1,), (1, 2))
    assert not same_record((1,), (2,))
    assert not same_record(1.0, math.nan)
