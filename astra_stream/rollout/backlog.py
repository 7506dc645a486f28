"""Requests that were delivered and have not begun; which of them begin next.

Nothing is written of a request before it begins, so handing back the backlog costs nothing. A
request whose start went uncounted twice may be what ended those processes: it then plays alone, so
that no other is counted with it, and after ``max_deliveries`` starts alone it is given up. So is
one whose deadline has passed since the first of the starts that count.
"""

import heapq
from collections.abc import Callable
from itertools import count

from astra_stream.records import PolicyVersion
from astra_stream.rollout.requests import TakenRequest
from astra_stream.rollout.slots import Age

SHARED_STARTS = 2
"""Starts beside other requests; further ones are alone."""


class Backlog:
    """Oldest first.

    Args:
        max_deliveries: Starts alone after which a request is given up.
    """

    def __init__(self, max_deliveries: int) -> None:
        self._max_starts = SHARED_STARTS + max_deliveries
        self._waiting: list[tuple[Age, int, TakenRequest]] = []
        self._arrivals = count()

    @property
    def num_samples(self) -> int:
        """Samples of the requests that wait."""
        return sum(taken.request.num_samples for _, _, taken in self._waiting)

    def add(self, taken: TakenRequest) -> None:
        """Let a request wait."""
        heapq.heappush(self._waiting, (taken.age, next(self._arrivals), taken))

    def keep(self, is_wanted: Callable[[TakenRequest], bool]) -> None:
        """Forget the others."""
        self._waiting = [entry for entry in self._waiting if is_wanted(entry[2])]
        heapq.heapify(self._waiting)

    def exhausted(self, now_s: float) -> list[TakenRequest]:
        """Take out the requests that were started too often, or whose time is up.

        Args:
            now_s: Unix time, seconds.
        """

        def is_exhausted(taken: TakenRequest) -> bool:
            return taken.delivery.num_starts >= self._max_starts or is_late(taken, now_s)

        found = [taken for _, _, taken in self._waiting if is_exhausted(taken)]
        self.keep(lambda taken: not is_exhausted(taken))
        return found

    def next(
        self, version: PolicyVersion | None, *, room: int, is_idle: bool
    ) -> list[TakenRequest]:
        """Take out what begins now.

        Args:
            version: Of the weights that are loaded; a request waits for those that it asks for.
            room: Samples that may begin.
            is_idle: Whether nothing plays, so that a request may be alone.
        """
        found: list[TakenRequest] = []
        while self._waiting and room > 0:
            taken = self._waiting[0][2]
            alone = plays_alone(taken)
            if not is_new_enough(version, taken.age.min_version):
                break
            if alone and (found or not is_idle):
                break
            heapq.heappop(self._waiting)
            found.append(taken)
            room = 0 if alone else room - taken.request.num_samples
        return found


def is_late(taken: TakenRequest, now_s: float) -> bool:
    """Say whether a request's deadline has passed since it was first started, before a restart."""
    first_s, deadline_s = taken.delivery.first_start_s, taken.request.deadline_s
    return first_s is not None and deadline_s > 0 and now_s - first_s > deadline_s


def plays_alone(taken: TakenRequest) -> bool:
    """Say whether nothing else may play beside a request."""
    return taken.delivery.num_starts >= SHARED_STARTS


def is_new_enough(version: PolicyVersion | None, minimum: PolicyVersion) -> bool:
    """Say whether an engine may start a request that asks for ``minimum``."""
    return version is not None and version >= minimum
