"""The scripted engine under the part of the engine contract that needs no model."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from astra_stream.engines.interface import Engine, OnSwap, WeightUpdate
from astra_stream.engines.scripted import ScriptedEngine
from astra_stream.errors import TransientError
from astra_stream.records import PolicyVersion, Sampling
from astra_stream.testing.engine_contract import CONTEXT_TOKENS, EngineContract, prompt_of


def long_replies(_tokens: np.ndarray, stream: int) -> Sequence[int]:
    return [3 + stream] * CONTEXT_TOKENS


class TestScriptedEngine(EngineContract):
    terminator = 2

    def make_engine(self, *, on_swap: OnSwap = "keep_kv", ends: bool = False) -> Engine:
        del on_swap  # replies are made at once
        replies = [[5, 6, 2, 7]] if ends else long_replies
        return ScriptedEngine(replies, terminators=(2,), context_tokens=CONTEXT_TOKENS)

    def make_update(self, version: PolicyVersion) -> WeightUpdate:
        return WeightUpdate(version=version, tensors={}, dtypes={})


def test_replies_follow_the_stream() -> None:
    async def run() -> None:
        engine = ScriptedEngine([[5, 6], [7]], logprob=-0.5)
        first = await engine.generate(prompt_of(2), Sampling(), stream=0)
        second = await engine.generate(prompt_of(2), Sampling(), stream=3)
        assert (first.tokens.tolist(), second.tokens.tolist()) == ([5, 6], [7])
        assert first.logprobs.tolist() == [-0.5, -0.5]
        assert first.finish_reason == "stop"

    asyncio.run(run())


def test_a_held_reply_is_aborted_by_closing() -> None:
    async def run() -> None:
        reached, go = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            reached.set()
            await go.wait()

        engine = ScriptedEngine([[5]], before_reply=hold)
        held = asyncio.create_task(engine.generate(prompt_of(2), Sampling()))
        await reached.wait()
        await engine.close()
        go.set()
        assert (await held).finish_reason == "abort"
        with pytest.raises(TransientError):
            await engine.generate(prompt_of(2), Sampling())

    asyncio.run(run())
