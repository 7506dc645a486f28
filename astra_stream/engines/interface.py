"""What an engine is asked: continue tokens, and take new weights.

An engine never sees text: tokenising and chat templates belong to the episode.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from astra_stream.records import PolicyVersion, Sampling, VersionSpan

OnSwap = Literal["keep_kv", "recompute_kv", "drain"]
"""What new weights do to running sequences: keep their cache, recompute it, or wait for them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """What an engine added to a sequence."""

    tokens: np.ndarray
    """[N] int32 sampled token ids, the terminator included where one was sampled."""
    logprobs: np.ndarray
    """[N] float32 log-softmax of logits / temperature over the full vocabulary, in fp32.

    At temperature 0 the logits are not divided.
    """
    spans: tuple[VersionSpan, ...]
    """Which weights made which of these tokens; starts count from the first sampled token."""
    finish_reason: str
    """stop (terminator or stop text), length, or abort."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeightUpdate:
    """Verified weights, ready to be loaded."""

    version: PolicyVersion
    """Which version the tensors are."""
    tensors: Mapping[str, np.ndarray]
    """Hugging Face name to array; bf16 travels as uint16 of the same bits, see ``dtypes``."""
    dtypes: Mapping[str, str]
    """Hugging Face name to safetensors dtype (BF16, F32, ...)."""


class Engine(Protocol):
    """Generates; every method may be called while episodes run."""

    @property
    def version(self) -> PolicyVersion | None:
        """Version that the next token comes from; None before the first load."""
        ...

    @property
    def context_tokens(self) -> int:
        """Most tokens that a sequence may have."""
        ...

    async def generate(
        self, tokens: np.ndarray, sampling: Sampling, *, stream: int = 0
    ) -> Completion:
        """Continue ``tokens``.

        Args:
            tokens: [T] int32, at least one.
            sampling: How to draw; ``sampling.seed`` and ``stream`` alone decide the randomness, so
                that a draw does not depend on which sequences run beside it.
            stream: Tells apart draws of one seed: the sample index, or turn and sample.

        Raises:
            ValueError: The tokens and ``max_new_tokens`` exceed the context.
        """
        ...

    async def load(self, update: WeightUpdate) -> PolicyVersion:
        """Take new weights between two decode steps; returns once they are in use."""
        ...

    async def close(self) -> None:
        """Stop; running requests finish with ``abort``."""
        ...
