"""Prompts in column files: Parquet, and a Hugging Face datasets directory on disk.

A directory written by ``save_to_disk`` is read by pyarrow alone.
"""

import importlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from astra_stream.connectors.prompt_files import readable_file
from astra_stream.connectors.prompt_rows import Columns, PromptRow, read_rows
from astra_stream.errors import ConfigError


def parquet(
    *,
    path: Path,
    prompt: str = "prompt",
    answer: str = "answer",
    system: str = "",
    fields: tuple[str, ...] = (),
    features: tuple[str, ...] = (),
) -> Iterator[PromptRow]:
    """Read a Parquet file.

    Args:
        path: The file.
        prompt: Column of the user's text, or of a list of ``{role, content}``.
        answer: Column of the answer; empty where there is none.
        system: System message put before every prompt.
        fields: Columns that the environment gets.
        features: Columns that a prompt selector gets.

    Raises:
        ConfigError: The file is missing, or a row is wrong; names the row.
    """
    columns = Columns(prompt=prompt, answer=answer, system=system, fields=fields, features=features)
    return read_rows(_parquet_rows(Path(path), columns), columns)


def datasets(
    *,
    path: Path,
    split: str = "train",
    prompt: str = "prompt",
    answer: str = "answer",
    system: str = "",
    fields: tuple[str, ...] = (),
    features: tuple[str, ...] = (),
) -> Iterator[PromptRow]:
    """Read a directory that ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk`` wrote.

    Args:
        path: The directory.
        split: Which data set, where there are several.
        prompt: Column of the user's text, or of a list of ``{role, content}``.
        answer: Column of the answer; empty where there is none.
        system: System message put before every prompt.
        fields: Columns that the environment gets.
        features: Columns that a prompt selector gets.

    Raises:
        ConfigError: The directory is something else, or a row is wrong; names the row.
    """
    columns = Columns(prompt=prompt, answer=answer, system=system, fields=fields, features=features)
    return read_rows(_dataset_rows(Path(path), split), columns)


def _pyarrow(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise ConfigError(
            "prompts.source needs the package 'pyarrow': got none installed. "
            "pip install 'astra-stream[examples]'."
        ) from None


def _parquet_rows(path: Path, columns: Columns) -> Iterator[tuple[str, Mapping[str, Any]]]:
    pyarrow, tables = _pyarrow("pyarrow"), _pyarrow("pyarrow.parquet")
    try:
        file = tables.ParquetFile(readable_file(path))
    except pyarrow.ArrowInvalid as error:
        raise ConfigError(f"{path.name}: must be Parquet: got {error}. Write it again.") from None
    wanted = {columns.prompt, columns.answer, *columns.fields, *columns.features}
    names = [name for name in file.schema_arrow.names if name in wanted]
    if columns.prompt not in names:
        names = list(file.schema_arrow.names)
    number = 0
    for batch in file.iter_batches(columns=names):
        for values in batch.to_pylist():
            yield f"{path.name}: row {number}", values
            number += 1


def _dataset_rows(path: Path, split: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    pyarrow = _pyarrow("pyarrow")
    number = 0
    for file in _arrow_files(path, split):
        with pyarrow.OSFile(str(file)) as source, pyarrow.ipc.open_stream(source) as batches:
            for batch in batches:
                for values in batch.to_pylist():
                    yield f"{path.name}: row {number}", values
                    number += 1


def _arrow_files(path: Path, split: str) -> list[Path]:
    if (path / "dataset_dict.json").is_file():
        splits = json.loads((path / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
        if split not in splits:
            raise ConfigError(
                f"prompts.source.split must be one of {splits}: got {split!r}. Choose one."
            )
        path /= split
    if not (path / "state.json").is_file():
        raise ConfigError(
            f"datasets directory {str(path)!r} must have a state.json: got none. "
            "Write it with Dataset.save_to_disk, or read its files as parquet."
        )
    state = json.loads((path / "state.json").read_text(encoding="utf-8"))
    return [path / entry["filename"] for entry in state["_data_files"]]
