"""The Avro schemas of the records: read from ``schemas/``, told apart by their fingerprint.

A file may name a record of another file by its full name; it is written out where it is first used.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from astra_stream.errors import ConfigError
from astra_stream.records import (
    BatchSlice,
    DeadLetter,
    Evaluation,
    Group,
    MetricPoint,
    Outcome,
    Prompt,
    RolloutRequest,
    Trajectory,
    WeightAnnouncement,
)

NAMESPACE = "astra_stream"
RECORDS_PACKAGE = "astra_stream.records"

RECORDS: Mapping[str, type] = {
    "batch_slice": BatchSlice,
    "dead_letter": DeadLetter,
    "evaluation": Evaluation,
    "group": Group,
    "metric_point": MetricPoint,
    "outcome": Outcome,
    "prompt": Prompt,
    "rollout_request": RolloutRequest,
    "trajectory": Trajectory,
    "weight_announcement": WeightAnnouncement,
}
"""Schema file to record class: every record that is a message of its own."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schema:
    """One version of one record's schema."""

    record: str
    """Record in snake case, such as trajectory."""
    definition: Mapping[str, Any]
    """The schema as written, nested records inline."""
    fingerprint: bytes
    """[8] CRC-64-AVRO of the canonical form, little endian."""
    is_current: bool
    """False for a schema that is only read."""

    @property
    def parsed(self) -> Any:
        """The schema as fastavro wants it."""
        return fastavro.parse_schema(self.definition)  # pyrefly: ignore


def classes(cls: type) -> dict[str, type]:
    """The record classes that ``cls`` is made of, itself included, by the name of the class."""
    found = {cls.__name__: cls}
    for hint in get_type_hints(cls).values():
        for part in (hint, *get_args(hint), *(p for a in get_args(hint) for p in get_args(a))):
            is_record = isinstance(part, type) and part.__module__.startswith(RECORDS_PACKAGE)
            if is_record and part.__name__ not in found:
                found |= classes(part)
    return found


def load_schemas(directory: Path) -> list[Schema]:
    """Read the current schema of every record and all earlier ones.

    Args:
        directory: Holds ``<record>.avsc`` and ``history/<record>/*.avsc``.

    Returns:
        Current schemas first, then earlier ones, each by name.

    Raises:
        ConfigError: A schema is missing or does not parse; names the file.
    """
    paths = {name: directory / f"{name}.avsc" for name in sorted(RECORDS)}
    written = {name: _read(path) for name, path in paths.items()}
    definitions = {f"{NAMESPACE}.{schema['name']}": schema for schema in written.values()}
    schemas = [
        _schema(paths[name], schema, definitions, is_current=True)
        for name, schema in written.items()
    ]
    for path in sorted(directory.glob("history/*/*.avsc")):
        schemas.append(_schema(path, _read(path), {}, is_current=False))
    return schemas


def complete(schema: Any, definitions: Mapping[str, Any], seen: set[str] | None = None) -> Any:
    """Write out named records of other files where a schema first uses them.

    Args:
        schema: Any part of a schema.
        definitions: Full name to schema, of the records that have a file.
        seen: Full names that are written out already.
    """
    seen = set() if seen is None else seen
    if isinstance(schema, str):
        if schema not in definitions or schema in seen:
            return schema
        return complete(definitions[schema], definitions, seen)
    if isinstance(schema, list):
        return [complete(branch, definitions, seen) for branch in schema]
    if schema.get("type") == "record":
        seen.add(f"{NAMESPACE}.{schema['name']}")
        fields = [{**f, "type": complete(f["type"], definitions, seen)} for f in schema["fields"]]
        return {**schema, "fields": fields}
    inner = {"array": "items", "map": "values"}.get(schema["type"])
    return {**schema, inner: complete(schema[inner], definitions, seen)} if inner else schema


def _read(path: Path) -> dict[str, Any]:
    try:
        schema: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"schema {path} must be readable JSON: got {error}. Restore it from the release."
        ) from error
    return schema


def _schema(path: Path, schema: Any, definitions: Mapping[str, Any], *, is_current: bool) -> Schema:
    try:
        definition = complete(schema, definitions)
        canonical = to_parsing_canonical_form(definition)
    except (fastavro.schema.SchemaParseException, KeyError) as error:
        raise ConfigError(
            f"schema {path} must be an Avro record: got {error!r}. Restore it from the release."
        ) from error
    return Schema(
        record=path.stem if is_current else path.parent.name,
        definition=definition,
        fingerprint=bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO")),
        is_current=is_current,
    )
