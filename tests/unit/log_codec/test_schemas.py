"""Schemas and record classes say the same."""

import ast
import dataclasses
import importlib
import inspect
import itertools
import json
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import avro.schema
import numpy as np
import pytest
from fastavro.schema import to_parsing_canonical_form

from astra_stream.errors import ConfigError
from astra_stream.log.schemas import RECORDS, Schema, classes, complete, load_schemas

SCHEMAS = Path(__file__).parents[3] / "schemas"
CURRENT = {schema.record: schema for schema in load_schemas(SCHEMAS) if schema.is_current}
NUMPY_NAMES = {"<i4": "int32", "<f4": "float32", "u1": "uint8"}
PLAIN = {str: "string", float: "double", int: "long", bool: "boolean", bytes: "bytes"}


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Every record that a schema writes out."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _parts(branch)
    elif isinstance(schema, dict):
        if schema["type"] == "record":
            yield schema
        for field in schema.get("fields", []):
            yield from _parts(field["type"])
        for part in ("items", "values"):
            yield from _parts(schema.get(part))


PARTS = [
    pytest.param(part, classes(RECORDS[record])[part["name"]], id=f"{record}-{part['name']}")
    for record, schema in CURRENT.items()
    for part in _parts(schema.definition)
]


def _documented(cls: type) -> dict[str, str]:
    """Field to the text under it, in order."""
    tree = ast.parse(inspect.getsource(importlib.import_module(cls.__module__)))
    body = next(
        node.body
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__
    )
    found = {}
    for node, after in itertools.pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(after, ast.Expr):
            found[ast.unparse(node.target)] = " ".join(ast.literal_eval(after.value).split())
    return found


@pytest.mark.parametrize(("part", "cls"), PARTS)
def test_fields_agree_by_name_order_and_doc(part: dict[str, Any], cls: type):
    assert {field["name"]: field["doc"] for field in part["fields"]} == _documented(cls)
    assert [field["name"] for field in part["fields"]] == list(_documented(cls))
    assert list(typing.get_type_hints(cls)) == list(_documented(cls))


@pytest.mark.parametrize(("part", "cls"), PARTS)
def test_a_record_is_described_as_its_class(part: dict[str, Any], cls: type):
    assert part["doc"] == " ".join((cls.__doc__ or "").split("\n\n")[0].split())


@pytest.mark.parametrize(("part", "cls"), PARTS)
def test_fields_agree_by_type(part: dict[str, Any], cls: type):
    hints = typing.get_type_hints(cls)
    for field in part["fields"]:
        assert _agrees(field["type"], hints[field["name"]]), f"{cls.__name__}.{field['name']}"


def _agrees(schema: Any, hint: Any) -> bool:
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if isinstance(hint, types.UnionType):
        return (
            schema[0] == "null" and arguments[1] is type(None) and _agrees(schema[1], arguments[0])
        )
    if origin is tuple:
        return schema["type"] == "array" and _agrees(schema["items"], arguments[0])
    if origin is not None:
        return schema["type"] == "map" and _agrees(schema["values"], arguments[1])
    if hint is np.ndarray:
        return schema["type"] == "bytes" and schema["logicalType"] == "ndarray"
    if hint in PLAIN:
        return bool(schema == PLAIN[hint])
    name = schema if isinstance(schema, str) else schema["name"]
    return name.rpartition(".")[2] == hint.__name__


@pytest.mark.parametrize(("part", "cls"), PARTS)
def test_defaults_agree(part: dict[str, Any], cls: type):
    if not dataclasses.is_dataclass(cls):
        assert not any("default" in field for field in part["fields"])
        return
    for field, schema in zip(dataclasses.fields(cls), part["fields"], strict=True):
        if field.default is not dataclasses.MISSING:
            default = field.default
        elif field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        else:
            assert "default" not in schema, field.name
            continue
        assert schema["default"] == _in_json(default), field.name


def _in_json(default: Any) -> Any:
    if isinstance(default, np.ndarray):
        return default.tobytes().decode("latin-1")
    return list(default) if isinstance(default, tuple) else default


@pytest.mark.parametrize("schema", CURRENT.values(), ids=lambda s: s.record)
def test_an_arrays_doc_names_its_dtype(schema: Schema):
    for part in _parts(schema.definition):
        for field in part["fields"]:
            array = field["type"]
            array = array.get("values", array) if isinstance(array, dict) else array
            if isinstance(array, dict) and array["type"] == "bytes":
                assert array["logicalType"] == "ndarray"
                assert NUMPY_NAMES[array["dtype"]] in field["doc"], field["name"]


@pytest.mark.parametrize("schema", CURRENT.values(), ids=lambda s: s.record)
def test_the_fingerprint_is_that_of_another_library(schema: Schema):
    # Its canonical form keeps annotated bytes as an object, against the specification, so it is
    # given the canonical form.
    canonical = json.loads(to_parsing_canonical_form(dict(schema.definition)))
    parsed = avro.schema.make_avsc_object(canonical, validate_names=False)
    assert parsed.fingerprint("CRC-64-AVRO") == schema.fingerprint


def test_there_is_one_file_for_each_record():
    assert {path.stem for path in SCHEMAS.glob("*.avsc")} == set(RECORDS)


def test_a_record_of_another_file_is_written_out_once():
    group = complete(
        {"type": "array", "items": "n.A"}, {"n.A": {"type": "record", "name": "A", "fields": []}}
    )
    assert group["items"]["name"] == "A"


def test_a_missing_or_broken_schema_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"batch_slice\.avsc must be readable JSON"):
        load_schemas(tmp_path)
    for path in SCHEMAS.glob("*.avsc"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "prompt.avsc").write_text('{"type": "record", "name": "Prompt"}')
    with pytest.raises(ConfigError, match=r"prompt\.avsc must be an Avro record"):
        load_schemas(tmp_path)
