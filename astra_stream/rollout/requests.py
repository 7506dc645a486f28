"""The worker's side of the requests topic: what it holds, what is done, and what may be committed.

One lock guards it: the poll thread adds and loses partitions, the writer takes positions.
"""

import threading
from collections.abc import Collection
from dataclasses import dataclass

from astra_stream.log.interface import Committed, Message, Partition, Reader
from astra_stream.log.progress import PartitionProgress
from astra_stream.records import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRequest:
    """A request all of whose samples have a trajectory."""

    message: Message
    holding: PartitionProgress
    """What ``accept`` gave: the time for which this worker has held the partition."""
    purpose: str
    trajectories: tuple[Trajectory, ...]


class HeldRequests:
    """Progress of the partitions that this worker owns."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._progress: dict[Partition, PartitionProgress] = {}

    def gained(self, reader: Reader, partitions: Collection[Partition]) -> None:
        """Take up partitions where their last owner left them."""
        committed = reader.committed(partitions)
        with self.lock:
            for partition in partitions:
                found = committed.get(partition, Committed(0))
                self._progress[partition] = PartitionProgress.from_committed(found)

    def lost(self, partitions: Collection[Partition]) -> None:
        """Forget partitions; what runs of them is given up."""
        with self.lock:
            for partition in partitions:
                self._progress.pop(partition, None)

    def accept(self, message: Message) -> PartitionProgress | None:
        """Take a delivered request, unless it was done before or its partition is gone.

        Returns:
            What tells this holding of the partition from a later one; None to leave the request.
        """
        with self.lock:
            progress = self._progress.get(message.source)
            if progress is None or progress.is_done(message.offset):
                return None
            progress.delivered(message.offset)
            return progress

    def is_held(self, message: Message, holding: PartitionProgress) -> bool:
        """Say whether the request's partition was this worker's ever since it was taken."""
        with self.lock:
            return self._progress.get(message.source) is holding

    def finish(
        self, finished: Collection[FinishedRequest]
    ) -> tuple[list[FinishedRequest], dict[Partition, Committed]]:
        """Mark requests done; doing it again for the same requests changes nothing.

        Returns:
            Those whose partition was held all the time, and the positions to commit with them.
            The others are played again by whoever was given their partition.
        """
        with self.lock:
            held = [
                one for one in finished if self._progress.get(one.message.source) is one.holding
            ]
            for one in held:
                if not one.holding.is_done(one.message.offset):
                    one.holding.finished(one.message.offset)
            touched = {one.message.source for one in held}
            return held, {p: self._progress[p].committed() for p in touched}
