"""What an environment is asked: the opening messages, a judgement of each reply, and the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from astra_stream.records import ChatMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What the environment says to a reply."""

    messages: Sequence[ChatMessage] = ()
    """What the policy reads next; empty when done."""
    reward: float = 0.0
    """Reward of this turn; the episode's reward is the sum."""
    done: bool = True
    """Whether the episode ends here."""
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    """Named parts of the reward, for people."""


class Environment(Protocol):
    """Made per episode with its prompt, used once; raises plain Python errors."""

    async def start(self) -> Sequence[ChatMessage]:
        """The opening messages, usually the prompt's."""
        ...

    async def step(self, reply: ChatMessage) -> Step:
        """Judge a reply."""
        ...

    async def close(self) -> None:
        """Free what it holds; called once, also after an error."""
        ...
