"""Tasks of the reasoning-gym package, judged by the task's own scoring."""

import functools
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from astra_stream.environments.interface import Step
from astra_stream.environments.tasks import import_reasoning_gym
from astra_stream.environments.verifiable import reward_step
from astra_stream.errors import ConfigError
from astra_stream.records import ChatMessage, Prompt

Score = Callable[..., float]


class ReasoningGym:
    """Judges one reply by its task's ``score_answer``.

    Args:
        prompt: ``fields["task"]`` is the task's name and ``fields["entry"]`` its entry, both JSON.
        answer_tag: Judge what stands between ``<tag>`` and ``</tag>``, the last time that it
            occurs; None judges the whole reply without the white space around it.

    Raises:
        ConfigError: The prompt is not from reasoning-gym, or the task is unknown.
    """

    def __init__(self, prompt: Prompt, *, answer_tag: str | None = None) -> None:
        missing = sorted({"task", "entry"} - prompt.fields.keys())
        if missing:
            raise ConfigError(
                f"prompt of reasoning_gym must have fields task and entry: got none for {missing} "
                f"in {prompt.prompt_id!r}. Load the prompts from a reasoning-gym source."
            )
        self._prompt = prompt
        self._task: str = json.loads(prompt.fields["task"])
        self._score = score_function(self._task)
        self._tag = answer_tag

    async def start(self) -> Sequence[ChatMessage]:
        """The prompt's messages."""
        return self._prompt.messages

    async def step(self, reply: ChatMessage) -> Step:
        """Judge the reply; the episode ends.

        Raises:
            ValueError: The task's score is no finite number.
        """
        entry = json.loads(self._prompt.fields["entry"])
        score = self._score(self._answer(reply.content), entry=entry)
        return reward_step(f"reasoning_gym:{self._task}", score)

    def _answer(self, reply: str) -> str | None:
        if self._tag is None:
            return reply.strip()
        tag = re.escape(self._tag)
        found = re.findall(f"<{tag}>(.*?)</{tag}>", reply, flags=re.DOTALL)
        return found[-1].strip() if found else None

    async def close(self) -> None:
        """Holds nothing."""


@functools.cache
def score_function(task: str) -> Score:
    """The task's own scoring, made once in a process.

    Raises:
        ConfigError: The package is missing, or has no task of that name.
    """
    try:
        gym = import_reasoning_gym()
    except ImportError as error:
        raise ConfigError(
            "environment reasoning_gym must have its package: got no module reasoning_gym. "
            "Install astra-stream[examples]."
        ) from error
    try:
        score: Any = gym.get_score_answer_fn(task)
    except ValueError as error:
        raise ConfigError(
            f"task must be one of reasoning-gym's: got {task!r}. Choose one of its data sets."
        ) from error
    return score
