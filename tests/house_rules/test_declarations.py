"""Topics, schemas and connectors agree with one another and with the records."""

import ast
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from astra_stream.plugins import SHORT_NAMES

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = sorted((ROOT / "schemas").glob("*.avsc"))
TOPICS = sorted((ROOT / "topics").glob("*.toml"))
CONNECTORS = sorted((ROOT / "connectors").glob("*.toml"))
TOPIC_KEYS = {"name", "record", "key", "partitions", "cleanup", "retention", "why"}
CONNECTOR_KEYS = {"name", "kind", "writes", "use", "why"}


def stem(path: Path) -> str:
    return path.stem


def record_classes() -> set[str]:
    modules = (ROOT / "astra_stream" / "records").glob("*.py")
    nodes = [node for module in modules for node in ast.parse(module.read_text()).body]
    return {node.name for node in nodes if isinstance(node, ast.ClassDef)}


def undocumented(schema: Any, path: str) -> list[str]:
    """Return every record and field of a schema, nested ones too, that has no ``doc``."""
    if isinstance(schema, list):
        return [name for branch in schema for name in undocumented(branch, path)]
    if not isinstance(schema, dict):
        return []
    if schema["type"] != "record":
        inner = [schema.get(part) for part in ("items", "values", "type")]
        return [name for part in inner if part for name in undocumented(part, path)]
    bare = [] if schema.get("doc") else [path]
    for field in schema["fields"]:
        here = f"{path}.{field['name']}"
        bare += [] if field.get("doc") else [here]
        bare += undocumented(field["type"], here)
    return bare


def test_there_are_declarations() -> None:
    assert SCHEMAS
    assert TOPICS
    assert CONNECTORS


@pytest.mark.parametrize("schema", SCHEMAS, ids=stem)
def test_every_record_and_field_of_a_schema_is_documented(schema: Path) -> None:
    assert undocumented(json.loads(schema.read_text()), schema.stem) == []


@pytest.mark.parametrize("schema", SCHEMAS, ids=stem)
def test_a_schema_file_is_named_after_its_record(schema: Path) -> None:
    name = json.loads(schema.read_text())["name"].rpartition(".")[2]
    assert re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() == schema.stem
    assert name in record_classes(), f"records/ has no class {name}"


@pytest.mark.parametrize("schema", SCHEMAS, ids=stem)
def test_every_schema_is_carried_by_a_topic(schema: Path) -> None:
    carried = {tomllib.loads(topic.read_text())["record"] for topic in TOPICS}
    assert schema.stem in carried, f"no topics/*.toml has record = {schema.stem!r}"


@pytest.mark.parametrize("topic", TOPICS, ids=stem)
def test_a_topic_names_a_schema_and_says_why(topic: Path) -> None:
    declared = tomllib.loads(topic.read_text())
    assert set(declared) >= TOPIC_KEYS
    # Processor state is msgpack, not Avro: a changelog carries bytes that only its owner reads.
    opaque = {"bytes"} if topic.stem == "changelog" else set()
    assert declared["record"] in {schema.stem for schema in SCHEMAS} | opaque
    assert len(declared["why"].split()) >= 10, "why this key, this count, this retention?"


@pytest.mark.parametrize("connector", CONNECTORS, ids=stem)
def test_a_connector_says_why_and_has_a_row_in_the_table(connector: Path) -> None:
    declared = tomllib.loads(connector.read_text())
    assert set(declared) >= CONNECTOR_KEYS
    assert declared["name"] == connector.stem
    assert declared["use"] in SHORT_NAMES["prompt_source"], "a run file could not name it"
    assert len(declared["why"].split()) >= 10
    rows = (ROOT / "connectors" / "README.md").read_text().splitlines()
    assert any(row.startswith(f"| `{connector.stem}` |") for row in rows)
