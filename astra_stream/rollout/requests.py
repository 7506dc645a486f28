"""The worker's side of the requests topic: what it holds, what of it ended, what may be committed.

One lock guards it: the poll thread adds and loses partitions, the writer takes positions.
"""

import functools
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

from astra_stream.log.interface import Committed, Message, Partition, Reader
from astra_stream.log.processor import Write
from astra_stream.log.progress import PartitionProgress
from astra_stream.records import RolloutRequest
from astra_stream.rollout.slots import Age


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Delivery:
    """A record of the requests topic that is this worker's to play."""

    message: Message
    holding: PartitionProgress
    """The time for which this worker has held the partition."""
    num_starts: int
    """Starts of it, here or elsewhere, that neither finished nor were given back: crashes."""
    first_start_s: int | None = None
    """Unix time of the first of them, whole seconds; None where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TakenRequest:
    """A delivery that could be read."""

    delivery: Delivery
    request: RolloutRequest

    @property
    def age(self) -> Age:
        """Its place among those that wait."""
        need = self.request.policies[0]
        return Age(need.min_version, self.request.issued_at_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Finished:
    """A delivery that has ended, and what is to be written of it."""

    delivery: Delivery
    writes: tuple[Write, ...]


class HeldRequests:
    """Progress of the partitions that this worker owns."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._progress: dict[Partition, PartitionProgress] = {}

    def gained(self, reader: Reader, partitions: Collection[Partition]) -> bool:
        """Take up partitions where their last owner left them.

        Returns:
            Whether one has no position: nobody had it, or the broker forgot where.
        """
        committed = reader.committed(partitions)
        with self.lock:
            for partition in partitions:
                found = committed.get(partition, Committed(0))
                self._progress[partition] = PartitionProgress.from_committed(found)
        return len(committed) < len(partitions)

    def lost(self, partitions: Collection[Partition]) -> None:
        """Forget partitions; what runs of them is given up."""
        with self.lock:
            for partition in partitions:
                self._progress.pop(partition, None)

    def accept(self, message: Message) -> Delivery | None:
        """Take a delivered record, unless it was done before or its partition is gone."""
        with self.lock:
            progress = self._progress.get(message.source)
            if progress is None:
                return None
            # Also what was done before: the position may only move over what it was handed.
            progress.delivered(message.offset)
            if progress.is_done(message.offset):
                return None
            return Delivery(
                message=message,
                holding=progress,
                num_starts=progress.num_starts(message.offset),
                first_start_s=progress.first_start_s(message.offset),
            )

    def is_held(self, delivery: Delivery) -> bool:
        """Say whether its partition was this worker's ever since it was delivered."""
        with self.lock:
            return self._holds(delivery)

    def started(self, deliveries: Collection[Delivery], *, at_s: float) -> None:
        """Count a start of each, to be committed before any of them plays.

        Args:
            deliveries: What begins.
            at_s: Unix time, seconds.
        """
        self._count(deliveries, functools.partial(PartitionProgress.started, at_s=at_s))

    def given_back(self, deliveries: Collection[Delivery]) -> None:
        """Take the starts back of those that end without a result and without a crash."""
        self._count(deliveries, PartitionProgress.given_back)

    def finish(self, finished: Collection[Finished]) -> list[Finished]:
        """Mark deliveries done; doing it again for the same ones changes nothing.

        Returns:
            Those whose partition was held all the time. The others are played again by whoever
            was given their partition.
        """
        with self.lock:
            held = [one for one in finished if self._holds(one.delivery)]
            for one in held:
                offset = one.delivery.message.offset
                if not one.delivery.holding.is_done(offset):
                    one.delivery.holding.finished(offset)
            return held

    def positions(self, deliveries: Collection[Delivery]) -> dict[Partition, Committed]:
        """What to commit for the partitions of these, as far as they are held."""
        with self.lock:
            touched = {one.message.source for one in deliveries if self._holds(one)}
            return {p: self._progress[p].committed() for p in touched}

    def fit(self) -> bool:
        """Whether all that is known of every partition fits into a commit.

        Where it does not, requests far behind the oldest one have finished: begin no other, so
        that a restart repeats no finished work.
        """
        with self.lock:
            return all(progress.fits() for progress in self._progress.values())

    def _holds(self, delivery: Delivery) -> bool:
        return self._progress.get(delivery.message.source) is delivery.holding

    def _count(
        self, deliveries: Collection[Delivery], change: Callable[[PartitionProgress, int], object]
    ) -> None:
        with self.lock:
            for one in deliveries:
                if self._holds(one):
                    change(one.holding, one.message.offset)
