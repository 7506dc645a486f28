"""From rows to prompts: identities, and the split into train and held-out.

The split goes by text alone, so no text is in both, whatever else a row has.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from astra_stream.connectors.prompt_files import csv, jsonl
from astra_stream.connectors.prompt_rows import PromptRow
from astra_stream.connectors.prompt_tables import datasets, parquet
from astra_stream.connectors.prompt_tasks import reasoning_gym
from astra_stream.errors import ConfigError
from astra_stream.records import Prompt

SOURCES: Mapping[str, Callable[..., Iterator[PromptRow]]] = {
    "jsonl": jsonl,
    "csv": csv,
    "parquet": parquet,
    "datasets": datasets,
    "reasoning_gym": reasoning_gym,
}
"""Built-in sources by short name."""


def load_prompts(
    *, use: str, held_out: float = 0, environment: str = "", **parameters: Any
) -> list[Prompt]:
    """Read a built-in source.

    Args:
        use: Short name of the source.
        held_out: Distinct texts kept from training: a count, or a share below 1.
        environment: Environment that judges them; empty means the run's own.
        **parameters: The source's own.

    Raises:
        ConfigError: The source has no prompts, or something in it is wrong.
    """
    if use not in SOURCES:
        raise ConfigError(
            f"prompts.source.use must be one of {sorted(SOURCES)}: got {use!r}. Choose one."
        )
    rows = SOURCES[use](**parameters)
    name = dataset_name(parameters)
    return make_prompts(rows, dataset=name, held_out=held_out, environment=environment)


def dataset_name(parameters: Mapping[str, Any]) -> str:
    """Name of the data set that a source reads: its task, or its file without folder and ending."""
    name = parameters.get("task") or parameters.get("path") or "prompts"
    return str(name).rstrip("/").rpartition("/")[2].partition(".")[0] or "prompts"


def make_prompts(
    rows: Iterable[PromptRow], *, dataset: str, held_out: float = 0, environment: str = ""
) -> list[Prompt]:
    """Give rows their identity and their split.

    The ``held_out`` distinct texts with the smallest SHA-256 are held out. A row that repeats both
    text and answer of an earlier one is left out.

    Args:
        rows: In the source's order.
        dataset: Name of the data set.
        held_out: Distinct texts kept from training: a count, or a share below 1.
        environment: Environment that judges them; empty means the run's own.

    Raises:
        ConfigError: There are no rows, or ``held_out`` leaves none to train on.
    """
    distinct = {(row.text, row.answer): row for row in reversed(list(rows))}
    kept = sorted(distinct.values(), key=lambda row: row.row)
    if not kept:
        raise ConfigError(
            f"prompt file {dataset!r} must have at least one prompt: got none. Add prompts to it."
        )
    kept_from_training = held_out_texts({row.text for row in kept}, held_out)
    return [
        Prompt(
            prompt_id=f"{dataset}/{row.row}/{content_hash(row.text, row.answer)}",
            split="held_out" if row.text in kept_from_training else "train",
            messages=row.messages,
            environment=environment,
            answer=row.answer,
            fields=row.fields,
            dataset=dataset,
            features=row.features,
        )
        for row in kept
    ]


def held_out_texts(texts: set[str], held_out: float) -> set[str]:
    """The texts with the smallest SHA-256.

    Args:
        texts: All distinct texts.
        held_out: How many: a count, or a share below 1, rounded.

    Raises:
        ConfigError: None would be left to train on.
    """
    count = round(held_out * len(texts)) if held_out < 1 else int(held_out)
    if count >= len(texts):
        raise ConfigError(
            f"prompts.source.held_out must be below the {len(texts)} distinct texts: "
            f"got {held_out}. Lower it, or add prompts."
        )
    return set(sorted(texts, key=lambda t: hashlib.sha256(t.encode()).digest())[:count])


def content_hash(text: str, answer: str) -> str:
    """16 hex digits of the SHA-256 of text and answer."""
    return hashlib.sha256(f"{text}\0{answer}".encode()).hexdigest()[:16]
