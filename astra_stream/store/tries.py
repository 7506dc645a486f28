"""How long a call to a store is tried again, and what is said while it is.

A short failure is nobody's business; one line says that a longer one is waited for, one that it is
over, however many tries there were.
"""

import logging
import threading

from astra_stream.clock import Clock
from astra_stream.errors import TransientError

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.1
"""Seconds before the second try; each pause is twice the one before."""
MAX_PAUSE_S = 5.0
"""Longest pause, seconds."""
SAID_AFTER_S = 3.0
"""What may pass in silence, seconds."""


class Tries:
    """The tries of one call, up to its deadline.

    Args:
        what: What is asked of the store, such as ``write 'key'``.
        where: The store and its endpoint.
        deadline_s: Seconds from now after which there is no other try.
        clock: Measures them.
        closed: Set when nobody wants the answer any more.
    """

    def __init__(
        self, what: str, *, where: str, deadline_s: float, clock: Clock, closed: threading.Event
    ) -> None:
        self._what = what
        self._where = where
        self._deadline_s = deadline_s
        self._clock = clock
        self._closed = closed
        self._began_s = clock.monotonic_s()
        self._pause_s = FIRST_PAUSE_S
        self._said = False

    def again(self, error: Exception | str) -> None:
        """Pause before the next try.

        Args:
            error: Why the last one failed.

        Raises:
            TransientError: The deadline is over, or nobody wants the answer any more.
        """
        waited_s = self._clock.monotonic_s() - self._began_s
        left_s = self._deadline_s - waited_s
        if waited_s >= SAID_AFTER_S and left_s > 0 and not self._said:
            self._said = True
            facts = {"waited_s": waited_s, "gives_up_in_s": left_s, "error": str(error)}
            logger.warning("waiting for the store", extra=self._asked() | facts)
        if left_s <= 0 or self._closed.wait(min(self._pause_s, left_s)):
            raise TransientError(
                f"store {self._where} must answer within {self._deadline_s:g} s: could not "
                f"{self._what}: got {error}. Check that it runs and has room, then start again."
            ) from (error if isinstance(error, Exception) else None)
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)

    def succeeded(self) -> None:
        """Say that the wait is over, where it was said that there is one."""
        if self._said:
            waited_s = self._clock.monotonic_s() - self._began_s
            logger.info("the store answers again", extra=self._asked() | {"waited_s": waited_s})
            self._said = False

    def _asked(self) -> dict[str, object]:
        return {"store": self._where, "asked": self._what}
