"""The running sequences as arrays: one row each, live rows first, indexed by token position."""

from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from astra_stream.engines.interface import Completion
from astra_stream.engines.sampling import DrawSettings, draw_uniforms
from astra_stream.records import PolicyVersion, Sampling, VersionSpan


@dataclass(slots=True, eq=False)
class RunningRequest:
    """A request from arrival to completion."""

    tokens: np.ndarray
    """[T] int32 tokens to continue."""
    sampling: Sampling
    """How to draw."""
    stream: int
    """Which draw of the seed."""
    future: "Future[Completion]" = field(default_factory=Future)
    """Where the completion goes; cancelling it gives up the request."""
    spans: list[VersionSpan] = field(default_factory=list)
    """Versions so far, by first sampled token."""

    def mark_version(self, start: int, version: PolicyVersion) -> None:
        """Attribute the sampled tokens from ``start`` on to ``version``."""
        if self.spans and self.spans[-1].start == start:
            self.spans.pop()
        self.spans.append(VersionSpan(start, version.lineage, version.number))

    def resolve(self, completion: Completion) -> None:
        """Hand over the completion, unless nobody waits for it any more."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(completion)

    def fail(self, error: BaseException) -> None:
        """Hand over an error, unless nobody waits for it any more."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


def empty_completion() -> Completion:
    """What a request gets that was stopped before its first token."""
    return Completion(
        tokens=np.zeros(0, np.int32),
        logprobs=np.zeros(0, np.float32),
        spans=(),
        finish_reason="abort",
    )


class SequenceTable:
    """Rows of running sequences.

    Args:
        num_slots: Most rows.
        max_tokens: Most tokens of a row.
    """

    def __init__(self, num_slots: int, max_tokens: int) -> None:
        shape = (num_slots, max_tokens)
        self.num_slots = num_slots
        self.tokens = np.empty(shape, np.int64)
        self.lengths = np.zeros(num_slots, np.int64)
        self.requests: list[RunningRequest] = []
        self._logprobs = np.empty(shape, np.float32)
        self._uniforms = np.empty(shape, np.float32)
        self._starts = np.zeros(num_slots, np.int64)
        self._limits = np.zeros(num_slots, np.int64)
        self._temperatures = np.zeros(num_slots, np.float32)
        self._top_p = np.zeros(num_slots, np.float32)
        self._top_k = np.zeros(num_slots, np.int64)
        self._rows = np.arange(num_slots)

    @property
    def num_active(self) -> int:
        """Rows in use, which are the first ones."""
        return len(self.requests)

    def add(self, request: RunningRequest) -> int:
        """Give a request the first free row."""
        row, start, sampling = self.num_active, len(request.tokens), request.sampling
        self.requests.append(request)
        self.tokens[row, :start] = request.tokens
        self.lengths[row] = self._starts[row] = start
        self._limits[row] = limit = start + sampling.max_new_tokens
        self._uniforms[row, start:limit] = draw_uniforms(
            sampling.seed, request.stream, sampling.max_new_tokens
        )
        self._temperatures[row] = sampling.temperature
        self._top_p[row] = sampling.top_p
        self._top_k[row] = sampling.top_k
        return row

    def remove(self, row: int) -> int:
        """Free a row by moving the last one into it; returns the row that moved."""
        last = self.num_active - 1
        self.requests[row] = self.requests[last]
        self.requests.pop()
        if row != last:
            length, limit = self.lengths[last], self._limits[last]
            self.tokens[row, :length] = self.tokens[last, :length]
            self._logprobs[row, :length] = self._logprobs[last, :length]
            self._uniforms[row, :limit] = self._uniforms[last, :limit]
            for column in self._columns():
                column[row] = column[last]
        return last

    def _columns(self) -> tuple[np.ndarray, ...]:
        return (
            self.lengths,
            self._starts,
            self._limits,
            self._temperatures,
            self._top_p,
            self._top_k,
        )

    def last_tokens(self) -> tuple[np.ndarray, np.ndarray]:
        """The newest token of each row and its position, both [N] int64."""
        rows = self._rows[: self.num_active]
        positions = self.lengths[: self.num_active] - 1
        return self.tokens[rows, positions], positions

    def draw_settings(self) -> DrawSettings:
        """How the next token of each row is drawn."""
        count = self.num_active
        return DrawSettings(
            self._temperatures[:count],
            self._top_p[:count],
            self._top_k[:count],
            self._uniforms[self._rows[:count], self.lengths[:count]],
        )

    def append(self, tokens: np.ndarray, logprobs: np.ndarray) -> np.ndarray:
        """Add a token to each row; returns [N] bool, True where a row has reached its limit."""
        count = self.num_active
        rows, places = self._rows[:count], self.lengths[:count]
        self.tokens[rows, places] = tokens
        self._logprobs[rows, places] = logprobs
        self.lengths[:count] += 1
        return self.lengths[:count] == self._limits[:count]

    def num_sampled(self, row: int) -> int:
        """Tokens that a row has sampled."""
        return int(self.lengths[row] - self._starts[row])

    def sampled(self, row: int) -> np.ndarray:
        """View of the tokens that a row has sampled, int64."""
        return self.tokens[row, self._starts[row] : self.lengths[row]]

    def completion(self, row: int, finish_reason: str) -> Completion:
        """What a row has made so far."""
        request = self.requests[row]
        made = slice(self._starts[row], self.lengths[row])
        count = self.num_sampled(row)
        return Completion(
            tokens=self.tokens[row, made].astype(np.int32),
            logprobs=self._logprobs[row, made].copy(),
            spans=tuple(span for span in request.spans if span.start < count),
            finish_reason=finish_reason,
        )
