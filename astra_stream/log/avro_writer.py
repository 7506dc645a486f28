"""Makes the function that writes a record as Avro."""

from collections.abc import Mapping
from typing import Any

from astra_stream.log.avro_python import RUNTIME, Namespace, Write, compiled, kind_of

_MEMORABLE = ("string", "long", "boolean")
"""Types whose equal values have equal bytes; 0.0 and -0.0 are equal and have not."""


class WriterMaker:
    """Makes one function for each record that a schema mentions.

    Fields marked ``repeats`` mostly equal those of the record before: neighbours among them are
    compared with what was written last and its bytes are used again.
    """

    def __init__(self) -> None:
        self._namespace: Namespace = dict(RUNTIME)
        self._variables = 0

    def write(self, schema: Mapping[str, Any]) -> Write:
        """Make the function of a record whose nested records are written out."""
        name = f"write_{schema['name']}"
        lines = [f"def {name}(record, add):"]
        run: list[tuple[str, Any]] = []
        for field in schema["fields"]:
            kind = kind_of(field["type"])
            if field.get("repeats") and kind in _MEMORABLE:
                run.append((f"record.{field['name']}", field["type"]))
                continue
            lines += self._repeated(run)
            run = []
            lines += self._value(field["type"], f"record.{field['name']}", "    ")
        lines += self._repeated(run)
        function: Write = compiled(name, lines, self._namespace)
        return function

    def _repeated(self, run: list[tuple[str, Any]]) -> list[str]:
        if not run:
            return []
        key, memory, pieces = self._variable("key"), self._variable("memory"), self._variable("p")
        self._namespace[memory] = [(None, b"")]
        written = [line for value, part in run for line in self._value(part, value, "        ")]
        return [
            f"    {key} = ({', '.join(value for value, _ in run)},)",
            f"    known = {memory}[0]",
            f"    if known[0] != {key}:",
            f"        {pieces} = []",
            *(line.replace("add(", f"{pieces}.append(") for line in written),
            f"        known = {memory}[0] = ({key}, b''.join({pieces}))",
            "    add(known[1])",
        ]

    def _value(self, schema: Any, value: str, indent: str) -> list[str]:
        makers = {
            "record": self._record,
            "array": self._array,
            "map": self._map,
            "optional": self._optional,
        }
        kind = kind_of(schema)
        if kind in makers:
            return [indent + line for line in makers[kind](schema, value)]
        name = self._variable("v")
        return [indent + line for line in _leaf(kind, value, name)] or self._named(
            kind, value, indent
        )

    def _named(self, name: str, value: str, indent: str) -> list[str]:
        return [f"{indent}write_{name.rpartition('.')[2]}({value}, add)"]

    def _record(self, schema: Any, value: str) -> list[str]:
        self.write(schema)
        return self._named(schema["name"], value, "")

    def _array(self, schema: Any, value: str) -> list[str]:
        item = self._variable("item")
        return [
            f"if {value}:",
            f"    add(long_bytes(len({value})))",
            f"    for {item} in {value}:",
            *self._value(schema["items"], item, "        "),
            "add(b'\\0')",
        ]

    def _map(self, schema: Any, value: str) -> list[str]:
        name, item = self._variable("name"), self._variable("item")
        return [
            f"if {value}:",
            f"    add(long_bytes(len({value})))",
            f"    for {name}, {item} in {value}.items():",
            *self._value("string", name, "        "),
            *self._value(schema["values"], item, "        "),
            "add(b'\\0')",
        ]

    def _optional(self, schema: Any, value: str) -> list[str]:
        return [
            f"if {value} is None:",
            "    add(b'\\0')",
            "else:",
            "    add(b'\\2')",
            *self._value(schema[1], value, "    "),
        ]

    def _variable(self, prefix: str) -> str:
        self._variables += 1
        return f"{prefix}{self._variables}"


def _leaf(kind: str, value: str, name: str) -> list[str]:
    size = f"add(SHORT[size] if (size := len({name})) < 4096 else long_bytes(size))"
    return {
        "string": [f"{name} = {value}.encode()", size, f"add({name})"],
        "bytes": [f"{name} = {value}", size, f"add({name})"],
        "ndarray": [
            f"{name} = {value}",
            f"add(long_bytes({name}.nbytes))",
            f"add({name} if {name}.flags.c_contiguous else contiguous({name}))",
        ],
        "long": [
            f"{name} = {value}",
            f"add(SHORT[{name}] if 0 <= {name} < 4096 else long_bytes({name}))",
        ],
        "double": [f"add(pack_double({value}))"],
        "boolean": [f"add(b'\\1' if {value} else b'\\0')"],
    }.get(kind, [])
