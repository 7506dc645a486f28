"""Replies compared with answers, and judged by a user's function."""

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_stream.environments.grading import is_numeric, last_number
from astra_stream.environments.interface import Step
from astra_stream.environments.verifiable import Verifiable
from astra_stream.records import ChatMessage, Prompt


def prompt_with(answer: str) -> Prompt:
    return Prompt(
        prompt_id="sums/0/ab",
        split="train",
        messages=(ChatMessage(role="user", content="2+2="),),
        environment="verifiable",
        answer=answer,
    )


def judge(reply: str, answer: str = "4", **parameters: Any) -> Step:
    environment = Verifiable(prompt_with(answer), **parameters)
    return asyncio.run(environment.step(ChatMessage(role="assistant", content=reply)))


def test_the_opening_is_the_prompts_messages() -> None:
    prompt = prompt_with("4")
    assert asyncio.run(Verifiable(prompt).start()) == prompt.messages


def test_an_exact_reply_is_right_and_the_episode_ends() -> None:
    assert judge("4") == Step(reward=1.0, done=True)
    assert judge("5").reward == 0.0
    assert judge("5", wrong=-1.0).reward == -1.0
    assert judge("4", correct=2.0).reward == 2.0


def test_white_space_around_counts_only_where_asked() -> None:
    assert judge(" 4\n").reward == 1.0
    assert judge(" 4\n", strip=False).reward == 0.0


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("2 and 2 make 4.", "4"),
        ("that is 1,234,567", "1234567"),
        ("-3", "-3"),
        ("x = 0.5", "1/2"),
        ("3/4", "0.75"),
        ("1e3", "1000"),
        (".5", "0.5"),
        ("about 3.1415927", "3.14159265"),
        ("3, 4", "4"),
        ("$4.00", "the answer is 4"),
        ("0", "0"),
    ],
)
def test_the_last_number_is_what_counts(reply: str, answer: str) -> None:
    assert judge(reply, answer, match="numeric").reward == 1.0


@pytest.mark.parametrize(
    ("reply", "answer"),
    [("4 then 5", "4"), ("four", "4"), ("", "4"), ("3", "-3"), ("1/0", "1"), ("1e-9", "0")],
)
def test_another_number_or_none_is_wrong(reply: str, answer: str) -> None:
    assert judge(reply, answer, match="numeric").reward == 0.0


@given(st.integers(-(10**12), 10**12))
def test_a_number_equals_itself_however_it_is_grouped(number: int) -> None:
    assert is_numeric(f"so {number:,}", str(number))
    assert last_number(f"a {number} b") == number


@given(st.text(alphabet="0123456789.,/-+eE $", max_size=30))
def test_no_text_breaks_the_number_reader(text: str) -> None:
    number = last_number(text)
    assert number is None or math.isfinite(number)


def test_a_pattern_is_found_anywhere() -> None:
    assert judge("I say: forty-two!", r"forty.two", match="regex").reward == 1.0
    assert judge("I say: forty-two!", r"^forty", match="regex").reward == 0.0


def test_a_users_function_gets_reply_and_prompt() -> None:
    def reward(reply: str, prompt: Prompt) -> float:
        return len(reply) + len(prompt.answer)

    assert judge(" xy ", reward=reward).reward == 5.0


def test_named_parts_are_summed_and_kept() -> None:
    step = judge("x", reward=lambda _reply, _prompt: {"right": 1, "short": 0.5})
    assert step.reward == 1.5
    assert step.reward_parts == {"right": 1.0, "short": 0.5}


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "1", [1], {"part": math.nan}, {}])
def test_what_is_no_finite_number_is_refused_with_function_and_value(value: Any) -> None:
    def broken(_reply: str, _prompt: Prompt) -> Any:
        return value

    with pytest.raises(ValueError, match=r"reward function .*broken.* must return a finite number"):
        judge("x", reward=broken)


def test_a_users_error_passes_through() -> None:
    def broken(_reply: str, _prompt: Prompt) -> float:
        raise KeyError("theirs")

    with pytest.raises(KeyError, match="theirs"):
        judge("x", reward=broken)
