"""Time, handed in by the caller; the only module that may sleep."""

import time
from typing import Protocol


class Clock(Protocol):
    """What a service asks for the time."""

    def now_s(self) -> float:
        """Unix time, seconds."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_s(self) -> float:
        """Unix time, seconds."""
        return time.time()

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        return time.monotonic()


class FixedClock:
    """Stands still, so that what is written does not depend on when."""

    def __init__(self, at_s: float = 0.0) -> None:
        self._at_s = at_s

    def now_s(self) -> float:
        """The time it was made with, seconds."""
        return self._at_s

    def monotonic_s(self) -> float:
        """The time it was made with, seconds."""
        return self._at_s
