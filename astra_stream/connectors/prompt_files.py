"""Prompts in text files: JSON lines and CSV."""

import csv as csv_module
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from astra_stream.connectors.prompt_rows import Columns, PromptRow, read_rows
from astra_stream.errors import ConfigError


def jsonl(
    *,
    path: Path,
    prompt: str = "prompt",
    answer: str = "answer",
    system: str = "",
    fields: tuple[str, ...] = (),
    features: tuple[str, ...] = (),
) -> Iterator[PromptRow]:
    """Read one JSON object a line; empty lines are passed over.

    Args:
        path: The file, UTF-8.
        prompt: Key of the user's text, or of a list of ``{role, content}``.
        answer: Key of the answer; empty where there is none.
        system: System message put before every prompt.
        fields: Keys that the environment gets.
        features: Keys that a prompt selector gets.

    Raises:
        ConfigError: The file is missing, or a line is wrong; names the line.
    """
    columns = Columns(prompt=prompt, answer=answer, system=system, fields=fields, features=features)
    return read_rows(_json_lines(Path(path)), columns)


def csv(
    *,
    path: Path,
    prompt: str = "prompt",
    answer: str = "answer",
    system: str = "",
    fields: tuple[str, ...] = (),
    features: tuple[str, ...] = (),
    delimiter: str = ",",
) -> Iterator[PromptRow]:
    """Read comma-separated values whose first line names the columns.

    Args:
        path: The file, UTF-8.
        prompt: Column of the user's text.
        answer: Column of the answer; empty where there is none.
        system: System message put before every prompt.
        fields: Columns that the environment gets.
        features: Columns that a prompt selector gets.
        delimiter: What stands between values.

    Raises:
        ConfigError: The file is missing, or a row is wrong; names the row.
    """
    columns = Columns(prompt=prompt, answer=answer, system=system, fields=fields, features=features)
    return read_rows(_csv_rows(Path(path), delimiter), columns)


def readable_file(path: Path) -> Path:
    """The path, if there is a file.

    Raises:
        ConfigError: There is none.
    """
    if not path.is_file():
        raise ConfigError(
            f"prompt file {str(path)!r} must exist: got none there. Correct prompts.source.path."
        )
    return path


def _json_lines(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    with readable_file(path).open(encoding="utf-8") as lines:
        for number, line in enumerate(_decoded(lines, path), start=1):
            if not line.strip():
                continue
            place = f"{path.name}: line {number}"
            try:
                values = json.loads(line)
            except json.JSONDecodeError as error:
                raise ConfigError(
                    f"{place} must be JSON: got {error.msg} at column {error.colno}. Correct it."
                ) from None
            if not isinstance(values, dict):
                raise ConfigError(
                    f"{place} must be a JSON object: got {type(values).__name__}. Correct it."
                )
            yield place, values


def _csv_rows(path: Path, delimiter: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    with readable_file(path).open(encoding="utf-8-sig", newline="") as lines:
        reader = csv_module.DictReader(_decoded(lines, path), delimiter=delimiter)
        for number, values in enumerate(reader, start=1):
            place = f"{path.name}: row {number}"
            if None in values:
                raise ConfigError(
                    f"{place} must have {len(values) - 1} values: got more. Quote the delimiter."
                )
            yield place, values


def _decoded(lines: Iterator[str], path: Path) -> Iterator[str]:
    try:
        yield from lines
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path.name}: must be UTF-8: got {error.reason}. Convert it.") from None
