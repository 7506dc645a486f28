"""A chat template of one token a character, and players that need no model."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from astra_stream.clock import FixedClock
from astra_stream.engines.scripted import ScriptedEngine
from astra_stream.environments.verifiable import Verifiable
from astra_stream.records import (
    ChatMessage,
    PolicyNeed,
    PolicyVersion,
    Prompt,
    RolloutRequest,
    Sampling,
)
from astra_stream.rollout.episode import Player
from astra_stream.testing.builders import make_prompt

END = 0
"""Token that ends a reply."""
VERSION = PolicyVersion(0, 3)


class CharacterChat:
    """Each character is a token; messages stand one after another."""

    fingerprint = "characters"
    eos_ids = (END,)

    def opening(self, messages: Sequence[ChatMessage]) -> np.ndarray:
        return tokens_of("".join(message.content for message in messages))

    def continuation(
        self, messages: Sequence[ChatMessage], *, reply: str, terminated: bool
    ) -> np.ndarray:
        assert reply
        before = [] if terminated else [ChatMessage(role="assistant", content="|")]
        return self.opening([*before, *messages])

    def decode(self, tokens: np.ndarray) -> str:
        return "".join(chr(token) for token in tokens if token != END)


def tokens_of(text: str) -> np.ndarray:
    return np.array([ord(character) for character in text], dtype=np.int32)


def reply_of(text: str) -> list[int]:
    return [*tokens_of(text).tolist(), END]


@pytest.fixture
def make_player() -> Callable[..., Player]:
    def make(*replies: str, script=None, environment=Verifiable, **engine) -> Player:
        return Player(
            engine=ScriptedEngine(
                script or [reply_of(reply) for reply in replies],
                terminators=(END,),
                initial_version=VERSION,
                **engine,
            ),
            chat=CharacterChat(),
            make_environment=environment,
            policy="main",
            clock=FixedClock(5.0),
            worker="here/0",
            environment_name="verifiable",
        )

    return make


@pytest.fixture
def make_request() -> Callable[..., RolloutRequest]:
    def make(prompt: Prompt | None = None, *, num_samples: int = 1, **fields) -> RolloutRequest:
        values = {
            "group_id": "g",
            "sampling": Sampling(max_new_tokens=8),
            "policies": (PolicyNeed(policy="main", min_version=PolicyVersion(0, 0)),),
            "issued_at_s": 0.0,
            **fields,
        }
        return RolloutRequest(
            request_id=f"{values['group_id']}/0/0",
            prompt=prompt or make_prompt("1+1=", answer="2"),
            first_sample=0,
            num_samples=num_samples,
            group_size=num_samples,
            **values,
        )

    return make
