"""What an earlier version wrote is read for ever; ``tests/data/make_golden.py`` keeps examples."""

import io
import json
import runpy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import avro.schema
import fastavro
import pytest
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType

from astra_stream.log.codec import MARKER, Codec
from astra_stream.log.schemas import Schema, load_schemas

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "data" / "golden"
MAKE_IT = "run `python tests/data/make_golden.py` and commit what it adds"

CODEC = Codec(ROOT / "schemas")
SCHEMAS = load_schemas(ROOT / "schemas")
CURRENT = {schema.record: schema for schema in SCHEMAS if schema.is_current}
EARLIER = [schema for schema in SCHEMAS if not schema.is_current]
AS_JSON = runpy.run_path(str(ROOT / "tests" / "data" / "make_golden.py"))["as_json"]


def _name(schema: Schema) -> str:
    return f"{schema.record}/{schema.fingerprint.hex()}"


def _includes(found: Any, wanted: Any) -> bool:
    """Whether everything wanted is there; fields added later may be there too."""
    if isinstance(wanted, dict):
        return all(name in found and _includes(found[name], part) for name, part in wanted.items())
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(_includes, found, wanted))
    return bool(found == wanted)


@pytest.mark.parametrize(
    "path", sorted(GOLDEN.glob("*/*.bin")), ids=lambda p: f"{p.parent.name}-{p.stem}"
)
def test_golden_bytes_are_read(path: Path):
    record = CODEC.decode(path.read_bytes())
    wanted = json.loads(path.with_suffix(".json").read_text())
    assert _includes(json.loads(AS_JSON(record)), wanted)


@pytest.mark.parametrize("schema", CURRENT.values(), ids=lambda s: s.record)
def test_every_schema_has_golden_bytes_and_history(schema: Schema):
    for path in (
        GOLDEN / f"{_name(schema)}.bin",
        GOLDEN / f"{_name(schema)}.json",
        ROOT / "schemas" / "history" / f"{_name(schema)}.avsc",
    ):
        assert path.is_file(), f"{path.relative_to(ROOT)} is missing: {MAKE_IT}"
    data = (GOLDEN / f"{_name(schema)}.bin").read_bytes()
    assert CODEC.encode(CODEC.decode(data)) == data


@pytest.mark.parametrize("schema", EARLIER, ids=_name)
def test_every_earlier_schema_has_golden_bytes(schema: Schema):
    assert (GOLDEN / f"{_name(schema)}.bin").is_file()


@pytest.mark.parametrize(
    "path", sorted((ROOT / "schemas/history").glob("*/*")), ids=lambda p: p.stem
)
def test_an_earlier_schema_is_kept_under_its_fingerprint(path: Path):
    assert f"{path.parent.name}/{path.stem}" in {_name(schema) for schema in EARLIER}


@pytest.mark.filterwarnings("ignore:Unknown ndarray")
@pytest.mark.parametrize("schema", EARLIER, ids=_name)
def test_the_current_schema_reads_every_earlier_one(schema: Schema):
    problems = _problems(CURRENT[schema.record].definition, schema.definition)
    assert not problems, (
        f"schemas/{schema.record}.avsc no longer reads {_name(schema)}: {problems}. "
        "Add fields only with defaults; never rename, remove or retype one."
    )


@pytest.mark.parametrize("schema", EARLIER, ids=_name)
def test_an_array_keeps_its_dtype(schema: Schema):
    now = dict(_dtypes(CURRENT[schema.record].definition))
    for name, dtype in _dtypes(schema.definition):
        assert now[name] == dtype, f"{schema.record}.{name}: bytes do not say what they hold"


def _problems(reader: Any, writer: Any) -> set[str]:
    parse = avro.schema.make_avsc_object
    result = ReaderWriterCompatibilityChecker().get_compatibility(
        parse(reader, validate_names=False), parse(writer, validate_names=False)
    )
    if result.compatibility is SchemaCompatibilityType.compatible:
        return set()
    return {str(message) for message in result.messages} or {"incompatible"}


def _dtypes(schema: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(schema, list):
        for branch in schema:
            yield from _dtypes(branch, name)
    if not isinstance(schema, dict):
        return
    if "dtype" in schema and schema["type"] == "bytes":
        yield name, schema["dtype"]
    for field in schema.get("fields", []):
        yield from _dtypes(field["type"], f"{name}.{field['name']}")
    for part in ("items", "values"):
        yield from _dtypes(schema.get(part), name)


def _with_field(field: dict[str, Any]) -> dict[str, Any]:
    fields = [{"name": "old", "type": "long"}, field]
    return {"type": "record", "name": "R", "fields": fields}


def test_a_field_without_a_default_would_be_noticed():
    writer = {"type": "record", "name": "R", "fields": [{"name": "old", "type": "long"}]}
    assert not _problems(_with_field({"name": "new", "type": "long", "default": 1}), writer)
    assert _problems(_with_field({"name": "new", "type": "long"}), writer)


def test_a_field_added_since_reads_as_its_default():
    data = (GOLDEN / "trajectory/0f97ca1001084e59.bin").read_bytes()
    assert CODEC.decode(data).data_epoch == 0


def read_twice_without(directory: Path, record: str, values: dict[str, Any]) -> tuple[Any, Any]:
    """Read bytes of a schema that has only the fields of ``values``."""
    shutil.copytree(ROOT / "schemas", directory, dirs_exist_ok=True)
    definition = CURRENT[record].definition
    fields = [field for field in definition["fields"] if field["name"] in values]
    path = directory / "history" / record / "0.avsc"
    path.write_text(json.dumps({**definition, "fields": fields}))
    known = {schema.fingerprint for schema in SCHEMAS}
    (older,) = (s for s in load_schemas(directory) if s.fingerprint not in known)
    body = io.BytesIO()
    fastavro.schemaless_writer(body, older.parsed, values)
    codec, data = Codec(directory), MARKER + older.fingerprint + body.getvalue()
    return codec.decode(data), codec.decode(data)


def test_an_array_added_since_reads_as_an_empty_one(tmp_path: Path):
    names = ("group_id", "prompt_id", "policy", "stage")
    values = dict.fromkeys(names, "x") | {"event": "trained"}
    outcome, _ = read_twice_without(tmp_path, "outcome", values)
    assert (outcome.rewards.dtype, outcome.rewards.shape) == ("<f4", (0,))


def test_a_default_is_not_shared_between_records(tmp_path: Path):
    values = {"series": "loss", "value": 1.0, "step": 1}
    first, second = read_twice_without(tmp_path, "metric_point", values)
    assert first.labels == {}
    assert first.labels is not second.labels


@pytest.mark.parametrize("cut", [1, 10, 100])
def test_older_bytes_that_were_cut_off_or_joined_are_refused(cut: int):
    data = (GOLDEN / "trajectory/0f97ca1001084e59.bin").read_bytes()
    with pytest.raises(ValueError, match="must"):
        CODEC.decode(data[:-cut])
    with pytest.raises(ValueError, match="must end with its last field"):
        CODEC.decode(data + bytes(cut))
