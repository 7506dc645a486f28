"""The rollout worker: many episodes at once, each seconds to hours long, ending out of order.

Consumes requests and announcements; produces trajectories. Waits for a request, a slot, a version
that is new enough. Effects, in order, and what a crash after each leaves:

1. New weights are verified and loaded: nothing is left.
2. A request is delivered and waits: nothing is left; whoever owns its partition is given it.
3. A request's start is counted, in a transaction of its own: a start that nobody took back. What is
   started twice more like that plays alone, and is given up after ``max_deliveries`` starts alone,
   or once its deadline has passed since the first of them.
4. It plays: as under 3; it is played again by whoever owns its partition.
5. Its trajectories and the worker's position, with the set of requests that are done beyond it, are
   written in one transaction: before the commit as under 3, after it nothing is played again.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from astra_stream.errors import ConfigError, RecordError
from astra_stream.log.codec import Codec
from astra_stream.log.interface import Log, Message, Partition
from astra_stream.records import RolloutRequest, Trajectory, WeightAnnouncement
from astra_stream.rollout.backlog import Backlog, plays_alone
from astra_stream.rollout.episode import Player, play_episode
from astra_stream.rollout.news import News
from astra_stream.rollout.recovery import ended_groups
from astra_stream.rollout.refusals import given_up, group_named, unreadable
from astra_stream.rollout.requests import Delivery, Finished, HeldRequests, TakenRequest
from astra_stream.rollout.results import ResultWriter
from astra_stream.rollout.samples import SampleWriting
from astra_stream.rollout.settings import WorkerSettings
from astra_stream.rollout.slots import Slots
from astra_stream.rollout.threads import in_thread, one_thread
from astra_stream.weights.interface import Follower

logger = logging.getLogger(__name__)

POLL_S = 0.2
PAUSED_POLL_S = 0.02
MAX_MESSAGES = 64
BACKLOG_PER_SLOT = 6
"""Samples that wait for each slot: enough to choose the oldest from, and to keep the slots busy
while a resumed reader fetches again."""
BEGUN_PER_SLOT = 2
"""Samples of begun requests for each slot: starts are counted some at a time."""
FAILURES_LOOKED_AT = 32
"""Last episodes of which all must have failed before the worker gives up."""
DURATIONS_LOOKED_AT = 64
LONGEST_HAND_OVER_S = 60.0
LAST_TRIES = 5
"""Polls, at the end, to learn of the group's new generation and write what has finished."""


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
    _running: dict[asyncio.Task[None], TakenRequest] = field(default_factory=dict)
    _playing: set[TakenRequest] = field(default_factory=set)
    """Those of the running requests of which a sample has a slot."""
    _num_begun: int = 0
    """Samples of the running requests."""
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    """Told when a request may begin that could not before."""
    _beginning: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held from choosing requests until they run."""
    _recent_failures: list[str] = field(default_factory=list)
    _ended_before: frozenset[str] = frozenset()
    """Groups that ended before this worker started, where a partition does not say so."""
    _durations_s: deque[float] = field(default_factory=lambda: deque(maxlen=DURATIONS_LOOKED_AT))

    async def run(self) -> None:
        """Work until the run is over or ``stop`` is set, then leave nothing finished unwritten.

        Raises:
            ConfigError: Every recent episode failed; says how.
            FencedError: Another process has this worker's slot.
            TransientError: The log or the store cannot be reached.
        """
        settings = self.settings
        self._news = News(
            self.log,
            self.codec,
            self.follower,
            weights_topic=settings.weights_topic,
            closes_on_topic=settings.closes_on_topic,
        )
        try:
            first = await self._news.first(self.stop)
            if first is None:
                return
            announcement, directory, update = first
            self._player = self.make_player(directory, announcement)
            try:
                await self._player.engine.load(update)
                await self._work()
            finally:
                await self._player.engine.close()
        finally:
            await self._news.close()

    async def _work(self) -> None:
        settings = self.settings
        self._loop = asyncio.get_running_loop()
        self._slots = Slots(settings.slots)
        self._samples = SampleWriting.to(self.log, settings, codec=self.codec, player=self._player)
        self._backlog = Backlog(settings.max_deliveries)
        writer = self.log.writer(f"{settings.group}.{settings.slot}")
        self._reader = self.log.subscribe(
            [settings.requests_topic],
            group=settings.group,
            on_assigned=self._gained,
            on_revoked=self._revoked,
        )
        self._results = ResultWriter(
            writer,
            self._reader,
            codec=self.codec,
            held=self._held,
            gather_s=settings.gather_s,
        )
        background = [
            asyncio.create_task(self._news.follow(self._player.engine, self._tell)),
            asyncio.create_task(self._begin_all()),
            asyncio.create_task(self._write_results()),
        ]
        with one_thread("requests") as polling:
            try:
                await self._until_first_ends(self._take(polling), background)
                await self._drain(polling)
            finally:
                for task in [*background, *self._running]:
                    task.cancel()
                await asyncio.gather(*background, *self._running, return_exceptions=True)
                await in_thread(polling, self._reader.close)
                await self._results.close()

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

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # -- taking ----------------------------------------------------------------------------------

    async def _take(self, polling: Executor) -> None:
        """Take requests while there is room; polling never waits for an episode."""
        is_paused = False
        most = BACKLOG_PER_SLOT * self.settings.slots
        while not self.stop.is_set() and not self._news.is_over:
            num_waiting = self._backlog.num_samples
            wants_pause = num_waiting >= (most // 2 if is_paused else most)
            if wants_pause != is_paused:
                change = self._reader.pause if wants_pause else self._reader.resume
                await in_thread(polling, change, self._reader.assignment())
                is_paused = wants_pause
            timeout_s = PAUSED_POLL_S if is_paused else POLL_S
            for message in await in_thread(polling, self._poll, timeout_s):
                delivery = self._held.accept(message)
                if delivery is not None:
                    self._read(delivery)
            self._results.polled()
            self._give_up_lost()
            await self._tell()

    def _poll(self, timeout_s: float) -> list[Message]:
        return self._reader.poll(timeout_s, max_messages=MAX_MESSAGES)

    def _read(self, delivery: Delivery) -> None:
        """Let a request wait; one that cannot be read is dropped, and its group with it."""
        try:
            request = self.codec.decode_as(RolloutRequest, delivery.message.value or b"")
        except RecordError as error:
            now_s = self._player.clock.now_s()
            writes = tuple(unreadable(delivery.message, error, self.settings, now_s=now_s))
            has_ended = group_named(delivery.message) in self._ended_before
            self._results.add(Finished(delivery=delivery, writes=() if has_ended else writes))
            return
        if request.group_id in self._ended_before and request.num_samples == request.group_size:
            self._results.add(Finished(delivery=delivery, writes=()))
        else:
            self._backlog.add(TakenRequest(delivery=delivery, request=request))

    def _give_up_lost(self) -> None:
        self._backlog.keep(lambda taken: self._held.is_held(taken.delivery))
        for task, taken in list(self._running.items()):
            if not self._held.is_held(taken.delivery):
                task.cancel()

    # -- playing ---------------------------------------------------------------------------------

    async def _begin_all(self) -> None:
        """Begin requests, oldest first, as there is room; for ever."""
        while True:
            async with self._beginning:
                beginning = self._choose()
                has_begun = bool(beginning) and await self._begin(beginning)
            if not has_begun:
                async with self._changed:
                    await self._changed.wait()

    def _choose(self) -> list[TakenRequest]:
        for taken in self._backlog.exhausted(self._player.clock.now_s()):
            logger.error("request given up", extra={"request": taken.request.request_id})
            most = self.settings.max_deliveries
            self._finish(taken, given_up(taken, self._player, max_deliveries=most))
        room = BEGUN_PER_SLOT * self.settings.slots - self._num_begun
        if any(map(plays_alone, self._running.values())) or not self._held.fit():
            room = 0
        version = self._player.engine.version
        return self._backlog.next(version, room=room, is_idle=not self._running)

    async def _begin(self, beginning: Collection[TakenRequest]) -> bool:
        """Count the starts, in the log, and only then play; False where the group moved on."""
        deliveries = [taken.delivery for taken in beginning]
        self._held.started(deliveries, at_s=self._player.clock.now_s())
        if not await self._results.write(deliveries):
            self._held.given_back(deliveries)
            for taken in beginning:
                self._backlog.add(taken)
            return False
        for taken in beginning:
            self._num_begun += taken.request.num_samples
            task = asyncio.create_task(self._play(taken))
            self._running[task] = taken
            task.add_done_callback(self._ended)
        return True

    def _ended(self, task: asyncio.Task[None]) -> None:
        taken = self._running.pop(task)
        self._playing.discard(taken)
        self._num_begun -= taken.request.num_samples
        if not self._running:
            self._results.flush()
        self._telling = asyncio.create_task(self._tell())

    async def _play(self, taken: TakenRequest) -> None:
        began_s, request = self._loop.time(), taken.request

        async def sample(index: int) -> Trajectory:
            async with self._slots.held(taken.age):
                self._playing.add(taken)
                return await self._sample(taken, request.first_sample + index)

        trajectories = await asyncio.gather(*map(sample, range(request.num_samples)))
        self._durations_s.append(self._loop.time() - began_s)
        self._finish(taken, trajectories)

    async def _sample(self, taken: TakenRequest, sample_index: int) -> Trajectory:
        trajectory = await play_episode(
            taken.request,
            sample_index,
            self._player,
            max_attempts=self.settings.max_attempts,
            num_starts=taken.delivery.num_starts,
        )
        failed = trajectory.status == "error" and not trajectory.retryable
        self._recent_failures.append(
            f"{trajectory.error_kind}: {trajectory.error}" if failed else ""
        )
        del self._recent_failures[:-FAILURES_LOOKED_AT]
        return trajectory

    def _finish(self, taken: TakenRequest, trajectories: Iterable[Trajectory]) -> None:
        writes = tuple(self._samples.write(taken.request, one) for one in trajectories)
        self._results.add(Finished(delivery=taken.delivery, writes=writes))

    async def _write_results(self) -> None:
        while True:
            await self._results.write_when_due()
            failures = self._recent_failures
            if len(failures) == FAILURES_LOOKED_AT and all(failures):
                raise ConfigError(
                    f"rollout: episodes must end with a reward: got {len(failures)} failures in a "
                    f"row, the last {failures[-1]}. Correct the environment, reward function or "
                    "prompts."
                )

    # -- partitions ------------------------------------------------------------------------------

    def _gained(self, partitions: Collection[Partition]) -> None:
        """Take partitions up, on the thread that polls."""
        is_unknown = self._held.gained(self._reader, partitions)
        if is_unknown and not self._ended_before:
            self._ended_before = ended_groups(self.log, self.settings, clock=self._player.clock)

    def _revoked(self, partitions: Collection[Partition]) -> None:
        """Hand partitions over, on the thread that polls."""
        handing_over = self._hand_over(frozenset(partitions))
        asyncio.run_coroutine_threadsafe(handing_over, self._loop).result()
        self._held.lost(partitions)

    # -- ending ----------------------------------------------------------------------------------

    async def _hand_over(self, partitions: Collection[Partition]) -> None:
        """Let what plays finish in its usual time, and take the starts of the rest back."""

        def goes(taken: TakenRequest) -> bool:
            return taken.delivery.message.source in partitions

        self._backlog.keep(lambda taken: not goes(taken))
        async with self._beginning:
            leaving = [task for task, taken in self._running.items() if goes(taken)]
        await self._end(leaving, within_s=self._usual_s())

    def _usual_s(self) -> float:
        """The 90th percentile of how long requests take, below any limit on polling."""
        ordered = sorted(self._durations_s) or [0.0]
        return min(LONGEST_HAND_OVER_S, ordered[int(0.9 * (len(ordered) - 1))])

    async def _drain(self, polling: Executor) -> None:
        """Let what plays finish in time, hand back the rest, and write what did."""
        self._backlog.keep(lambda _: False)
        async with self._beginning:
            running = list(self._running)
        is_written = await self._end(running, within_s=self.settings.grace_s)
        for _ in range(LAST_TRIES):
            if is_written:
                break
            await in_thread(polling, self._poll, POLL_S)
            is_written = await self._results.write()

    async def _end(self, tasks: Collection[asyncio.Task[None]], *, within_s: float) -> bool:
        """Let the tasks that play end in time, give the others back, and write all of it."""
        waiting = {task for task in tasks if self._running[task] not in self._playing}
        given_back = self._cancel(waiting)
        if playing := set(tasks) - waiting:
            _, late = await asyncio.wait(playing, timeout=within_s)
            given_back += self._cancel(late)
        self._held.given_back(given_back)
        return await self._results.write(given_back)

    def _cancel(self, tasks: Collection[asyncio.Task[None]]) -> list[Delivery]:
        for task in tasks:
            task.cancel()
        return [self._running[task].delivery for task in tasks]
