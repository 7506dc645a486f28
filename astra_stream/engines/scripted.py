"""An engine whose replies are given, for tests and the tutorial; no model, no arithmetic."""

from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from astra_stream.engines.interface import Completion, WeightUpdate
from astra_stream.errors import TransientError
from astra_stream.records import PolicyVersion, Sampling, VersionSpan

Reply = Callable[[np.ndarray, int], Sequence[int]]
"""From the tokens to continue and the stream to the tokens of the reply."""


class ScriptedEngine:
    """Answers request after request from a script.

    Args:
        replies: Token ids of each reply, taken by ``stream`` modulo their number; or a function.
        logprob: Log-probability given to every token.
        terminators: Token ids that end a reply with ``stop``; the rest of it is dropped.
        context_tokens: Most tokens that a sequence may have.
        initial_version: Version before the first load.
        before_reply: Awaited once per request before it is answered, so that a test can hold it.
    """

    def __init__(
        self,
        replies: Sequence[Sequence[int]] | Reply,
        *,
        logprob: float = -1.0,
        terminators: tuple[int, ...] = (),
        context_tokens: int = 1024,
        initial_version: PolicyVersion | None = None,
        before_reply: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._replies = replies
        self._logprob = logprob
        self._terminators = terminators
        self._context_tokens = context_tokens
        self._before_reply = before_reply
        self._version = initial_version
        self._closed = False

    @property
    def version(self) -> PolicyVersion | None:
        """Version of the next reply."""
        return self._version

    @property
    def context_tokens(self) -> int:
        """Most tokens that a sequence may have."""
        return self._context_tokens

    async def generate(
        self, tokens: np.ndarray, sampling: Sampling, *, stream: int = 0
    ) -> Completion:
        """Answer from the script; see the protocol."""
        if len(tokens) + sampling.max_new_tokens > self._context_tokens:
            raise ValueError(
                f"tokens and max_new_tokens must fit the context of {self._context_tokens}: got "
                f"{len(tokens)} + {sampling.max_new_tokens}. Shorten the prompt."
            )
        if self._closed:
            raise TransientError("engine must be open: got a closed one. Start another.")
        if self._before_reply is not None:
            await self._before_reply()
        if self._closed:
            return self._completion([], "abort")
        return self._completion(*self._reply(tokens, stream, sampling.max_new_tokens))

    def _reply(self, tokens: np.ndarray, stream: int, max_new_tokens: int) -> tuple[list[int], str]:
        if callable(self._replies):
            script = self._replies(tokens, stream)
        else:
            script = self._replies[stream % len(self._replies)]
        reply = list(script)[:max_new_tokens]
        for place, token in enumerate(reply):
            if token in self._terminators:
                return reply[: place + 1], "stop"
        return reply, "length" if len(reply) == max_new_tokens else "stop"

    def _completion(self, tokens: list[int], finish_reason: str) -> Completion:
        version = self._version or PolicyVersion(0, 0)
        return Completion(
            tokens=np.array(tokens, dtype=np.int32),
            logprobs=np.full(len(tokens), self._logprob, dtype=np.float32),
            spans=(VersionSpan(0, version.lineage, version.number),) if tokens else (),
            finish_reason=finish_reason,
        )

    async def load(self, update: WeightUpdate) -> PolicyVersion:
        """Take the update's version; its tensors are not looked at."""
        self._version = update.version
        return self._version

    async def close(self) -> None:
        """Stop; replies held back finish with ``abort``."""
        self._closed = True
