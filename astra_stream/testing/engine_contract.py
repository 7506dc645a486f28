"""What every engine must do, as test classes to inherit from.

``EngineContract`` asks for behaviour, ``ForwardPassContract`` also for log-probabilities that equal
a plain forward pass. Subclasses say how an engine is made.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import numpy as np
import pytest

from astra_stream.engines.interface import Completion, Engine, OnSwap, WeightUpdate
from astra_stream.records import PolicyVersion, Sampling, VersionSpan

LOGPROB_TOLERANCE = 1e-4
TEMPERATURE = 0.7
FIRST, SECOND = PolicyVersion(0, 1), PolicyVersion(0, 2)
CONTEXT_TOKENS = 1024
"""Context that the subclass's engine must have."""
LONG = Sampling(max_new_tokens=250, seed=7)
"""Runs for long enough that others come and go, and that weights enter while it runs."""

Play = Callable[[Engine], Awaitable[None]]


def prompt_of(length: int, seed: int = 0) -> np.ndarray:
    """[length] int32 token ids between 3 and 29."""
    return np.random.default_rng(seed).integers(3, 30, size=length, dtype=np.int32)


class EngineContract:
    """Behaviour of an engine."""

    def make_engine(self, *, on_swap: OnSwap = "keep_kv", ends: bool = False) -> Engine:
        """An engine without weights; ``ends`` lets it sample terminators, and makes them likely."""
        raise NotImplementedError

    def make_update(self, version: PolicyVersion) -> WeightUpdate:
        """Weights that differ between versions."""
        raise NotImplementedError

    @property
    def terminator(self) -> int:
        """The token id that ends a reply."""
        raise NotImplementedError

    def play(self, test: Play, *, on_swap: OnSwap = "keep_kv", ends: bool = False) -> None:
        """Run a test against an engine that has its first weights, and close it."""

        async def run() -> None:
            engine = self.make_engine(on_swap=on_swap, ends=ends)
            try:
                await engine.load(self.make_update(FIRST))
                await test(engine)
            finally:
                await engine.close()

        asyncio.run(run())

    def test_there_is_no_version_before_the_first_load(self) -> None:
        async def run() -> None:
            engine = self.make_engine()
            assert engine.version is None
            assert await engine.load(self.make_update(SECOND)) == SECOND
            assert engine.version == SECOND
            await engine.close()

        asyncio.run(run())

    def test_a_completion_is_aligned_and_carries_its_version(self) -> None:
        async def test(engine: Engine) -> None:
            completion = await engine.generate(prompt_of(5), Sampling(max_new_tokens=4))
            assert completion.tokens.dtype == np.int32
            assert completion.logprobs.dtype == np.float32
            assert completion.tokens.shape == completion.logprobs.shape == (4,)
            assert completion.finish_reason == "length"
            assert completion.spans == (VersionSpan(0, *FIRST),)

        self.play(test)

    def test_a_sampled_terminator_ends_the_reply_and_is_part_of_it(self) -> None:
        async def test(engine: Engine) -> None:
            completion = await engine.generate(prompt_of(5), LONG)
            assert completion.finish_reason == "stop"
            assert completion.tokens[-1] == self.terminator
            assert self.terminator not in completion.tokens[:-1]

        self.play(test, ends=True)

    def test_a_request_beyond_the_context_is_refused_with_both_lengths(self) -> None:
        async def test(engine: Engine) -> None:
            assert engine.context_tokens == CONTEXT_TOKENS
            with pytest.raises(ValueError, match=r"context of 1024: got 1000 \+ 25"):
                await engine.generate(prompt_of(1000), Sampling(max_new_tokens=25))

        self.play(test)

    def test_a_draw_does_not_depend_on_what_runs_beside_it(self) -> None:
        async def test(engine: Engine) -> None:
            sampling = Sampling(max_new_tokens=20, seed=3)
            alone = await engine.generate(prompt_of(6), sampling, stream=2)
            among = await gather_streams(engine, prompt_of(6), sampling, num_streams=8)
            assert among[2].tokens.tolist() == alone.tokens.tolist()
            assert len({tuple(c.tokens.tolist()) for c in among}) > 1

        self.play(test)

    def test_cancelled_requests_leave_room_for_others(self) -> None:
        async def test(engine: Engine) -> None:
            tasks = [asyncio.create_task(engine.generate(prompt_of(4), LONG)) for _ in range(16)]
            await engine.generate(prompt_of(3), Sampling(max_new_tokens=2))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            completion = await engine.generate(prompt_of(3), Sampling(max_new_tokens=2))
            assert len(completion.tokens) == 2

        self.play(test)


class ForwardPassContract(EngineContract):
    """What an engine that computes must also do: say the log-probabilities of a forward pass."""

    def forward(self, tokens: np.ndarray, version: PolicyVersion) -> np.ndarray:
        """[T, V] float32 logits of a plain forward pass over ``tokens`` [T]."""
        raise NotImplementedError

    def expected(
        self, prompt: np.ndarray, completion: Completion, sampling: Sampling, version: PolicyVersion
    ) -> np.ndarray:
        """[N] log-probabilities of the sampled tokens under one version's weights."""
        whole = np.concatenate([prompt, completion.tokens])
        logits = self.forward(whole, version)[len(prompt) - 1 : -1].astype(np.float64)
        logits /= sampling.temperature or 1.0
        logits -= logits.max(axis=-1, keepdims=True)
        logprobs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        return logprobs[np.arange(len(completion.tokens)), completion.tokens]

    @pytest.mark.parametrize("temperature", [1.0, TEMPERATURE, 0.0])
    def test_logprobs_equal_a_forward_pass_in_a_batch_of_mixed_lengths(
        self, temperature: float
    ) -> None:
        lengths = (1, 3, 17, 64, 5, 200, 2, 33, 9, 1)

        async def test(engine: Engine) -> None:
            prompts = [prompt_of(length, seed) for seed, length in enumerate(lengths)]
            settings = [
                Sampling(temperature=temperature, max_new_tokens=5 + 7 * i, seed=i)
                for i in range(len(lengths))
            ]
            completions = await asyncio.gather(*map(engine.generate, prompts, settings))
            for prompt, sampling, completion in zip(prompts, settings, completions, strict=True):
                wanted = self.expected(prompt, completion, sampling, FIRST)
                np.testing.assert_allclose(completion.logprobs, wanted, atol=LOGPROB_TOLERANCE)

        self.play(test)

    def test_temperature_zero_takes_the_likeliest_token(self) -> None:
        async def test(engine: Engine) -> None:
            prompt, sampling = prompt_of(12), Sampling(temperature=0.0, max_new_tokens=9)
            completion = await engine.generate(prompt, sampling)
            whole = np.concatenate([prompt, completion.tokens])
            best = self.forward(whole, FIRST)[len(prompt) - 1 : -1].argmax(axis=-1)
            assert completion.tokens.tolist() == best.tolist()

        self.play(test)

    def test_logprobs_hold_for_a_sample_that_joined_in_the_middle(self) -> None:
        async def test(engine: Engine) -> None:
            first = replace(LONG, temperature=TEMPERATURE, max_new_tokens=150)
            running = asyncio.create_task(engine.generate(prompt_of(30), first))
            await engine.generate(prompt_of(2), Sampling(max_new_tokens=3))
            late = replace(first, max_new_tokens=10, seed=1)
            joined = await engine.generate(prompt_of(8, 5), late)
            assert not running.done()
            wanted = self.expected(prompt_of(8, 5), joined, late, FIRST)
            np.testing.assert_allclose(joined.logprobs, wanted, atol=LOGPROB_TOLERANCE)
            wanted = self.expected(prompt_of(30), await running, first, FIRST)
            np.testing.assert_allclose((await running).logprobs, wanted, atol=LOGPROB_TOLERANCE)

        self.play(test)

    async def swapped(self, engine: Engine, prompt: np.ndarray, sampling: Sampling) -> Completion:
        """A completion during which the second weights came in."""
        running = asyncio.create_task(engine.generate(prompt, sampling))
        await engine.generate(prompt_of(2), Sampling(max_new_tokens=3))
        assert await engine.load(self.make_update(SECOND)) == SECOND
        return await running

    def test_tokens_before_and_after_a_swap_carry_their_versions(self) -> None:
        sampling = replace(LONG, temperature=TEMPERATURE)

        async def test(engine: Engine) -> None:
            completion = await self.swapped(engine, prompt_of(20), sampling)
            (_, *first), (start, *second) = completion.spans
            assert (first, second) == ([*FIRST], [*SECOND])
            wanted = self.expected(prompt_of(20), completion, sampling, FIRST)
            before = completion.logprobs[:start]
            np.testing.assert_allclose(before, wanted[:start], atol=LOGPROB_TOLERANCE)

        self.play(test)

    def test_the_same_weights_again_change_no_logprob_of_a_running_sequence(self) -> None:
        async def test(engine: Engine) -> None:
            running = asyncio.create_task(engine.generate(prompt_of(20), LONG))
            await engine.generate(prompt_of(2), Sampling(max_new_tokens=3))
            await engine.load(replace(self.make_update(FIRST), version=SECOND))
            completion = await running
            assert len(completion.spans) == 2
            wanted = self.expected(prompt_of(20), completion, LONG, FIRST)
            np.testing.assert_allclose(completion.logprobs, wanted, atol=LOGPROB_TOLERANCE)

        self.play(test)

    def test_recomputed_caches_give_the_logprobs_of_the_new_weights(self) -> None:
        sampling = replace(LONG, temperature=TEMPERATURE)

        async def test(engine: Engine) -> None:
            completion = await self.swapped(engine, prompt_of(20), sampling)
            start = completion.spans[1].start
            old = self.expected(prompt_of(20), completion, sampling, FIRST)
            new = self.expected(prompt_of(20), completion, sampling, SECOND)
            wanted = np.concatenate([old[:start], new[start:]])
            np.testing.assert_allclose(completion.logprobs, wanted, atol=LOGPROB_TOLERANCE)

        self.play(test, on_swap="recompute_kv")

    def test_draining_lets_running_sequences_end_and_holds_new_ones_back(self) -> None:
        async def test(engine: Engine) -> None:
            running = asyncio.create_task(engine.generate(prompt_of(5), LONG))
            await engine.generate(prompt_of(2), Sampling(max_new_tokens=3))
            swap = asyncio.create_task(engine.load(self.make_update(SECOND)))
            # The swap is in the engine's queue once its task has run, ahead of what follows.
            later = asyncio.create_task(engine.generate(prompt_of(5), Sampling(max_new_tokens=4)))
            assert (await running).spans == (VersionSpan(0, *FIRST),)
            assert await swap == SECOND
            assert (await later).spans == (VersionSpan(0, *SECOND),)

        self.play(test, on_swap="drain")

    def test_closing_aborts_running_sequences_and_hands_over_what_they_have(self) -> None:
        async def run() -> None:
            engine = self.make_engine()
            await engine.load(self.make_update(FIRST))
            running = asyncio.create_task(engine.generate(prompt_of(5), LONG))
            await engine.generate(prompt_of(2), Sampling(max_new_tokens=3))
            await engine.close()
            completion = await running
            assert completion.finish_reason == "abort"
            assert 0 < len(completion.tokens) < LONG.max_new_tokens
            wanted = self.expected(prompt_of(5), completion, LONG, FIRST)
            np.testing.assert_allclose(completion.logprobs, wanted, atol=LOGPROB_TOLERANCE)

        asyncio.run(run())


async def gather_streams(
    engine: Engine, prompt: np.ndarray, sampling: Sampling, *, num_streams: int
) -> list[Completion]:
    """Completions of streams 0, 1, ... of one seed, generated together."""
    return await asyncio.gather(
        *(engine.generate(prompt, sampling, stream=stream) for stream in range(num_streams))
    )
