"""Any Hugging Face decoder model on this machine's CPU, with continuous batching.

The loop is in ``decode_loop.py``, the cache in ``kv_cache.py``, the draw in ``sampling.py``.
"""

import asyncio
from pathlib import Path

import numpy as np

from astra_stream.engines.decode_loop import DecodeLoop, LoopSettings
from astra_stream.engines.interface import Completion, OnSwap, WeightUpdate
from astra_stream.engines.model_directory import (
    ModelWeights,
    build_model,
    read_weights,
    terminator_ids,
)
from astra_stream.engines.sequence_table import RunningRequest, SequenceTable
from astra_stream.engines.slot_model import SlotModel
from astra_stream.engines.stop_texts import StopTexts
from astra_stream.records import PolicyVersion, Sampling


class TransformersEngine:
    """Computes in float32; requests wait until the first weights are there.

    Args:
        directory: Hugging Face model directory; ``config.json`` is enough.
        slots: Most sequences that run at once; further ones wait.
        on_swap: What new weights do to running sequences.
        num_threads: Threads of the model's arithmetic.
        initial_version: Read the directory's weights and call them this; None reads none, and the
            first ``load`` brings them.
        terminators: Token ids that end a reply; None takes those that the model declares.

    Raises:
        ConfigError: The directory holds no model that this engine can run.
    """

    def __init__(
        self,
        directory: Path,
        *,
        slots: int = 64,
        on_swap: OnSwap = "keep_kv",
        num_threads: int = 1,
        initial_version: PolicyVersion | None = None,
        terminators: tuple[int, ...] | None = None,
    ) -> None:
        model = build_model(directory)
        config = model.config
        self._context_tokens = int(config.max_position_embeddings)
        ends = np.zeros(config.vocab_size, dtype=bool)
        ends[list(terminator_ids(directory) if terminators is None else terminators)] = True
        self._stop_texts = StopTexts(directory)
        self._loop = DecodeLoop(
            SlotModel(model, num_slots=slots, max_tokens=self._context_tokens),
            ModelWeights(model),
            SequenceTable(slots, self._context_tokens),
            stop_texts=self._stop_texts,
            settings=LoopSettings(on_swap=on_swap, num_threads=num_threads, terminators=ends),
        )
        if initial_version is not None:
            self._loop.load(read_weights(directory, initial_version)).result()

    @property
    def version(self) -> PolicyVersion | None:
        """Version that the next token comes from; None before the first load."""
        return self._loop.version

    @property
    def context_tokens(self) -> int:
        """Most tokens that a sequence may have: the model's largest position."""
        return self._context_tokens

    async def generate(
        self, tokens: np.ndarray, sampling: Sampling, *, stream: int = 0
    ) -> Completion:
        """Continue ``tokens``; see the protocol. Cancelling the call frees its slot."""
        require_room(len(tokens), sampling.max_new_tokens, self._context_tokens)
        self._stop_texts.require(sampling.stop)
        request = RunningRequest(tokens=tokens, sampling=sampling, stream=stream)
        self._loop.submit(request)
        return await asyncio.wrap_future(request.future)

    async def load(self, update: WeightUpdate) -> PolicyVersion:
        """Take new weights between two decode steps; returns once they are in use.

        Raises:
            WeightsError: They are not this model's; the old ones stay.
        """
        return await asyncio.wrap_future(self._loop.load(update))

    async def close(self) -> None:
        """Stop; running requests finish with ``abort``."""
        await asyncio.wrap_future(self._loop.close())


def require_room(num_tokens: int, max_new_tokens: int, context_tokens: int) -> None:
    """Refuse a request that cannot fit.

    Raises:
        ValueError: It is empty, or longer than the context with what it may add.
    """
    if not num_tokens:
        raise ValueError("tokens must not be empty: got 0. Give at least one token.")
    if num_tokens + max_new_tokens > context_tokens:
        raise ValueError(
            f"tokens and max_new_tokens must fit the context of {context_tokens}: got {num_tokens}"
            f" + {max_new_tokens}. Shorten the prompt or lower max_new_tokens."
        )
