"""One prompt, one reply, one checkable answer: by comparison or by a function of the user's."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from astra_stream.environments.grading import MATCHES, Match
from astra_stream.environments.interface import Step
from astra_stream.records import ChatMessage, Prompt

RewardFunction = Callable[[str, Prompt], float | Mapping[str, float]]
"""From the reply and the prompt to a reward, or to named parts whose sum is the reward."""


class Verifiable:
    """Judges one reply against the prompt's answer.

    Args:
        prompt: The task; its ``answer`` is compared with, a pattern where ``match`` is regex.
        match: exact, numeric (the last number in the reply), or regex (found in the reply).
        strip: Ignore white space around the reply and the answer.
        reward: Judges instead of the comparison.
        correct: Reward of a right reply.
        wrong: Reward of any other.
    """

    def __init__(
        self,
        prompt: Prompt,
        *,
        match: Match = "exact",
        strip: bool = True,
        reward: RewardFunction | None = None,
        correct: float = 1.0,
        wrong: float = 0.0,
    ) -> None:
        self._prompt = prompt
        self._is_right = MATCHES[match]
        self._strip = strip
        self._reward = reward
        self._correct = correct
        self._wrong = wrong

    async def start(self) -> Sequence[ChatMessage]:
        """The prompt's messages."""
        return self._prompt.messages

    async def step(self, reply: ChatMessage) -> Step:
        """Judge the reply; the episode ends.

        Raises:
            ValueError: The user's function returned something that is no finite number.
        """
        if self._reward is not None:
            judged = self._reward(reply.content, self._prompt)
            return reward_step(function_name(self._reward), judged)
        text, answer = reply.content, self._prompt.answer
        if self._strip:
            text, answer = text.strip(), answer.strip()
        return Step(reward=self._correct if self._is_right(text, answer) else self._wrong)

    async def close(self) -> None:
        """Holds nothing."""


def reward_step(name: str, judged: Any) -> Step:
    """The last step of an episode, from what a reward function returned.

    Args:
        name: The function's name, for the message.
        judged: A number, or a mapping of named numbers whose sum is the reward.

    Raises:
        ValueError: It is neither, or a number in it is not finite.
    """
    parts = judged if isinstance(judged, Mapping) else {}
    checked = {part: _number(f"{name}[{part!r}]", value) for part, value in parts.items()}
    total = sum(checked.values()) if parts else _number(name, judged)
    return Step(reward=total, reward_parts=checked)


def function_name(function: Callable[..., Any]) -> str:
    """``module:name`` of a callable."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '')}:{name}"


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, str) or not math.isfinite(number):
        raise ValueError(
            f"reward function {name} must return a finite number: got {value!r}. Return a float, "
            "or a mapping of names to floats."
        )
    return number
