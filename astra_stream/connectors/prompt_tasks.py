"""Prompts made by a reasoning-gym task."""

import json
import string
from collections.abc import Iterator, Mapping
from typing import Any

from astra_stream.connectors.prompt_rows import PromptRow, as_json
from astra_stream.environments.tasks import import_reasoning_gym
from astra_stream.errors import ConfigError
from astra_stream.records import ChatMessage

DRAWS_PER_PROMPT = 20
"""Items drawn for each text wanted before the task counts as exhausted."""


def reasoning_gym(
    *,
    task: str,
    size: int,
    seed: int = 0,
    template: str = "{question}",
    system: str = "",
    parameters: Mapping[str, Any] | None = None,
) -> Iterator[PromptRow]:
    """Draw items of a task, in order, until ``size`` distinct texts exist.

    Args:
        task: Name of a reasoning-gym data set.
        size: Distinct texts wanted, held-out ones included.
        seed: Seed of the task.
        template: Text of a prompt; ``{question}``, ``{answer}`` and the names in the item's
            metadata stand for their values.
        system: System message put before every prompt.
        parameters: Parameters of the task.

    Raises:
        ConfigError: The task, a parameter or the template is wrong, or there are not enough texts.
    """
    data = _data_set(task, seed=seed, size=size * DRAWS_PER_PROMPT, parameters=parameters or {})
    before = (ChatMessage(role="system", content=system),) if system else ()
    seen: set[str] = set()
    for row in range(size * DRAWS_PER_PROMPT):
        item = data[row]
        text = _fill(template, item)
        if text in seen:
            continue
        seen.add(text)
        yield PromptRow(
            row=row,
            messages=(*before, ChatMessage(role="user", content=text)),
            answer=item["answer"] if isinstance(item["answer"], str) else as_json(item["answer"]),
            fields={"entry": as_json(item), "task": json.dumps(task)},
        )
        if len(seen) == size:
            return
    raise ConfigError(
        f"prompts.source.size must be at most the {len(seen)} distinct texts of {task!r}: "
        f"got {size}. Lower it, or widen the task's parameters."
    )


def _data_set(task: str, *, seed: int, size: int, parameters: Mapping[str, Any]) -> Any:
    try:
        gym = import_reasoning_gym()
    except ModuleNotFoundError:
        raise ConfigError(
            "prompts.source needs the package 'reasoning-gym': got none installed. "
            "pip install 'astra-stream[examples]'."
        ) from None
    try:
        return gym.create_dataset(task, seed=seed, size=size, **parameters)
    except (AssertionError, TypeError, ValueError) as error:
        raise ConfigError(
            f"prompts.source must be a reasoning-gym task with its parameters: got {task!r}, "
            f"{dict(parameters)}: {error}. Correct it."
        ) from None


def _fill(template: str, item: Mapping[str, Any]) -> str:
    metadata = item.get("metadata") or {}
    values = {**metadata, "question": item["question"], "answer": item["answer"]}
    try:
        return template.format_map(values)
    except (KeyError, IndexError, ValueError, AttributeError):
        wanted = [name for _, name, _, _ in string.Formatter().parse(template) if name]
        raise ConfigError(
            f"prompts.source.template must name only {sorted(values)}: got {wanted}. Correct it."
        ) from None
