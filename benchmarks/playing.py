"""Rollout workers as processes, playing tasks that only take time and say what they do.

A task is a request of one sample, with as many turns as its prompt's answer says. Each line of a
worker's diary is there before the next thing happens, so that a SIGKILL takes none of it along.
"""

import asyncio
import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
from embedded import NAMES, open_codec

from astra_stream.clock import SystemClock
from astra_stream.engines.interface import WeightUpdate
from astra_stream.engines.scripted import ScriptedEngine
from astra_stream.environments.interface import Step
from astra_stream.log.interface import Committed, Partition
from astra_stream.log.kafka import KafkaLog
from astra_stream.records import (
    ChatMessage,
    PolicyNeed,
    PolicyVersion,
    Prompt,
    RolloutRequest,
    Sampling,
    WeightAnnouncement,
)
from astra_stream.rollout.episode import Player
from astra_stream.rollout.requests import Delivery, HeldRequests
from astra_stream.rollout.service import RolloutWorker
from astra_stream.rollout.settings import WorkerSettings
from astra_stream.testing.builders import make_prompt

TURN_S = 0.1
TURN_TOKENS = 8
REPLY = [7] * TURN_TOKENS
CONTEXT_TOKENS = 100_000
CLOSE_S = 60.0
"""Longest that a worker takes to end once the run is over."""
FIRST = PolicyVersion(0, 0)


class ContiguousRequests(HeldRequests):
    """Commits as most consumers do: up to the oldest unfinished request, no word of the rest."""

    def positions(self, deliveries: Collection[Delivery]) -> dict[Partition, Committed]:
        return {p: Committed(found.offset) for p, found in super().positions(deliveries).items()}


class AbruptWorker(RolloutWorker):
    """Gives up what it plays of partitions that it loses."""

    def _usual_s(self) -> float:
        return 0.0


@dataclass(frozen=True)
class Diary:
    """What a worker did, task by task."""

    path: Path

    def add(self, event: str, task: str) -> None:
        with self.path.open("a", buffering=1) as lines:
            lines.write(f"{event} {task}\n")

    def count(self, event: str) -> Counter[str]:
        """How often an event happened to each task."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return Counter(task for found, task in map(str.split, lines) if found == event)


class TimedEnvironment:
    """Lets each turn take its time."""

    def __init__(self, prompt: Prompt, diary: Diary) -> None:
        self._prompt = prompt
        self._diary = diary
        self._turns_left = int(prompt.answer)

    async def start(self) -> Sequence[ChatMessage]:
        self._diary.add("start", self._prompt.prompt_id)
        return self._prompt.messages

    async def step(self, reply: ChatMessage) -> Step:
        del reply
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=TURN_S)
        self._diary.add("turn", self._prompt.prompt_id)
        self._turns_left -= 1
        return Step(done=not self._turns_left)

    async def close(self) -> None:
        pass


class NumberChat:
    """Says the same whatever it is given."""

    fingerprint = "numbers"
    eos_ids = (0,)

    def opening(self, messages: Sequence[ChatMessage]) -> np.ndarray:
        del messages
        return np.zeros(1, np.int32)

    def continuation(
        self, messages: Sequence[ChatMessage], *, reply: str, terminated: bool
    ) -> np.ndarray:
        del messages, reply, terminated
        return np.zeros(0, np.int32)

    def decode(self, tokens: np.ndarray) -> str:
        return str(len(tokens))


class NoWeights:
    """Has every version: there is nothing to fetch."""

    version = None

    def fetch(self, announcement: WeightAnnouncement) -> WeightUpdate:
        return WeightUpdate(version=announcement.version, tensors={}, dtypes={})

    def model_directory(self, announcement: WeightAnnouncement) -> Path:
        return Path(str(announcement.version))


def play(bootstrap: str, pool: str, slot: int, path: str, *, is_baseline: bool, slots: int) -> None:
    """Be a worker, until the pool's weights topic says that the run is over."""
    diary = Diary(Path(path))
    log = KafkaLog(bootstrap)

    def make_player(*_: object) -> Player:
        return Player(
            engine=ScriptedEngine([REPLY], context_tokens=CONTEXT_TOKENS, initial_version=FIRST),
            chat=NumberChat(),
            make_environment=lambda prompt: TimedEnvironment(prompt, diary),
            policy=pool,
            clock=SystemClock(),
            worker=str(slot),
        )

    worker = (AbruptWorker if is_baseline else RolloutWorker)(
        log=log,
        codec=open_codec(),
        follower=NoWeights(),
        make_player=make_player,
        settings=settings(pool, slot, slots),
        stop=threading.Event(),
        _held=ContiguousRequests() if is_baseline else HeldRequests(),
    )
    asyncio.run(worker.run())
    log.close()


def settings(pool: str, slot: int, slots: int) -> WorkerSettings:
    return WorkerSettings(
        policy=pool,
        requests_topic=NAMES.requests(pool),
        trajectories_topic=NAMES.trajectories(pool),
        evaluation_trajectories_topic=NAMES.evaluation_trajectories(pool),
        outcomes_topic=NAMES.outcomes,
        dead_letters_topic=NAMES.dead_letters,
        weights_topic=NAMES.weights(pool),
        closes_on_topic=NAMES.weights(pool),
        group=NAMES.group("rollout", pool),
        slot=slot,
        slots=slots,
    )


class Pool:
    """Workers of one pool, what they are asked for, and what came of it.

    Args:
        bootstrap: Address of the broker.
        name: Of the pool, which has a policy of its own.
        directory: Where the diaries go.
        is_baseline: Whether they commit contiguous offsets only, and hand nothing over.
        slots: Tasks that a worker plays at once.
    """

    def __init__(
        self, bootstrap: str, name: str, directory: Path, *, is_baseline: bool, slots: int
    ) -> None:
        self.name = name
        self.diaries: dict[int, Diary] = {}
        self.processes: dict[int, BaseProcess] = {}
        self.finished: dict[str, list[str]] = {}
        """Task to the workers whose result of it is in the log."""
        self._bootstrap = bootstrap
        self._directory = directory
        self._options = {"is_baseline": is_baseline, "slots": slots}
        self._log = KafkaLog(bootstrap)
        self._codec = open_codec()
        self._writer = self._log.writer(NAMES.group("bench", name))
        self._results = self._log.assign([NAMES.trajectories(name)])
        self._num_asked = 0

    def announce(self, kind: str) -> None:
        """Tell of weights, or with ``final`` of the end."""
        record = WeightAnnouncement(
            policy=self.name,
            version=FIRST,
            kind=kind,
            root_hash="0" * 64,
            model_fingerprint="0" * 64,
            tensors=(),
            objects=(),
        )
        with self._writer.transaction() as txn:
            txn.write(NAMES.weights(self.name), b"k", self._codec.encode(record))

    def start_worker(self, slot: int) -> None:
        context = multiprocessing.get_context("forkserver")
        # What takes seconds and half a gigabyte to import is shared.
        context.set_forkserver_preload(["astra_stream.rollout.service"])
        self.diaries[slot] = Diary(self._directory / f"{self.name}-{slot}")
        arguments = (self._bootstrap, self.name, slot, str(self.diaries[slot].path))
        process = context.Process(target=play, args=arguments, kwargs=self._options, daemon=True)
        process.start()
        self.processes[slot] = process

    def kill(self, slot: int) -> None:
        process = self.processes.pop(slot)
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()

    def ask(self, turns: Mapping[str, int]) -> None:
        """Request tasks, spread over the partitions as a scheduler does."""
        num_partitions = self._log.num_partitions(NAMES.requests(self.name))
        with self._writer.transaction() as txn:
            for task, num_turns in turns.items():
                request = self._request(task, num_turns)
                value = self._codec.encode(request)
                partition = self._num_asked % num_partitions
                txn.write(NAMES.requests(self.name), task.encode(), value, partition=partition)
                self._num_asked += 1

    def wait_for(self, tasks: Sequence[str], *, share: float = 1.0, within_s: float) -> None:
        """Wait until the results of a share of some tasks are in the log."""
        clock = SystemClock()
        deadline_s = clock.monotonic_s() + within_s
        while sum(task in self.finished for task in tasks) < share * len(tasks):
            if clock.monotonic_s() > deadline_s:
                raise TimeoutError(f"{self.name}: tasks must be finished within {within_s} s")
            self.read_results(0.5)

    def read_results(self, timeout_s: float) -> None:
        for message in self._results.poll(timeout_s):
            trajectory = self._codec.decode(message.value or b"")
            self.finished.setdefault(trajectory.prompt_id, []).append(trajectory.worker)

    def close(self) -> None:
        """Let the workers end by themselves."""
        self.announce("final")
        for slot, process in self.processes.items():
            process.join(CLOSE_S)
            if process.exitcode != 0:
                raise RuntimeError(f"{self.name}: worker {slot} must end: got {process.exitcode}")
        self._results.close()
        self._writer.close()
        self._log.close()

    def _request(self, task: str, num_turns: int) -> RolloutRequest:
        prompt = replace(make_prompt(task, answer=str(num_turns)), prompt_id=task)
        return RolloutRequest(
            request_id=f"{task}/0/0",
            group_id=task,
            prompt=prompt,
            policies=(PolicyNeed(policy=self.name, min_version=FIRST),),
            first_sample=0,
            num_samples=1,
            group_size=1,
            sampling=Sampling(max_new_tokens=2 * TURN_TOKENS),
            issued_at_s=float(self._num_asked),
        )


@contextmanager
def working_pool(
    bootstrap: str, name: str, directory: Path, num_workers: int, *, is_baseline: bool, slots: int
) -> Iterator[Pool]:
    """A pool whose workers all have a share of the partitions."""
    pool = Pool(bootstrap, name, directory, is_baseline=is_baseline, slots=slots)
    pool.announce("snapshot")
    for slot in range(num_workers):
        pool.start_worker(slot)
    for number in range(100):
        warm_up = {f"warm-up-{number}-{index}": 1 for index in range(64)}
        pool.ask(warm_up)
        pool.wait_for(list(warm_up), within_s=120.0)
        if all(diary.count("start").keys() & warm_up.keys() for diary in pool.diaries.values()):
            break
    yield pool
    pool.close()
