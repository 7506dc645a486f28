"""Read a run file: TOML, then ``--set``, then every problem at once, each with its remedy.

A resolved file (JSON, secrets masked) reads back as the same configuration.
"""

import difflib
import json
import re
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from astra_stream.config.tables import RunConfig
from astra_stream.errors import ConfigError

RULES = {
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "model_type": "must be a table",
    "dict_type": "must be a table",
    "path_type": "must be a path",
}
"""What a value must be, for kinds of mistake that pydantic words for programmers."""

SECRET = re.compile(r"(^|_)(password|secret|token|api_key|access_key|secret_key)$")
MASK = "***"


def load_run(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a run file.

    Args:
        path: A TOML file, or the JSON that ``resolved`` gave.
        overrides: ``a.b.c=value`` each; the value as TOML writes it, else as text.

    Raises:
        ConfigError: The file or an override is wrong; lists every problem.
    """
    document = _parse(path)
    for override in overrides:
        _override(document, override)
    directory = document.get("directory", ".")
    if isinstance(directory, str):
        directory = str(Path(path.parent, directory).resolve())
        document["directory"] = directory
    text = json.dumps(document, default=str)
    try:
        return RunConfig.model_validate_json(text, strict=True, context={"directory": directory})
    except ValidationError as error:
        details = error.errors(include_url=False)
        lines = dict.fromkeys(f"{path.name}: {_problem(detail)}" for detail in details)
        raise ConfigError("\n".join(lines)) from None


def resolved(config: RunConfig) -> dict[str, Any]:
    """The configuration as JSON values, absolute paths and defaults included, secrets masked."""
    return cast("dict[str, Any]", _masked(config.model_dump(mode="json", exclude_none=True)))


def _parse(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        return json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(
            f"run file {path} must be readable: got {error.strerror}. "
            "Name another, or write one with 'astra new run DIR'."
        ) from None
    except ValueError as error:
        raise ConfigError(
            f"{path.name}: must be {path.suffix[1:].upper() or 'TOML'}: got {error}. "
            "Correct that place."
        ) from None


def _override(document: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    *tables, last = key.strip().split(".")
    if not equals or not all([*tables, last]):
        raise ConfigError(f"--set must be a.b.c=value: got {override!r}. Name the key, then '='.")
    here: Any = document
    for name in tables:
        here = _member(here, name, override)
    if isinstance(here, list) and last.isdigit() and int(last) < len(here):
        here[int(last)] = _value(text.strip())
    elif isinstance(here, dict):
        here[last] = _value(text.strip())
    else:
        raise ConfigError(f"--set {override}: {key} must be in a table. Name an existing one.")


def _member(here: Any, name: str, override: str) -> Any:
    if isinstance(here, dict):
        return here.setdefault(name, {})
    if isinstance(here, list) and name.isdigit() and int(name) < len(here):
        return here[int(name)]
    raise ConfigError(f"--set {override}: {name!r} must be in a table. Name an existing one.")


def _value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if parsed.keys() == {"value"} else text


def _problem(detail: ErrorDetails) -> str:
    place, kind = detail["loc"], detail["type"]
    if place and place[-1] == "[key]":
        place = place[:-1]
    name = ".".join(str(part) for part in place).replace("..", ".")
    name = re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", name)
    if kind == "extra_forbidden":
        return f"{name} is not a key. {_suggestion(str(place[-1]), _fields(place[:-1]))}"
    if kind == "missing":
        help_text = _fields(place[:-1]).get(str(place[-1]), "")
        return f"{name} must be given: got nothing. Add it: {help_text[:1].lower()}{help_text[1:]}"
    if kind == "value_error":
        return f"{name} {detail['ctx']['error']}"
    rule = RULES.get(kind) or detail["msg"].replace("Input should be", "must be", 1)
    return f"{name} {rule}: got {_shown(detail['input'])}. Correct it."


def _suggestion(key: str, fields: Mapping[str, str]) -> str:
    close = difflib.get_close_matches(key, fields, n=1, cutoff=0.65)
    return f"Did you mean {close[0]}?" if close else f"Use one of {', '.join(fields)}."


def _fields(place: Sequence[int | str]) -> dict[str, str]:
    """Keys of the table at a place, with their help."""
    here: Any = RunConfig
    for part in place:
        model = _model(here)
        if model is not None:
            here = model.model_fields[str(part)].annotation
        else:
            here = typing.get_args(here)[0 if isinstance(part, int) else -1]
    model = _model(here)
    return {n: f.description or "" for n, f in model.model_fields.items()} if model else {}


def _model(annotation: Any) -> type[BaseModel] | None:
    if typing.get_origin(annotation) in {typing.Union, types.UnionType}:
        annotation = typing.get_args(annotation)[0]
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return annotation if is_model else None


def _shown(value: object) -> str:
    """A value for a message; never what stands inside a table, which may be a secret."""
    if isinstance(value, dict):
        return "a table"
    return "a list" if isinstance(value, list) else repr(value)


def _masked(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _masked(entry, name) for name, entry in value.items()}
    if isinstance(value, list):
        return [_masked(entry) for entry in value]
    return MASK if isinstance(value, str) and SECRET.search(key) else value
