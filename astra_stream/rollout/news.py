"""What a worker hears: which weights there are, and that the run is over."""

import logging
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from threading import Event

from astra_stream.engines.interface import Engine, WeightUpdate
from astra_stream.errors import WeightsError
from astra_stream.log.codec import Codec
from astra_stream.log.interface import Log, Message
from astra_stream.records import Evaluation, WeightAnnouncement
from astra_stream.rollout.threads import in_thread, one_thread
from astra_stream.weights.interface import Follower

logger = logging.getLogger(__name__)

POLL_S = 0.2
TRY_AGAIN_S = 30.0
"""Seconds until weights that were refused are fetched again."""


class News:
    """Reads announcements and evaluations, alone, and fetches the weights that they name.

    Args:
        log: Where they are announced.
        codec: Reads them.
        follower: Fetches and verifies weights.
        weights_topic: Announcements.
        closes_on_topic: Topic whose record marked final ends the run.
    """

    def __init__(
        self,
        log: Log,
        codec: Codec,
        follower: Follower,
        *,
        weights_topic: str,
        closes_on_topic: str,
    ) -> None:
        self._codec = codec
        self._follower = follower
        self._weights_topic = weights_topic
        self._closes_on_topic = closes_on_topic
        self._reader = log.assign(sorted({weights_topic, closes_on_topic}))
        self._thread = one_thread("news")
        self._refused: WeightAnnouncement | None = None
        self._tries_again_s = 0.0
        self.is_over = False

    async def first(self, stop: Event) -> tuple[WeightAnnouncement, Path, WeightUpdate] | None:
        """Wait for the first weights; None where ``stop`` is set before.

        Returns:
            Their announcement, a directory with the model's files, and the weights.
        """
        while not stop.is_set():
            newest = await self._poll()
            if newest is not None:
                update = await in_thread(self._thread, self._follower.fetch, newest)
                directory = await in_thread(self._thread, self._follower.model_directory, newest)
                logger.info("weights loaded", extra={"version": str(newest.version)})
                return newest, directory, update
        return None

    async def follow(self, engine: Engine, on_change: Callable[[], Awaitable[None]]) -> None:
        """Load every newer version into the engine, for ever; tell of each, and of the end."""
        while True:
            newest = await self._poll() or self._due()
            if newest is not None and newest.version != engine.version:
                await self._load(newest, engine)
            if newest is not None or self.is_over:
                await on_change()

    async def close(self) -> None:
        """Stop reading."""
        await in_thread(self._thread, self._reader.close)
        self._thread.shutdown()

    async def _load(self, newest: WeightAnnouncement, engine: Engine) -> None:
        self._refused = None
        try:
            update = await in_thread(self._thread, self._follower.fetch, newest)
        except WeightsError as error:
            logger.warning("weights kept", extra={"reason": str(error)})
            self._refused = newest
            self._tries_again_s = time.monotonic() + TRY_AGAIN_S
        else:
            await engine.load(update)

    def _due(self) -> WeightAnnouncement | None:
        """What was refused a while ago and may be whole now; the run may wait for nothing else."""
        return self._refused if time.monotonic() >= self._tries_again_s else None

    async def _poll(self) -> WeightAnnouncement | None:
        """The newest announcement that has bytes; notes whether the run is over."""
        return self._newest(await in_thread(self._thread, self._reader.poll, POLL_S))

    def _newest(self, messages: Collection[Message]) -> WeightAnnouncement | None:
        newest: WeightAnnouncement | None = None
        for message in messages:
            if message.topic != self._weights_topic:
                evaluation = self._codec.read(Evaluation, message)
                self.is_over = self.is_over or evaluation.final
                continue
            announcement = self._codec.read(WeightAnnouncement, message)
            if announcement.kind == "final":
                self.is_over = self.is_over or self._closes_on_topic == message.topic
            else:
                newest = announcement
        return newest
