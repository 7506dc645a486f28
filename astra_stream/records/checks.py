"""The rules that records hold to, checked when one is made, hence on writing as well as on reading.

A check either returns nothing or raises ``RecordError`` with the field, the value and the remedy.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from astra_stream.errors import RecordError

_dtype = functools.cache(np.dtype)


def require_array(field: str, array: np.ndarray, dtype: str, shape: tuple[int, ...]) -> None:
    """Refuse an array of another dtype or shape.

    Args:
        field: Name for the message, such as ``trajectory.segments[0].tokens``.
        array: What was given.
        dtype: Little-endian numpy dtype string, such as ``<i4``.
        shape: The only shape accepted.

    Raises:
        RecordError: The dtype or the shape differs.
    """
    if array.dtype != _dtype(dtype):
        raise RecordError(
            f"{field} must have dtype {_dtype(dtype)}: got {array.dtype}. Convert it first."
        )
    if array.shape != shape:
        wanted = shape[0] if len(shape) == 1 else shape
        got = array.shape[0] if array.ndim == 1 else array.shape
        raise RecordError(
            f"{field} must have {wanted} entries: got {got}. Give one entry per token or sample."
        )


def require_finite(field: str, array: np.ndarray) -> None:
    """Refuse NaN and infinities; names the first place that has one."""
    flat = array if array.ndim == 1 else array.reshape(-1)
    if math.isfinite(_sum_of_squares(flat)) or bool(np.isfinite(flat).all()):
        return
    place = int(np.flatnonzero(~np.isfinite(flat))[0])
    raise RecordError(
        f"{field}[{place}] must be finite: got {flat[place]}. Find what made it; it cannot train."
    )


@np.errstate(over="ignore", invalid="ignore")
def _sum_of_squares(flat: np.ndarray) -> float:
    """The quickest thing that a NaN or an infinity anywhere turns into one; so may large values."""
    return flat.dot(flat)


def require_number(field: str, value: float) -> None:
    """Refuse a float that is NaN or infinite."""
    if not math.isfinite(value):
        raise RecordError(f"{field} must be finite: got {value}. Mark the sample not valid.")


def require_at_least(field: str, value: float, minimum: float) -> None:
    """Refuse a number below ``minimum``."""
    if not value >= minimum:
        raise RecordError(f"{field} must be at least {minimum}: got {value}. Correct the writer.")


def require_text(field: str, value: str) -> None:
    """Refuse an empty string."""
    if not value:
        raise RecordError(f"{field} must not be empty: got ''. Give it a name.")


def require_one_of(field: str, value: str, allowed: Sequence[str]) -> None:
    """Refuse a word outside a closed set."""
    if value not in allowed:
        raise RecordError(f"{field} must be one of {sorted(allowed)}: got {value!r}. Choose one.")


def same_record(left: Any, right: Any) -> bool:
    """Say whether two records are equal field by field: arrays bit for bit, NaN equal to NaN."""
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return (
            isinstance(left, np.ndarray)
            and isinstance(right, np.ndarray)
            and left.dtype == right.dtype
            and left.shape == right.shape
            and left.tobytes() == right.tobytes()
        )
    if type(left) is not type(right):
        return False
    if dataclasses.is_dataclass(left):
        names = (field.name for field in dataclasses.fields(left))
        return all(same_record(getattr(left, name), getattr(right, name)) for name in names)
    if isinstance(left, Sequence) and not isinstance(left, str | bytes):
        return len(left) == len(right) and all(map(same_record, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same_record(left[k], right[k]) for k in left)
    both_nan = isinstance(left, float) and math.isnan(left) and math.isnan(right)
    return both_nan or bool(left == right)
