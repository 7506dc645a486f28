"""A row of a prompt source, and how one is read from the columns of a table.

A source is a callable with keyword-only parameters that returns rows, in the order they have.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from astra_stream.errors import ConfigError
from astra_stream.records import ChatMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRow:
    """What a source says of one prompt."""

    row: int
    """Index in the source, from 0."""
    messages: tuple[ChatMessage, ...]
    """The conversation to continue, oldest first."""
    answer: str = ""
    """What the environment compares with; empty without one."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Further fields for the environment: name to JSON text."""
    features: Mapping[str, str] = field(default_factory=dict)
    """What a prompt selector may look at: name to JSON text."""

    @property
    def text(self) -> str:
        """Contents of the messages, which decide the split."""
        return "\n".join(message.content for message in self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which columns of a table mean what."""

    prompt: str
    """Column with the user's text, or with a list of ``{role, content}``."""
    answer: str
    """Column with the answer; empty where there is none."""
    system: str = ""
    """System message put before every prompt; empty for none."""
    fields: tuple[str, ...] = ()
    """Columns that the environment gets."""
    features: tuple[str, ...] = ()
    """Columns that a prompt selector gets."""


def read_rows(
    table: Iterable[tuple[str, Mapping[str, Any]]], columns: Columns
) -> Iterator[PromptRow]:
    """Read prompts from rows of columns.

    Args:
        table: What a person calls the row (``prompts.jsonl: line 3``), and its columns by name.
        columns: Which of them to read.

    Raises:
        ConfigError: A row lacks a column or has something else in it; names the row.
    """
    for number, (place, values) in enumerate(table):
        messages = _messages(_column(values, columns.prompt, place), columns.prompt, place)
        if columns.system:
            messages = (ChatMessage(role="system", content=columns.system), *messages)
        yield PromptRow(
            row=number,
            messages=messages,
            answer=_text(_column(values, columns.answer, place)) if columns.answer else "",
            fields={n: as_json(_column(values, n, place)) for n in columns.fields},
            features={n: as_json(_column(values, n, place)) for n in columns.features},
        )


def as_json(value: Any) -> str:
    """A value as JSON text; what JSON has no form for, as its text."""
    return json.dumps(value, default=str, ensure_ascii=False)


def _column(values: Mapping[str, Any], name: str, place: str) -> Any:
    value = values.get(name)
    if value is None:
        raise ConfigError(
            f"{place} must have the column {name!r}: got {sorted(values)}. "
            "Name the columns in prompts.source, or complete the row."
        )
    return value


def _messages(value: Any, name: str, place: str) -> tuple[ChatMessage, ...]:
    if isinstance(value, str):
        messages = (ChatMessage(role="user", content=value),)
    elif isinstance(value, list) and all(_is_message(entry) for entry in value):
        messages = tuple(ChatMessage(role=e["role"], content=e["content"]) for e in value)
    else:
        raise ConfigError(
            f"{place} must have text or a list of {{role, content}} in {name!r}: "
            f"got {type(value).__name__}. Correct the row."
        )
    if not any(message.content for message in messages):
        raise ConfigError(f"{place} must have text in {name!r}: got none. Correct the row.")
    return messages


def _is_message(entry: Any) -> bool:
    return (
        isinstance(entry, Mapping)
        and isinstance(entry.get("role"), str)
        and isinstance(entry.get("content"), str)
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else as_json(value)
