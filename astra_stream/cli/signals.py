"""SIGTERM and SIGINT: the first asks a process to end in order, the second ends it at once.

A thread of its own counts them, since the main one may be inside a call of a client or of a
backend, where no handler of Python's runs.
"""

import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)
KILLED_BY = 128
"""Exit code of a process that a signal ended, less the signal's number."""


def stop_on_signal() -> threading.Event:
    """An event that the first SIGTERM or SIGINT sets; the second ends the process like a kill."""
    stop = threading.Event()
    _count_signals(stop.set)
    for number in SIGNALS:
        signal.signal(number, _leave_to_thread)
    return stop


@contextmanager
def interrupts() -> Generator[None]:
    """Turn SIGTERM into what Ctrl-C does, so that children are stopped in order; once.

    The second SIGTERM or SIGINT ends the process like a kill, and its children with it.
    """
    pipe = _count_signals(_do_nothing)
    before = {number: signal.signal(number, _interrupt) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        os.close(pipe)


def _count_signals(on_first: Callable[[], None]) -> int:
    """Call ``on_first`` at the first signal, end the process at the second.

    Returns:
        The end of a pipe that is told of signals; close it to stop counting.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_count, args=(reading, on_first), name="signals", daemon=True).start()
    return writing


def _count(reading: int, on_first: Callable[[], None]) -> None:
    has_one = False
    with os.fdopen(reading, "rb", buffering=0) as told:
        while numbers := told.read(1):
            if numbers[0] not in SIGNALS:
                continue
            if has_one:
                os._exit(KILLED_BY + numbers[0])
            has_one = True
            on_first()


def _do_nothing() -> None:
    pass


def _leave_to_thread(_number: int, _frame: FrameType | None) -> None:
    pass


def _interrupt(_number: int, _frame: FrameType | None) -> Any:
    raise KeyboardInterrupt
