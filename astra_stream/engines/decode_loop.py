"""Continuous batching in one thread: sequences join and leave, and weights enter, between steps.

Each turn of the loop takes what arrived, then advances every running sequence by one token. The
thread blocks on one condition while nothing runs. An error in it fails every request.
"""

import logging
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType

import numpy as np
import torch

from astra_stream.engines.interface import OnSwap, WeightUpdate
from astra_stream.engines.model_directory import ModelWeights
from astra_stream.engines.sampling import choose_tokens
from astra_stream.engines.sequence_table import RunningRequest, SequenceTable, empty_completion
from astra_stream.engines.slot_model import SlotModel
from astra_stream.engines.stop_texts import StopTexts
from astra_stream.errors import TransientError, WeightsError
from astra_stream.records import PolicyVersion

_LOG = logging.getLogger(__name__)

JOIN_SHARE = 8
"""While more wait than fit, a join waits until one slot in this many is free: a join costs a pass
over the model, so joins are taken together."""


@dataclass(slots=True, eq=False)
class PendingUpdate:
    """Weights that wait for the step to end."""

    update: WeightUpdate
    """The weights."""
    future: "Future[PolicyVersion]" = field(default_factory=Future)
    """Resolved when they are in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """What a decode loop is told once."""

    on_swap: OnSwap
    """What new weights do to running sequences."""
    num_threads: int
    """Threads of the model's arithmetic."""
    terminators: np.ndarray
    """[V] bool, True for token ids that end a reply."""


class DecodeLoop:
    """Runs sequences through a model until closed.

    Args:
        model: The model over its slot cache; used by the loop's thread alone.
        weights: Its parameters, replaced between steps.
        table: Rows for running sequences, empty.
        stop_texts: Finds the texts that end a reply.
        settings: What else it needs.
    """

    def __init__(
        self,
        model: SlotModel,
        weights: ModelWeights,
        table: SequenceTable,
        *,
        stop_texts: StopTexts,
        settings: LoopSettings,
    ) -> None:
        self._model = model
        self._weights = weights
        self._table = table
        self._stop_texts = stop_texts
        self._settings = settings
        self._changed = threading.Condition()
        self._waiting: deque[RunningRequest] = deque()
        self._updates: deque[PendingUpdate] = deque()
        self._cancelled: list[RunningRequest] = []
        self._closing = False
        self._stopped: Future[None] = Future()
        self.version: PolicyVersion | None = None
        threading.Thread(target=self._main, name="decode-loop", daemon=True).start()

    def submit(self, request: RunningRequest) -> None:
        """Queue a request; its future may be cancelled at any time."""
        with self._changed:
            self._require_open()
            self._waiting.append(request)
            self._changed.notify()
        request.future.add_done_callback(lambda future: self._done(request, future.cancelled()))

    def load(self, update: WeightUpdate) -> "Future[PolicyVersion]":
        """Queue new weights; the future resolves when they are in use."""
        pending = PendingUpdate(update)
        with self._changed:
            self._require_open()
            self._updates.append(pending)
            self._changed.notify()
        return pending.future

    def close(self) -> "Future[None]":
        """Ask the loop to end; running requests get what they have, marked ``abort``."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        return self._stopped

    def _require_open(self) -> None:
        if self._closing or self._stopped.done():
            raise TransientError("engine must be open: got a closed one. Start another.")

    def _done(self, request: RunningRequest, cancelled: bool) -> None:  # noqa: FBT001
        if cancelled:
            with self._changed:
                self._cancelled.append(request)
                self._changed.notify()

    def _main(self) -> None:
        with ExitStack() as stack:
            stack.push(self._end)
            stack.enter_context(torch.inference_mode())
            torch.set_num_threads(self._settings.num_threads)
            while self._take_arrivals():
                if self._table.num_active:
                    self._step()

    def _take_arrivals(self) -> bool:
        with self._changed:
            self._changed.wait_for(self._has_work)
            if self._closing:
                return False
            cancelled = self._cancelled.copy()
            self._cancelled.clear()
        for request in cancelled:
            self._drop(request)
        while self._updates and not (self._settings.on_swap == "drain" and self._table.num_active):
            self._swap(self._updates.popleft())
        self._join()
        return True

    def _has_work(self) -> bool:
        can_start = self._waiting and self.version is not None
        return bool(
            self._closing or self._table.num_active or self._cancelled or self._updates or can_start
        )

    def _drop(self, request: RunningRequest) -> None:
        if request in self._table.requests:
            self._free(self._table.requests.index(request))

    def _swap(self, pending: PendingUpdate) -> None:
        if not pending.future.set_running_or_notify_cancel():
            return
        try:
            self._weights.replace(pending.update)
        except WeightsError as error:
            pending.future.set_exception(error)
            return
        self.version = pending.update.version
        rows = range(self._table.num_active)
        for row in rows:
            start = self._table.num_sampled(row)
            self._table.requests[row].mark_version(start, self.version)
        if self._settings.on_swap == "recompute_kv" and rows:
            self._fill(list(rows))
        pending.future.set_result(self.version)

    def _join(self) -> None:
        free = self._table.num_slots - self._table.num_active
        draining = self._updates and self._settings.on_swap == "drain"
        if self.version is None or draining or not self._waiting:
            return
        crowded = len(self._waiting) > free
        if crowded and free < max(1, self._table.num_slots // JOIN_SHARE):
            return
        rows: list[int] = []
        while self._waiting and len(rows) < free:
            request = self._waiting.popleft()
            if not request.future.cancelled():
                request.mark_version(0, self.version)
                rows.append(self._table.add(request))
        if rows:
            self._fill(rows)

    def _fill(self, rows: list[int]) -> None:
        table = self._table
        sequences = [table.tokens[row, : table.lengths[row] - 1] for row in rows]
        self._model.prefill(rows, sequences, table.num_active)

    def _step(self) -> None:
        table = self._table
        logits = self._model.decode(*table.last_tokens())
        tokens, logprobs = choose_tokens(logits, table.draw_settings())
        at_limit = table.append(tokens, logprobs)
        stopped = self._settings.terminators[tokens]
        for row in self._stop_texts.ended_rows(table):
            stopped[row] = True
        # Downwards, because a freed row is filled with the last one.
        for row in np.flatnonzero(stopped | at_limit)[::-1].tolist():
            request = table.requests[row]
            completion = table.completion(row, "stop" if stopped[row] else "length")
            self._free(row)
            request.resolve(completion)

    def _free(self, row: int) -> None:
        last = self._table.remove(row)
        if last != row:
            self._model.move(last, row, int(self._table.lengths[row]))

    def _end(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> bool:
        with self._changed:
            self._closing = True
        if error is not None:
            _LOG.critical("decode loop failed", exc_info=error)
        for pending in self._updates:
            if pending.future.set_running_or_notify_cancel():
                pending.future.set_exception(_stopped_error(error))
        running = [
            (request, self._table.completion(row, "abort"))
            for row, request in enumerate(self._table.requests)
        ]
        for request, completion in [*running, *((r, empty_completion()) for r in self._waiting)]:
            if error is None:
                request.resolve(completion)
            else:
                request.fail(_stopped_error(error))
        self._stopped.set_result(None)
        return True


def _stopped_error(cause: BaseException | None) -> TransientError:
    error = TransientError(f"engine must keep running: got {cause!r}. Start another.")
    error.__cause__ = cause
    return error
