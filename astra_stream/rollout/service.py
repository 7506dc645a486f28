"""The rollout worker: many episodes at once, each seconds to hours long, ending out of order.

Consumes requests and announcements; produces trajectories. Waits for a request, a slot, a version
that is new enough. Effects, in order, and what a crash after each leaves:

1. New weights are verified and loaded: nothing is left.
2. A request is taken and played: nothing is left; it is played again by whoever owns its partition.
3. Its trajectories and the worker's position, with the set of requests that are done beyond it, are
   written in one transaction: before the commit as under 2, after it nothing is played again.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from astra_stream.engines.interface import Engine
from astra_stream.errors import ConfigError, RebalancedError, WeightsError
from astra_stream.log.codec import Codec
from astra_stream.log.interface import Log, Message, Reader, Writer
from astra_stream.log.progress import PartitionProgress
from astra_stream.records import (
    Evaluation,
    PolicyVersion,
    RolloutRequest,
    Trajectory,
    WeightAnnouncement,
)
from astra_stream.rollout.episode import Player, play_episode
from astra_stream.rollout.requests import FinishedRequest, HeldRequests
from astra_stream.rollout.slots import Age, Slots
from astra_stream.weights.interface import Follower

logger = logging.getLogger(__name__)

POLL_S = 0.2
PAUSED_POLL_S = 0.02
MAX_MESSAGES = 8
"""Requests taken at once; few, so that other workers get their share."""
MAX_POLL_WAIT_S = 5.0
SAMPLES_PER_SLOT = 8
"""Samples taken for each slot: enough to choose the oldest from, and to keep the slots busy while a
resumed reader fetches again. What was not begun costs nothing to hand back."""
FAILURES_LOOKED_AT = 32
"""Last episodes of which all must have failed before the worker gives up."""


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """What the run file says of a worker."""

    policy: str
    requests_topic: str
    trajectories_topic: str
    evaluation_trajectories_topic: str
    weights_topic: str
    closes_on_topic: str
    """Topic whose record marked final ends the run: evaluations, or weights without any."""
    group: str
    """Consumer group of the pool."""
    slot: int = 0
    """Number of this worker; part of its transactional id."""
    slots: int = 64
    """Episodes at once."""
    max_attempts: int = 3
    gather_s: float = 0.2
    """Seconds for which a finished request may wait for others, to share their transaction; it
    does not wait where no other is open."""
    grace_s: float = 15.0
    """After SIGTERM, seconds in which running episodes may still finish."""


@dataclass(kw_only=True)
class RolloutWorker:
    """Plays what is requested until the run is over or ``stop`` is set."""

    log: Log
    codec: Codec
    follower: Follower
    make_player: Callable[[Path, WeightAnnouncement], Player]
    """Model directory of the first version to engine, chat template and environment."""
    settings: WorkerSettings
    stop: threading.Event
    _held: HeldRequests = field(default_factory=HeldRequests)
    _running: dict[asyncio.Task[None], tuple[Message, PartitionProgress]] = field(
        default_factory=dict
    )
    _waiting: set[Message] = field(default_factory=set)
    """Those of the running requests of which no sample has begun."""
    _finished: list[FinishedRequest] = field(default_factory=list)
    _are_due: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when what is finished has waited long enough to be written."""
    _weights_changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _recent_failures: list[str] = field(default_factory=list)
    _polled: threading.Condition = field(default_factory=threading.Condition)
    _num_polls: int = 0
    _open_samples: int = 0
    _is_over: bool = False

    async def run(self) -> None:
        """Work until the run is over or ``stop`` is set, then leave nothing finished unwritten.

        Raises:
            ConfigError: Every recent episode failed; says how.
            FencedError: Another process has this worker's slot.
            TransientError: The log or the store cannot be reached.
        """
        settings = self.settings
        news = self.log.assign(sorted({settings.weights_topic, settings.closes_on_topic}))
        with one_thread("news") as self._news, one_thread("requests") as self._requests:
            try:
                player = await self._first_weights(news)
                if player is None:
                    return
                self._slots = Slots(settings.slots)
                try:
                    await self._work(player, news)
                finally:
                    await player.engine.close()
            finally:
                await in_thread(self._news, news.close)

    async def _work(self, player: Player, news: Reader) -> None:
        settings = self.settings
        writing = one_thread("trajectories")
        writer = self.log.writer(f"{settings.group}.{settings.slot}")
        self._reader = self.log.subscribe(
            [settings.requests_topic],
            group=settings.group,
            on_assigned=lambda gained: self._held.gained(self._reader, gained),
            on_revoked=self._held.lost,
        )
        background = [
            asyncio.create_task(self._follow(player.engine, news)),
            asyncio.create_task(self._write_when_due(writer, writing)),
        ]
        try:
            await self._until_first_ends(self._take(player), background)
            await self._drain(writer, writing)
        finally:
            for task in [*background, *self._running]:
                task.cancel()
            await asyncio.gather(*background, *self._running, return_exceptions=True)
            await in_thread(writing, writer.close)
            await in_thread(self._requests, self._reader.close)
            writing.shutdown()

    async def _until_first_ends(
        self, main: Coroutine[Any, Any, None], background: Collection[asyncio.Task[None]]
    ) -> None:
        """Run ``main`` to its end, or until a background task fails."""
        task = asyncio.create_task(main)
        done, _ = await asyncio.wait([task, *background], return_when=asyncio.FIRST_COMPLETED)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for ended in done:
            ended.result()

    # -- weights ---------------------------------------------------------------------------------

    async def _first_weights(self, news: Reader) -> Player | None:
        while not self.stop.is_set():
            newest = self._newest(await in_thread(self._news, news.poll, POLL_S))
            if newest is not None:
                update = await in_thread(self._news, self.follower.fetch, newest)
                directory = await in_thread(self._news, self.follower.model_directory, newest)
                player = self.make_player(directory, newest)
                await player.engine.load(update)
                logger.info("weights loaded", extra={"version": str(newest.version)})
                return player
        return None

    async def _follow(self, engine: Engine, news: Reader) -> None:
        while True:
            newest = self._newest(await in_thread(self._news, news.poll, POLL_S))
            if newest is None or newest.version == engine.version:
                continue
            try:
                update = await in_thread(self._news, self.follower.fetch, newest)
            except WeightsError as error:
                logger.warning("weights kept", extra={"reason": str(error)})
                continue
            await engine.load(update)
            async with self._weights_changed:
                self._weights_changed.notify_all()

    def _newest(self, messages: Collection[Message]) -> WeightAnnouncement | None:
        """The newest announcement that has bytes; notes whether the run is over."""
        newest: WeightAnnouncement | None = None
        for message in messages:
            record = self.codec.decode(message.value or b"")
            if isinstance(record, Evaluation):
                self._is_over = self._is_over or record.final
            elif record.kind == "final":
                self._is_over = self._is_over or self.settings.closes_on_topic == message.topic
            else:
                newest = record
        return newest

    # -- requests --------------------------------------------------------------------------------

    async def _take(self, player: Player) -> None:
        """Take requests while there is room; polling never waits for an episode."""
        is_paused = False
        most = SAMPLES_PER_SLOT * self.settings.slots
        while not self.stop.is_set() and not self._is_over:
            wants_pause = self._open_samples >= (most // 2 if is_paused else most)
            if wants_pause != is_paused:
                change = self._reader.pause if wants_pause else self._reader.resume
                await in_thread(self._requests, change, self._reader.assignment())
                is_paused = wants_pause
            messages = await in_thread(self._requests, self._poll, is_paused)
            for message in messages:
                holding = self._held.accept(message)
                if holding is not None:
                    self._start(message, holding, player)
            self._give_up_lost()

    def _poll(self, is_paused: bool) -> list[Message]:  # noqa: FBT001 - passed to a thread
        timeout_s = PAUSED_POLL_S if is_paused else POLL_S
        messages = self._reader.poll(timeout_s, max_messages=MAX_MESSAGES)
        with self._polled:
            self._num_polls += 1
            self._polled.notify_all()
        return messages

    def _wait_for_a_poll(self) -> None:
        """Wait until a poll has begun and ended since: it brings the group's new generation."""
        with self._polled:
            enough = self._num_polls + 2
            self._polled.wait_for(lambda: self._num_polls >= enough, MAX_POLL_WAIT_S)

    def _start(self, message: Message, holding: PartitionProgress, player: Player) -> None:
        request: RolloutRequest = self.codec.decode(message.value or b"")
        self._open_samples += request.num_samples
        task = asyncio.create_task(self._play(message, holding, request, player))
        self._running[task] = (message, holding)
        self._waiting.add(message)
        task.add_done_callback(lambda ended: self._ended(ended, request.num_samples))

    def _ended(self, task: asyncio.Task[None], num_samples: int) -> None:
        message, _ = self._running.pop(task)
        self._waiting.discard(message)
        self._open_samples -= num_samples
        if not self._running:
            self._are_due.set()

    def _give_up_lost(self) -> None:
        for task, (message, holding) in list(self._running.items()):
            if not self._held.is_held(message, holding):
                task.cancel()

    async def _play(
        self, message: Message, holding: PartitionProgress, request: RolloutRequest, player: Player
    ) -> None:
        need = request.policies[0]
        async with self._weights_changed:
            await self._weights_changed.wait_for(
                lambda: is_new_enough(player.engine.version, need.min_version)
            )
        age = Age(need.min_version, request.issued_at_s)

        async def sample(index: int) -> Trajectory:
            async with self._slots.held(age):
                self._waiting.discard(message)
                return await self._sample(request, request.first_sample + index, player)

        trajectories = await asyncio.gather(*map(sample, range(request.num_samples)))
        self._finish(
            FinishedRequest(
                message=message,
                holding=holding,
                purpose=request.purpose,
                trajectories=tuple(trajectories),
            )
        )

    async def _sample(
        self, request: RolloutRequest, sample_index: int, player: Player
    ) -> Trajectory:
        trajectory = await play_episode(
            request, sample_index, player, max_attempts=self.settings.max_attempts
        )
        failed = trajectory.status == "error" and not trajectory.retryable
        self._recent_failures.append(
            f"{trajectory.error_kind}: {trajectory.error}" if failed else ""
        )
        del self._recent_failures[:-FAILURES_LOOKED_AT]
        return trajectory

    # -- trajectories ----------------------------------------------------------------------------

    def _finish(self, one: FinishedRequest) -> None:
        self._finished.append(one)
        if len(self._finished) == 1:
            asyncio.get_running_loop().call_later(self.settings.gather_s, self._are_due.set)

    async def _write_when_due(self, writer: Writer, writing: Executor) -> None:
        while True:
            await self._are_due.wait()
            await self._write_finished(writer, writing)
            self._refuse_if_all_fail()

    async def _write_finished(self, writer: Writer, writing: Executor) -> None:
        self._are_due.clear()
        finished = self._finished.copy()
        self._finished.clear()
        if finished:
            await in_thread(writing, self._commit, writer, finished)

    def _commit(self, writer: Writer, finished: list[FinishedRequest]) -> None:
        while True:
            owned, positions = self._held.finish(finished)
            if not owned:
                return
            try:
                with writer.transaction() as txn:
                    for one in owned:
                        for trajectory in one.trajectories:
                            topic = self._topic_for(one)
                            key = trajectory.prompt_id.encode()
                            txn.write(topic, key, self.codec.encode(trajectory))
                    txn.commit_offsets(self._reader, positions)
            except RebalancedError:
                logger.info("group moved on, writing again what is still held")
                self._wait_for_a_poll()
            else:
                return

    def _topic_for(self, one: FinishedRequest) -> str:
        if one.purpose == "evaluate":
            return self.settings.evaluation_trajectories_topic
        return self.settings.trajectories_topic

    def _refuse_if_all_fail(self) -> None:
        failures = self._recent_failures
        if len(failures) == FAILURES_LOOKED_AT and all(failures):
            raise ConfigError(
                f"rollout: episodes must end with a reward: got {len(failures)} failures in a row, "
                f"the last {failures[-1]}. Correct the environment, reward function or prompts."
            )

    async def _drain(self, writer: Writer, writing: Executor) -> None:
        """Hand back what has not begun; let the rest finish in time, and write what did."""
        for task, (message, _) in self._running.items():
            if message in self._waiting:
                task.cancel()
        if self._running:
            await asyncio.wait(list(self._running), timeout=self.settings.grace_s)
        await self._write_finished(writer, writing)


def is_new_enough(version: PolicyVersion | None, minimum: PolicyVersion) -> bool:
    """Say whether an engine may start a request that asks for ``minimum``."""
    return version is not None and version >= minimum


def one_thread(name: str) -> ThreadPoolExecutor:
    """A thread for one client: its calls, the closing one included, never overlap."""
    return ThreadPoolExecutor(1, thread_name_prefix=name)


async def in_thread(thread: Executor, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a blocking function on ``thread`` and wait for its result."""
    return await asyncio.get_running_loop().run_in_executor(thread, function, *arguments)
