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
    """The machine's time when this was made, carried on by its monotonic clock.

    So a clock that is set while a service runs moves nothing that the service decides.
    """

    def __init__(self) -> None:
        self._ahead_s = time.time() - time.monotonic()

    def now_s(self) -> float:
        """Unix time, seconds."""
        return self._ahead_s + time.monotonic()

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
