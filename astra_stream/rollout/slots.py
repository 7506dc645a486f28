"""Which waiting sample runs next: the one whose request is the oldest, not the one that came first.

A batch waits for its oldest groups. Requests arrive from many partitions in no order, so a worker
that starts them as they come makes every batch wait for about all that are open.
"""

import asyncio
import heapq
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count
from typing import NamedTuple

from astra_stream.records import PolicyVersion


class Age(NamedTuple):
    """Place of a request among those that wait; the smallest is the oldest."""

    min_version: PolicyVersion
    """Oldest version that it may be sampled from."""
    issued_at_s: float
    """When it was issued, seconds since the epoch."""


class Slots:
    """Places for running samples.

    Args:
        num_slots: How many.
    """

    def __init__(self, num_slots: int) -> None:
        self._num_free = num_slots
        self._waiting: list[tuple[Age, int, asyncio.Future[None]]] = []
        self._arrivals = count()

    @asynccontextmanager
    async def held(self, age: Age) -> AsyncGenerator[None]:
        """Wait for a slot, oldest first and then in order of arrival, and hold it."""
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (age, next(self._arrivals), turn))
        self._give()
        try:
            await turn
            yield
        finally:
            # Cancelled while it waited, it has nothing to give back, unless it was just given one.
            if turn.done() and not turn.cancelled():
                self._num_free += 1
            self._give()

    def _give(self) -> None:
        while self._waiting and self._num_free:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                self._num_free -= 1
                turn.set_result(None)
