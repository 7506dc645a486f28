"""How much of two workers' tasks is played again when one of them ends without a word."""

import heapq
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest

from astra_stream.log.interface import Committed
from astra_stream.log.memory import MemoryLog
from astra_stream.rollout.requests import Delivery, Finished, HeldRequests

TOPIC = "requests"
NUM_TASKS, NUM_PARTITIONS, SLOTS = 400, 32, 16
GATHERED = 4
"""Tasks that are finished before their ends are written."""


def durations() -> list[int]:
    """Ticks that each task takes: one in twenty twenty times as long."""
    rng = np.random.default_rng(0)
    ticks = rng.integers(1, 6, NUM_TASKS)
    ticks[rng.choice(NUM_TASKS, NUM_TASKS // 20, replace=False)] = 60
    return ticks.tolist()


@dataclass
class Worker:
    """Plays in ticks what the log hands it."""

    log: MemoryLog
    name: str
    commits_metadata: bool = True
    waiting: list[Delivery] = field(default_factory=list)
    playing: list[tuple[int, int, Delivery]] = field(default_factory=list)
    ended: list[Delivery] = field(default_factory=list)
    plays: Counter[int] = field(default_factory=Counter)
    finished: set[int] = field(default_factory=set)
    """Tasks whose end is in the log."""

    def __post_init__(self) -> None:
        self.held = HeldRequests()
        self.reader = self.log.subscribe(
            [TOPIC],
            group="g",
            on_assigned=lambda gained: self.held.gained(self.reader, gained),
            on_revoked=self.held.lost,
        )
        self.writer = self.log.writer(self.name)

    def turn(self, tick: int, ticks_of: list[int]) -> None:
        messages = self.reader.poll(0.0)
        self.waiting += [one for one in map(self.held.accept, messages) if one is not None]
        while self.playing and self.playing[0][0] <= tick:
            self.ended.append(heapq.heappop(self.playing)[2])
        if len(self.ended) >= GATHERED or not self.playing:
            self.commit(self.ended)
            self.finished |= {task_of(one) for one in self.ended}
            self.ended.clear()
        beginning = self.waiting[: SLOTS - len(self.playing)]
        del self.waiting[: len(beginning)]
        self.held.started(beginning, at_s=float(tick))
        self.commit(beginning)
        for one in beginning:
            task = task_of(one)
            self.plays[task] += 1
            heapq.heappush(self.playing, (tick + ticks_of[task], task, one))

    def commit(self, touched: list[Delivery]) -> None:
        if touched is self.ended:
            self.held.finish([Finished(delivery=one, writes=()) for one in touched])
        positions = self.held.positions(touched)
        if not self.commits_metadata:
            positions = {p: Committed(found.offset) for p, found in positions.items()}
        if positions:
            with self.writer.transaction() as txn:
                txn.commit_offsets(self.reader, positions)


def task_of(delivery: Delivery) -> int:
    return int(delivery.message.value)


def kill_one_of_two(*, commits_metadata: bool = True) -> tuple[Worker, Worker]:
    """The dead one and the other, once the other has done all that was left."""
    log = MemoryLog({TOPIC: NUM_PARTITIONS})
    workers = [Worker(log, name, commits_metadata) for name in ("first", "second")]
    ticks_of = durations()
    for worker in workers:
        worker.turn(0, ticks_of)
    with log.writer("scheduler").transaction() as txn:
        for task in range(NUM_TASKS):
            txn.write(TOPIC, None, str(task).encode(), partition=task % NUM_PARTITIONS)
    dead, survivor = workers
    tick = 0
    while len(dead.finished | survivor.finished) < NUM_TASKS:
        tick += 1
        if len(dead.finished | survivor.finished) < NUM_TASKS // 2:
            dead.turn(tick, ticks_of)
        else:
            # What the broker does with a member that it no longer hears of.
            dead.reader.expire()
        survivor.turn(tick, ticks_of)
    return dead, survivor


def test_a_killed_worker_costs_at_most_what_it_had_in_flight_and_nothing_that_was_finished():
    dead, survivor = kill_one_of_two()
    in_flight = dead.plays.keys() - dead.finished
    again = dead.plays.keys() & survivor.plays.keys()
    assert 0 < len(again) <= len(in_flight) <= SLOTS + GATHERED
    assert not again & dead.finished
    assert dead.finished | survivor.finished == set(range(NUM_TASKS))
    assert {*dead.plays.values(), *survivor.plays.values()} == {1}


def test_without_what_the_commit_says_of_later_offsets_finished_work_is_repeated():
    dead, survivor = kill_one_of_two(commits_metadata=False)
    again = dead.plays.keys() & survivor.plays.keys()
    in_flight = dead.plays.keys() - dead.finished
    assert len(again) > 2 * len(in_flight)
    assert len(again & dead.finished) == pytest.approx(len(again) - len(in_flight), abs=1)
