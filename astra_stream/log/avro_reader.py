"""Makes the function that reads a record from Avro."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from astra_stream.errors import RecordError
from astra_stream.log.avro_python import RUNTIME, Namespace, Read, compiled, kind_of

_NO_BYTES_BEGIN_SO = b"\xff" * 11
"""Longer than any integer, so no field matches it before something is remembered."""


class ReaderMaker:
    """Makes one function for each record that a schema mentions.

    A run of fields marked ``repeats`` is recognised by its bytes: a value's encoding tells its own
    length, so bytes that begin like the last run's are that run, and its values are used again.
    """

    def __init__(self, classes: Mapping[str, type]) -> None:
        self._classes = classes
        self._namespace: Namespace = dict(RUNTIME)
        self._variables = 0

    def read(self, schema: Mapping[str, Any]) -> Read:
        """Make the function of a record whose nested records are written out.

        Every record that it makes passes through its class's own checks.
        """
        name = f"read_{schema['name']}"
        fields = {field["name"]: self._variable("f") for field in schema["fields"]}
        lines = [f"def {name}(data, at):"]
        run: list[tuple[str, Any]] = []
        for field in schema["fields"]:
            if field.get("repeats"):
                run.append((fields[field["name"]], field["type"]))
                continue
            lines += self._repeated(run)
            run = []
            lines += self._value(field["type"], fields[field["name"]], "    ")
        lines += self._repeated(run)
        lines += self._shaped(schema, fields)
        lines += self._made(self._classes[schema["name"]], fields)
        function: Read = compiled(name, lines, self._namespace)
        return function

    def _repeated(self, run: list[tuple[str, Any]]) -> list[str]:
        if not run:
            return []
        memory = self._variable("memory")
        values = f"({', '.join(name for name, _ in run)},)"
        self._namespace[memory] = [(_NO_BYTES_BEGIN_SO, ())]
        return [
            f"    known = {memory}[0]",
            "    if data.startswith(known[0], at):",
            "        at += len(known[0])",
            f"        {values} = known[1]",
            "    else:",
            "        begin = at",
            *(line for name, part in run for line in self._value(part, name, "        ")),
            # A text that was cut off is noticed at the record's end: until then, do not trust it.
            "        if at <= len(data):",
            f"            {memory}[0] = (data[begin:at], {values})",
        ]

    def _shaped(self, schema: Any, fields: Mapping[str, str]) -> list[str]:
        lines = []
        for field in schema["fields"]:
            part, name = field["type"], fields[field["name"]]
            is_map = kind_of(part) == "map"
            shape = _shape(part["values"] if is_map else part)
            if shape is None:
                continue
            axes = f"({', '.join(fields[axis] for axis in shape)})"
            reshaped = f"reshaped({field['name']!r}, {{}}, {axes})"
            if is_map:
                lines.append(
                    f"    {name} = {{k: {reshaped.format('v')} for k, v in {name}.items()}}"
                )
            else:
                lines.append(f"    {name} = {reshaped.format(name)}")
            self._namespace["reshaped"] = _reshaped
        return lines

    def _made(self, cls: type, fields: Mapping[str, str]) -> list[str]:
        name = f"class_{cls.__name__}"
        self._namespace[name] = cls
        if issubclass(cls, tuple):
            return [f"    return new_tuple({name}, ({', '.join(fields.values())},)), at"]
        self._namespace[f"open_{name}"] = _open_twin(cls)
        return [
            f"    record = open_{name}()",
            *(f"    record.{field} = {value}" for field, value in fields.items()),
            f"    record.__class__ = {name}",
            *(["    record.__post_init__()"] if hasattr(cls, "__post_init__") else []),
            "    return record, at",
        ]

    def _value(self, schema: Any, name: str, indent: str) -> list[str]:
        makers = {
            "record": self._record,
            "array": self._array,
            "map": self._map,
            "optional": self._optional,
            "ndarray": self._ndarray,
        }
        kind = kind_of(schema)
        if kind in makers:
            lines = makers[kind](schema, name)
        else:
            lines = _leaf(kind, name) or self._named(kind, name)
        return [indent + line for line in lines]

    def _named(self, record: str, name: str) -> list[str]:
        return [f"{name}, at = read_{record.rpartition('.')[2]}(data, at)"]

    def _record(self, schema: Any, name: str) -> list[str]:
        self.read(schema)
        cls = self._classes[schema["name"]]
        if not issubclass(cls, tuple):
            return self._named(schema["name"], name)
        # Spans and turns are many and small: a call would take longer than what it does.
        parts = [(self._variable("f"), field["type"]) for field in schema["fields"]]
        lines = [line for part, inner in parts for line in self._value(inner, part, "")]
        values = ", ".join(part for part, _ in parts)
        return [*lines, f"{name} = new_tuple(class_{cls.__name__}, ({values},))"]

    def _ndarray(self, schema: Any, name: str) -> list[str]:
        dtype = self._variable("dtype")
        self._namespace[dtype] = np.dtype(schema["dtype"])
        return [
            *_LENGTH,
            # The copy is aligned, which a view into the message would be by chance only.
            f"if size % {np.dtype(schema['dtype']).itemsize}:",
            f"    raise odd_length(size, {dtype})",
            f"{name} = frombuffer(data[at : at + size], {dtype})",
            "at += size",
        ]

    def _array(self, schema: Any, name: str) -> list[str]:
        items, item = self._variable("items"), self._variable("item")
        return [
            f"{items} = []",
            *self._blocks([*self._value(schema["items"], item, ""), f"{items}.append({item})"]),
            f"{name} = tuple({items})",
        ]

    def _map(self, schema: Any, name: str) -> list[str]:
        key, item = self._variable("key"), self._variable("item")
        read = [*self._value("string", key, ""), *self._value(schema["values"], item, "")]
        return [f"{name} = {{}}", *self._blocks([*read, f"{name}[{key}] = {item}"])]

    def _blocks(self, body: list[str]) -> list[str]:
        count = self._variable("count")
        return [
            "while data[at]:",
            f"    {count} = data[at]",
            f"    if {count} & 129:",
            f"        {count}, at = read_block(data, at)",
            "    else:",
            f"        {count} >>= 1",
            "        at += 1",
            f"    for _ in range({count}):",
            *(f"        {line}" for line in body),
            "at += 1",
        ]

    def _optional(self, schema: Any, name: str) -> list[str]:
        return [
            "present = BOOLEANS[data[at] >> 1]",
            "at += 1",
            f"{name} = None",
            "if present:",
            *self._value(schema[1], name, "    "),
        ]

    def _variable(self, prefix: str) -> str:
        self._variables += 1
        return f"{prefix}{self._variables}"


_LENGTH = [
    "size = data[at]",
    "if size < 128:",
    "    at += 1",
    "elif (more := data[at + 1]) < 128:",
    "    size = size & 127 | more << 7",
    "    at += 2",
    "elif (most := data[at + 2]) < 128:",
    "    size = size & 127 | (more & 127) << 7 | most << 14",
    "    at += 3",
    "else:",
    "    size, at = read_long(data, at)",
    "    size <<= 1",
    "if size & 1 or size < 0:",
    "    raise negative_length(size)",
    "size >>= 1",
]
"""Reads a length, without a call where it has up to three bytes as most do."""


def _leaf(kind: str, name: str) -> list[str]:
    return {
        "string": [
            "size = data[at]",
            "if not size & 129:",
            "    end = at + 1 + (size >> 1)",
            f"    {name} = data[at + 1 : end].decode() if size else ''",
            "    at = end",
            "else:",
            f"    {name}, at = read_text(data, at)",
        ],
        "bytes": [f"{name}, at = read_bytes(data, at)"],
        "long": [
            f"{name} = data[at]",
            "at += 1",
            f"if {name} < 128:",
            f"    {name} = ({name} >> 1) ^ -({name} & 1)",
            "elif (more := data[at]) < 128:",
            f"    {name} = ({name} >> 1 & 63 | more << 6) ^ -({name} & 1)",
            "    at += 1",
            "else:",
            f"    {name}, at = read_long(data, at - 1)",
        ],
        "double": [f"({name},) = unpack_double(data, at)", "at += 8"],
        "boolean": [f"{name} = BOOLEANS[data[at]]", "at += 1"],
    }.get(kind, [])


def _open_twin(cls: type) -> type:
    """A class of the same layout whose fields can be set: a frozen one takes 10 times longer."""
    names = tuple(field.name for field in dataclasses.fields(cls))
    return type(f"Open{cls.__name__}", (), {"__slots__": names})


def _shape(schema: Any) -> list[str] | None:
    return schema.get("shape") if isinstance(schema, dict) else None


def _reshaped(field: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if min(shape) < 0 or array.size != int(np.prod(shape)):
        raise RecordError(
            f"batch_slice.{field} must have {shape} entries: got {array.size}. "
            "Give one entry per place."
        )
    return array.reshape(shape)
