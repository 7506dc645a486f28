"""Records to the plain dicts that an Avro library writes, and back.

What each field needs is decided once, from the schema and the record classes. Reading makes every
record through its class, so its checks run.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from astra_stream.errors import SchemaError

Convert = Callable[[Any], Any]


class Conversion(NamedTuple):
    """How a part of a record becomes plain, and back; None where it is plain already."""

    to_plain: Convert | None
    """Arrays to bytes, records to dicts."""
    from_plain: Convert | None
    """Undoes it; may change the dicts that it is given."""


class RecordConversion(NamedTuple):
    """How a whole record becomes a dict, and back."""

    to_plain: Convert
    """Raises AttributeError, TypeError or ValueError where a field holds another type."""
    from_plain: Convert
    """Raises RecordError where a field breaks the record's own rules."""


def record_conversion(schema: Mapping[str, Any], classes: Mapping[str, type]) -> RecordConversion:
    """Plan how a record and all records in it are converted.

    Args:
        schema: Of the record, nested records written out where they are first used.
        classes: Record class by the name that the schema gives it.
    """
    return _Planner(classes).record(schema)


class _Planner:
    def __init__(self, classes: Mapping[str, type]) -> None:
        self._classes = classes
        self._named: dict[str, Conversion] = {
            "string": Conversion(None, None),
            "boolean": Conversion(None, None),
            "bytes": Conversion(None, None),
            # fastavro would write 5000.5 as 5000 and the text "1.5" as 1.5: these refuse them.
            "long": Conversion(operator.index, None),
            "double": Conversion(operator.pos, None),
        }

    def record(self, schema: Mapping[str, Any]) -> RecordConversion:
        fields = {field["name"]: self._part(field["type"]) for field in schema["fields"]}
        plan = RecordConversion(
            _to_dict(fields),
            _from_dict(self._classes[schema["name"]], fields, _tables(schema)),
        )
        self._named[schema["name"]] = Conversion(*plan)
        return plan

    def _part(self, schema: Any) -> Conversion:
        if isinstance(schema, str):
            return self._named[schema.rpartition(".")[2]]
        if isinstance(schema, list):
            return _optional(self._part(schema[1]))
        if schema["type"] == "array":
            return _tuple(self._part(schema["items"]))
        if schema["type"] == "map":
            return _map(self._part(schema["values"]))
        if schema["type"] == "bytes":
            return _ndarray(np.dtype(schema["dtype"]))
        return Conversion(*self.record(schema))


def _to_dict(fields: Mapping[str, Conversion]) -> Convert:
    names = tuple(fields)
    converted = [(name, part.to_plain) for name, part in fields.items() if part.to_plain]

    def to_plain(record: Any) -> dict[str, Any]:
        plain = {name: getattr(record, name) for name in names}
        for name, convert in converted:
            plain[name] = convert(plain[name])
        return plain

    return to_plain


def _from_dict(
    cls: type, fields: Mapping[str, Conversion], tables: Mapping[str, Sequence[str]]
) -> Convert:
    converted = [(name, part.from_plain) for name, part in fields.items() if part.from_plain]

    def from_plain(plain: dict[str, Any]) -> Any:
        for name, convert in converted:
            plain[name] = convert(plain[name])
        for name, axes in tables.items():
            plain[name] = _reshaped(plain[name], [plain[axis] for axis in axes])
        return cls(**plain)

    return from_plain


def _optional(inner: Conversion) -> Conversion:
    def unless_none(convert: Convert | None) -> Convert | None:
        return convert and (lambda value: None if value is None else convert(value))

    return Conversion(unless_none(inner.to_plain), unless_none(inner.from_plain))


def _tuple(item: Conversion) -> Conversion:
    def each(convert: Convert | None) -> Convert | None:
        return convert and (lambda values: tuple(map(convert, values)))

    return Conversion(each(item.to_plain), each(item.from_plain) or tuple)


def _map(item: Conversion) -> Conversion:
    def each(convert: Convert | None) -> Convert | None:
        return convert and (lambda values: {name: convert(value) for name, value in values.items()})

    return Conversion(each(item.to_plain), each(item.from_plain))


def _ndarray(dtype: np.dtype[Any]) -> Conversion:
    def to_bytes(array: np.ndarray) -> bytes:
        if array.dtype != dtype:
            raise TypeError(f"an array of {array.dtype} in place of {dtype}")
        return array.tobytes()

    def from_bytes(data: bytes) -> np.ndarray:
        if len(data) % dtype.itemsize:
            raise SchemaError(
                f"an array of {dtype} must have a multiple of {dtype.itemsize} bytes: "
                f"got {len(data)}. Check the writer's version."
            )
        # fastavro gives a field that was added since its default as text, which is empty.
        return np.frombuffer(data or b"", dtype)

    return Conversion(to_bytes, from_bytes)


def _tables(schema: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """The fields whose arrays have several axes, and the fields that hold the axes' lengths."""
    parts = {field["name"]: field["type"] for field in schema["fields"]}
    arrays = {
        name: part.get("values", part) for name, part in parts.items() if isinstance(part, dict)
    }
    return {
        name: array["shape"]
        for name, array in arrays.items()
        if isinstance(array, dict) and "shape" in array
    }


def _reshaped(part: Any, shape: Sequence[int]) -> Any:
    if isinstance(part, dict):
        return {name: _reshaped(array, shape) for name, array in part.items()}
    # One that does not fill its rows stays flat: the record's own check refuses it and names it.
    return part.reshape(shape) if part.size == math.prod(shape) else part
