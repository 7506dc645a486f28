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

    def accept(self, message: Message) -> bool:
        """Say whether a delivered request is to be played: it is not when it was done before."""
        with self.lock:
            progress = self._progress.get(message.source)
            if progress is None or progress.is_done(message.offset):
                return False
            progress.delivered(message.offset)
            return True

    def is_owned(self, message: Message) -> bool:
        """Say whether the request's partition is still this worker's."""
        with self.lock:
            return message.source in self._progress

    def finish(
        self, finished: Collection[FinishedRequest]
    ) -> tuple[list[FinishedRequest], dict[Partition, Committed]]:
        """Mark requests done.

        Returns:
            Those whose partition is still owned, and the positions to commit with them.
        """
        with self.lock:
            owned = [one for one in finished if one.message.source in self._progress]
            for one in owned:
                self._progress[one.message.source].finished(one.message.offset)
            touched = {one.message.source for one in owned}
            return owned, {p: self._progress[p].committed() for p in touched}
