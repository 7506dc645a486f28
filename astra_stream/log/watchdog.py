"""A clock outside the Kafka client, for calls that may block past their own timeout.

Such a call cannot be interrupted: the process says which one it was and ends, to be started again.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

MARGIN_S = 5.0
"""What a call may take beyond its own deadline before the process is given up."""


@dataclass(slots=True, eq=False)
class Guard:
    """One call under watch."""

    seconds: float
    """How long the call may take."""
    what: str
    """What it is, for the message."""
    ends_s: float = 0.0
    """Monotonic time at which it is overdue; infinite while suspended."""
    _changed: Callable[["Guard"], None] = field(repr=False, default=lambda _: None)

    @contextmanager
    def suspended(self) -> Generator[None]:
        """Do not count the time spent in the block: our own code that the client calls back."""
        self.ends_s = float("inf")
        try:
            yield
        finally:
            self.ends_s = time.monotonic() + self.seconds
            self._changed(self)


def exit_to_be_restarted(what: str) -> None:
    """Say what was stuck, in one line, and end the process with 75."""
    sys.stderr.write(f"{what} must return in time: got stuck. Ending, to be started again.\n")
    sys.stderr.flush()
    os._exit(75)


class Watchdog:
    """Calls ``on_stuck`` from its own thread when a guarded call overruns.

    Args:
        on_stuck: Told what was stuck; by default the process ends with 75.
        margin_s: Added to every guard, seconds.
    """

    def __init__(
        self,
        on_stuck: Callable[[str], None] = exit_to_be_restarted,
        *,
        margin_s: float = MARGIN_S,
    ) -> None:
        self._on_stuck = on_stuck
        self._margin_s = margin_s
        self._changed = threading.Condition()
        self._guards: set[Guard] = set()
        self._wakes_s = float("inf")
        self._closed = False
        self._thread: threading.Thread | None = None

    @contextmanager
    def guard(self, seconds: float, what: str) -> Generator[Guard]:
        """Watch the block: it may take ``seconds`` and the margin."""
        allowed_s = seconds + self._margin_s
        guard = Guard(allowed_s, what, time.monotonic() + allowed_s, self._wake_for)
        with self._changed:
            self._guards.add(guard)
        self._wake_for(guard)
        try:
            yield guard
        finally:
            with self._changed:
                self._guards.discard(guard)

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _wake_for(self, guard: Guard) -> None:
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
                self._thread.start()
            if guard.ends_s < self._wakes_s:
                self._changed.notify()

    def _watch(self) -> None:
        while True:
            with self._changed:
                overdue = self._wait_for_overdue()
                if overdue is None:
                    return
                self._guards.discard(overdue)
            self._on_stuck(overdue.what)

    def _wait_for_overdue(self) -> Guard | None:
        while not self._closed:
            first = min(self._guards, key=lambda guard: guard.ends_s, default=None)
            self._wakes_s = float("inf") if first is None else first.ends_s
            wait_s = self._wakes_s - time.monotonic()
            if first is not None and wait_s <= 0:
                return first
            self._changed.wait(None if wait_s == float("inf") else wait_s)
        return None
