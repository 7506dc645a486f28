"""Writes what a worker has to say of its requests: starts, ends, and what may be committed.

One transactional producer and one thread do all of it, one transaction after another: a position
that was written aside could overtake one that is still pending, and take its done-set with it.
"""

import asyncio
import logging
from collections.abc import Collection

from astra_stream.errors import RebalancedError
from astra_stream.log.codec import Codec
from astra_stream.log.interface import Reader, Writer
from astra_stream.rollout.requests import Delivery, Finished, HeldRequests
from astra_stream.rollout.threads import in_thread, one_thread

logger = logging.getLogger(__name__)


class ResultWriter:
    """Gathers finished requests and writes them with the worker's positions.

    A transaction of a group that has moved on is aborted. What it held stays here, and is written
    once the reader has polled again, as far as the worker still holds it.

    Args:
        writer: Transactional producer of this worker's slot.
        reader: Member of the group whose positions are written.
        codec: Encodes records.
        held: What may be committed.
        gather_s: Seconds for which a finished request waits for others.
    """

    def __init__(
        self, writer: Writer, reader: Reader, *, codec: Codec, held: HeldRequests, gather_s: float
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._codec = codec
        self._held = held
        self._gather_s = gather_s
        self._thread = one_thread("results")
        self._finished: list[Finished] = []
        self._are_due = asyncio.Event()
        self._waits_for_poll = False

    def add(self, one: Finished) -> None:
        """Let a finished request be written, with others."""
        self._finished.append(one)
        if len(self._finished) == 1:
            asyncio.get_running_loop().call_later(self._gather_s, self.flush)

    def flush(self) -> None:
        """Let what has finished be written now."""
        self._are_due.set()

    def polled(self) -> None:
        """The reader has polled, and may have learnt of a new generation of its group."""
        if self._waits_for_poll:
            self._waits_for_poll = False
            self.flush()

    async def write_when_due(self) -> None:
        """Wait until something is due, and write it."""
        await self._are_due.wait()
        await self.write()

    async def write(self, touched: Collection[Delivery] = ()) -> bool:
        """Write what has finished, and the positions of that and of ``touched``.

        Returns:
            False where the group has moved on: again after a poll.
        """
        self._are_due.clear()
        finished = self._finished.copy()
        self._finished.clear()
        is_written = await in_thread(self._thread, self._commit, finished, touched)
        if not is_written:
            self._finished[:0] = finished
            self._waits_for_poll = True
        return is_written

    async def close(self) -> None:
        """Free the producer; what is open is aborted."""
        await in_thread(self._thread, self._writer.close)
        self._thread.shutdown()

    def _commit(self, finished: Collection[Finished], touched: Collection[Delivery]) -> bool:
        held = self._held.finish(finished)
        positions = self._held.positions([*touched, *(one.delivery for one in held)])
        if not positions:
            return True
        try:
            with self._writer.transaction() as txn:
                for write in (write for one in held for write in one.writes):
                    value = write.value or self._codec.encode(write.record)
                    txn.write(write.topic, write.key.encode(), value, headers=write.headers)
                txn.commit_offsets(self._reader, positions)
        except RebalancedError:
            logger.info("group moved on, writing again what is still held")
            return False
        return True
