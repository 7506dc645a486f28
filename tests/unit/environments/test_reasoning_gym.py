"""Replies judged by reasoning-gym's own scoring."""

import asyncio
import json

import pytest

from astra_stream.environments.reasoning_gym import ReasoningGym
from astra_stream.errors import ConfigError
from astra_stream.records import ChatMessage, Prompt

pytest.importorskip("reasoning_gym", exc_type=ImportError)


def prompt_of(task: str = "chain_sum", *, missing: str = "") -> Prompt:
    entry = {"question": "2 + 3 =", "answer": "5", "metadata": {}}
    fields = {"task": json.dumps(task), "entry": json.dumps(entry)}
    return Prompt(
        prompt_id="chain_sum/0/ab",
        split="train",
        messages=(ChatMessage(role="user", content="2 + 3 ="),),
        environment="reasoning_gym",
        answer="5",
        fields={n: v for n, v in fields.items() if n != missing},
    )


def reward_of(reply: str, answer_tag: str | None = None) -> float:
    environment = ReasoningGym(prompt_of(), answer_tag=answer_tag)
    step = asyncio.run(environment.step(ChatMessage(role="assistant", content=reply)))
    assert step.done
    return step.reward


def test_the_tasks_own_scoring_judges_the_reply() -> None:
    assert reward_of(" 5 ") == 1.0
    assert reward_of("6") < 0.1


def test_only_the_last_tagged_answer_counts() -> None:
    assert reward_of("<answer>6</answer> no, <answer> 5\n</answer>", "answer") == 1.0
    assert reward_of("5", "answer") == 0.0


def test_a_prompt_from_elsewhere_is_a_users_mistake() -> None:
    with pytest.raises(ConfigError, match=r"fields task and entry: got none for \['entry'\]"):
        ReasoningGym(prompt_of(missing="entry"))
    with pytest.raises(ConfigError, match="must be one of reasoning-gym's: got 'no_such_task'"):
        ReasoningGym(prompt_of("no_such_task"))
