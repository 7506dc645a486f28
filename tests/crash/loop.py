"""The whole loop in one process, whose services are started again when they die.

A service is a thread, and a life of it sees log and store through the crashing wrappers. Model,
engine and backend are small enough that a run takes a fraction of a second.
"""

import asyncio
import itertools
import json
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from astra_stream.algorithms.advantage import group_relative
from astra_stream.algorithms.packing import Batch
from astra_stream.algorithms.scheduling import AdmissionRule, shuffled
from astra_stream.algorithms.selection import drop_uniform_groups
from astra_stream.analysis.audit import AuditReport, audit
from astra_stream.analysis.ledger import read_ledger
from astra_stream.clock import SystemClock
from astra_stream.declarations import declared
from astra_stream.engines.scripted import ScriptedEngine
from astra_stream.environments.verifiable import Verifiable
from astra_stream.evaluation.evaluator import Evaluator, EvaluatorSettings
from astra_stream.log.codec import Codec
from astra_stream.log.interface import PartitionsChanged
from astra_stream.log.memory import MemoryLog
from astra_stream.log.names import TopicNames
from astra_stream.log.processor import Processor
from astra_stream.processing.assembler import Assembler, AssemblerSettings
from astra_stream.processing.pipeline import DeadLetters, Pipeline, Stage
from astra_stream.processing.scheduler import Scheduler, SchedulerSettings
from astra_stream.processing.service import ProcessorService
from astra_stream.records import ChatMessage, Prompt, Sampling
from astra_stream.rollout.episode import Player
from astra_stream.rollout.service import RolloutWorker
from astra_stream.rollout.settings import WorkerSettings
from astra_stream.store.blobs import Store
from astra_stream.store.memory import MemoryStore
from astra_stream.testing.crashes import (
    CrashError,
    CrashingLog,
    CrashingReader,
    CrashingStore,
    Life,
)
from astra_stream.training.checkpoints import CheckpointStore, checkpoint_objects
from astra_stream.training.interface import ExportedWeights
from astra_stream.training.retraining import train_again
from astra_stream.training.service import Trainer, TrainerSettings
from astra_stream.weights.follower import SnapshotFollower
from astra_stream.weights.publisher import SnapshotPublisher

CODEC = Codec(declared("schemas"))
TOPICS = TopicNames("crash")
POLICY = "main"
PARTITIONS = 2
GROUP_SIZE = 2
GROUPS_PER_BATCH = 2
MAX_STALENESS = 1
EVALUATE_EVERY = 2
CHECKPOINT_EVERY = 2
STEPS = 4
NUM_PROMPTS = 12
"""Every fourth of which has no signal: four batches, and one group that is left over."""
NUM_HELD_OUT = 2
WAIT_S = 15.0
SAMPLING = Sampling(max_new_tokens=4)
END = 0
"""Token that ends a reply."""
CLOCK = SystemClock()

Fuse = Mapping[str, int]
"""Crash points of one life, and the passage at which each of them kills."""


class CharacterChat:
    """Each character is a token."""

    fingerprint = "characters"
    eos_ids = (END,)

    def opening(self, messages: Sequence[ChatMessage]) -> np.ndarray:
        return tokens_of("".join(message.content for message in messages))

    def continuation(
        self, messages: Sequence[ChatMessage], *, reply: str, terminated: bool
    ) -> np.ndarray:
        return self.opening(messages)

    def decode(self, tokens: np.ndarray) -> str:
        return "".join(chr(token) for token in tokens if token != END)


def tokens_of(text: str) -> np.ndarray:
    return np.array([ord(character) for character in text], dtype=np.int32)


def reply(tokens: np.ndarray, stream: int) -> list[int]:
    """Sample 0 adds as it should and the others do not, unless the sum says that nobody does."""
    left, right = CharacterChat().decode(tokens).removesuffix("=").split("+")
    is_right = stream == 0 and int(left) % 4
    return [*tokens_of(str(int(left) + int(right) if is_right else -1)).tolist(), END]


class CountingBackend:
    """Weights that depend on every batch, its order and its advantages; no gradient, no torch."""

    def __init__(self) -> None:
        self._weights = np.zeros(8)
        self._momentum = np.zeros(8)

    def step(self, batch: Batch) -> dict[str, float]:
        seed = [
            zlib.crc32(np.ascontiguousarray(array).tobytes())
            for array in (batch.tokens, batch.versions, batch.sample_columns["advantages"])
        ]
        self._momentum = 0.9 * self._momentum + np.random.default_rng(seed).normal(size=8)
        self._weights += self._momentum
        return {"loss": float(self._weights.sum())}

    def export(self) -> ExportedWeights:
        """Rounded, so that a checkpoint has to hold more than what is published."""
        return ExportedWeights(tensors={"w": self._weights.astype("<f4")}, dtypes={"w": "F32"})

    def save(self, directory: Path) -> None:
        state = {"weights": self._weights.tolist(), "momentum": self._momentum.tolist()}
        (directory / "state.json").write_text(json.dumps(state))

    def restore(self, directory: Path) -> None:
        state = json.loads((directory / "state.json").read_text())
        self._weights, self._momentum = np.array(state["weights"]), np.array(state["momentum"])


def make_prompts() -> list[Prompt]:
    splits = ["train"] * NUM_PROMPTS + ["held_out"] * NUM_HELD_OUT
    return [
        Prompt(
            prompt_id=f"sums/{index}",
            split=split,
            messages=(ChatMessage(role="user", content=f"{index}+1="),),
            environment="verifiable",
            answer=str(index + 1),
            dataset="sums",
        )
        for index, split in enumerate(splits)
    ]


def make_log() -> MemoryLog:
    several = [TOPICS.prompts, TOPICS.requests(), TOPICS.trajectories(POLICY)]
    several += [TOPICS.groups(POLICY), TOPICS.outcomes, changelog("pipeline")]
    single = [TOPICS.evaluation_trajectories(POLICY), TOPICS.batches(POLICY), TOPICS.evaluations]
    single += [TOPICS.weights(POLICY), TOPICS.metrics, TOPICS.dead_letters]
    single += [changelog(role) for role in ("scheduler", "assembler", "evaluator")]
    log = MemoryLog(dict.fromkeys(several, PARTITIONS) | dict.fromkeys(single, 1))
    with log.writer("prompts").transaction() as txn:
        for prompt in make_prompts():
            txn.write(TOPICS.prompts, prompt.prompt_id.encode(), CODEC.encode(prompt))
    return log


def changelog(role: str) -> str:
    return TOPICS.changelog(TOPICS.group(role), "state")


class SuccessorLog(CrashingLog):
    """The log of a life whose dead predecessors are still members of its group.

    They hold their partitions when it joins, and are expired once it has: as with a broker, which
    waits for their session to time out.
    """

    def __init__(self, log: MemoryLog, life: Life, *, dead: "SuccessorLog | None") -> None:
        super().__init__(log, life)
        self._dead = dead

    def subscribe(
        self,
        topics: Sequence[str],
        *,
        group: str,
        on_assigned: PartitionsChanged | None = None,
        on_revoked: PartitionsChanged | None = None,
    ) -> CrashingReader:
        reader = super().subscribe(
            topics, group=group, on_assigned=on_assigned, on_revoked=on_revoked
        )
        self.bury()
        return reader

    def bury(self) -> None:
        """Expire the members of every dead predecessor."""
        if self._dead is not None:
            self._dead.bury()
            for member in self._dead.members:
                member.expire()
            self._dead = None


@dataclass
class Loop:
    """A run on a log and a store in memory."""

    directory: Path
    max_messages: int = 1
    """Most records in a transaction of a processor; with one, all runs pass the same points."""
    log: MemoryLog = field(default_factory=make_log)
    store: Store = field(default_factory=MemoryStore)
    stop: threading.Event = field(default_factory=threading.Event)
    lives: dict[str, list[Life]] = field(default_factory=dict)
    """Of each role, in order."""

    def run(self, fuses: Mapping[str, Sequence[Fuse]] | None = None) -> None:
        """Start every role, and start it again as often as it dies; return once all have ended.

        Args:
            fuses: Role to the fuse of each of its lives; further lives have none.
        """
        with ThreadPoolExecutor(len(ROLES)) as threads:
            ends = {
                role: threads.submit(self._keep_up, role, (fuses or {}).get(role, ()))
                for role in ROLES
            }
            _, late = wait(ends.values(), WAIT_S, return_when=FIRST_EXCEPTION)
            self.stop.set()
        for end in ends.values():
            end.result()
        assert not late, f"every role must end within {WAIT_S} s: got {self.standing(late, ends)}"

    def standing(self, late: Collection[Future[None]], ends: Mapping[str, Future[None]]) -> Any:
        """Where the roles stand that have not ended."""
        return {role: self.lives[role][-1].passed for role, end in ends.items() if end in late}

    def _keep_up(self, role: str, fuses: Sequence[Fuse]) -> None:
        lives = self.lives.setdefault(role, [])
        dead: SuccessorLog | None = None
        for fuse in itertools.chain(fuses, itertools.repeat({})):
            life = Life(fuse)
            lives.append(life)
            log = SuccessorLog(self.log, life, dead=dead)
            try:
                ROLES[role](self, log, CrashingStore(self.store, life))
            except CrashError:
                dead = log
            else:
                return

    # -- what came of it -------------------------------------------------------------------------

    def passed(self, role: str) -> Counter[str]:
        """How often a role passed each point, in all of its lives."""
        return sum((life.passed for life in self.lives[role]), Counter())

    def deaths(self, role: str) -> list[str]:
        return [life.died_at for life in self.lives[role] if life.died_at]

    def records(self, topic: str) -> list[Any]:
        return [CODEC.decode(message.value or b"") for message in self.log.records(topic)]

    def audit(self) -> AuditReport:
        """What ``astra audit --retrain`` finds."""
        ledger = read_ledger(
            self.log,
            CODEC,
            topics=TOPICS,
            policy=POLICY,
            max_staleness=MAX_STALENESS,
            clock=CLOCK,
        )
        ledger.retrained = dict(
            train_again(
                self.log,
                CODEC,
                CountingBackend(),
                batches_topic=TOPICS.batches(POLICY),
                clock=CLOCK,
            )
        )
        ledger.present = {found.key: found.size_bytes for found in self.store.list("")}
        for key in {one.record.checkpoint for one in ledger.announced} - {""}:
            ledger.checkpoints[key] = checkpoint_objects(self.store, key)
        return audit(ledger)


# -- the services: each is built as ``astra run`` builds it ------------------------------------


def run_processor(
    loop: Loop, log: CrashingLog, role: str, processor: Processor, *inputs: str, **differs: Any
) -> None:
    values: dict[str, Any] = {"is_singleton": True, **differs}
    service = ProcessorService(
        log=log,
        codec=CODEC,
        clock=CLOCK,
        group=TOPICS.group(role),
        inputs=inputs,
        changelog_topic=changelog(role),
        letters=DeadLetters(TOPICS.dead_letters, role),
        max_messages=loop.max_messages,
        **values,
    )
    service.run(processor, loop.stop)


def schedule(loop: Loop, log: CrashingLog, _store: Store) -> None:
    settings = SchedulerSettings(
        policy=POLICY,
        rule=AdmissionRule(
            groups_per_batch=GROUPS_PER_BATCH, max_staleness=MAX_STALENESS, steps=100
        ),
        sampling=SAMPLING,
        group_size=GROUP_SIZE,
        num_partitions=PARTITIONS,
        epochs=1,
        max_drops=100,
    )
    scheduler = Scheduler(
        settings,
        prompts=[prompt for prompt in make_prompts() if prompt.split == "train"],
        select=shuffled,
        requests_topic=TOPICS.requests(),
        outcomes_topic=TOPICS.outcomes,
    )
    run_processor(loop, log, "scheduler", scheduler, TOPICS.prompts, TOPICS.outcomes)


def roll_out(loop: Loop, log: CrashingLog, store: Store) -> None:
    def make_player(*_: object) -> Player:
        return Player(
            engine=ScriptedEngine(reply, terminators=(END,)),
            chat=CharacterChat(),
            make_environment=Verifiable,
            policy=POLICY,
            clock=CLOCK,
            worker="worker",
        )

    settings = WorkerSettings(
        policy=POLICY,
        requests_topic=TOPICS.requests(),
        trajectories_topic=TOPICS.trajectories(POLICY),
        evaluation_trajectories_topic=TOPICS.evaluation_trajectories(POLICY),
        outcomes_topic=TOPICS.outcomes,
        dead_letters_topic=TOPICS.dead_letters,
        weights_topic=TOPICS.weights(POLICY),
        closes_on_topic=TOPICS.evaluations,
        group=TOPICS.group("rollout", "main"),
        slots=8,
        # The points kill whoever plays a request, which looks as if the request did.
        max_deliveries=100,
        gather_s=0.01,
    )
    worker = RolloutWorker(
        log=log,
        codec=CODEC,
        follower=SnapshotFollower(store, loop.directory / "rollout", POLICY),
        make_player=make_player,
        settings=settings,
        stop=loop.stop,
    )
    asyncio.run(worker.run())


def process(loop: Loop, log: CrashingLog, _store: Store) -> None:
    pipeline = Pipeline(
        [Stage(name="drop_uniform", function=drop_uniform_groups)],
        policy=POLICY,
        groups_topic=TOPICS.groups(POLICY),
        outcomes_topic=TOPICS.outcomes,
        letters=DeadLetters(TOPICS.dead_letters, "pipeline"),
        codec=CODEC,
    )
    run_processor(
        loop,
        log,
        "pipeline",
        pipeline,
        TOPICS.trajectories(POLICY),
        is_singleton=False,
        closes_on_topic=TOPICS.weights(POLICY),
        state_directory=loop.directory / "state",
    )


def assemble(loop: Loop, log: CrashingLog, _store: Store) -> None:
    settings = AssemblerSettings(
        policy=POLICY,
        groups_per_batch=GROUPS_PER_BATCH,
        max_staleness=MAX_STALENESS,
        row_tokens=32,
        max_drops=100,
        last_batch="drop",
    )
    assembler = Assembler(
        settings,
        advantage=group_relative,
        codec=CODEC,
        requests_topic=TOPICS.requests(),
        batches_topic=TOPICS.batches(POLICY),
        outcomes_topic=TOPICS.outcomes,
    )
    inputs = (TOPICS.requests(), TOPICS.groups(POLICY), TOPICS.outcomes)
    run_processor(loop, log, "assembler", assembler, *inputs)


def train(loop: Loop, log: CrashingLog, store: Store) -> None:
    trainer = Trainer(
        log=log,
        codec=CODEC,
        backend=CountingBackend(),
        publisher=SnapshotPublisher(store, policy=POLICY, files={"config.json": b"{}"}),
        checkpoints=CheckpointStore(store, policy=POLICY, directory=loop.directory / "train"),
        settings=TrainerSettings(
            policy=POLICY,
            batches_topic=TOPICS.batches(POLICY),
            weights_topic=TOPICS.weights(POLICY),
            outcomes_topic=TOPICS.outcomes,
            metrics_topic=TOPICS.metrics,
            group=TOPICS.group("trainer", POLICY),
            max_staleness=MAX_STALENESS,
            checkpoint_every=CHECKPOINT_EVERY,
        ),
        clock=CLOCK,
        stop=loop.stop,
    )
    trainer.run()


def evaluate(loop: Loop, log: CrashingLog, _store: Store) -> None:
    settings = EvaluatorSettings(
        policy=POLICY,
        every=EVALUATE_EVERY,
        num_samples=GROUP_SIZE,
        sampling=SAMPLING,
        num_partitions=PARTITIONS,
    )
    held_out = [prompt for prompt in make_prompts() if prompt.split == "held_out"]
    evaluator = Evaluator(
        settings,
        read_prompts=lambda: held_out,
        requests_topic=TOPICS.requests(),
        evaluations_topic=TOPICS.evaluations,
    )
    inputs = (TOPICS.weights(POLICY), TOPICS.evaluation_trajectories(POLICY), TOPICS.outcomes)
    run_processor(loop, log, "evaluator", evaluator, *inputs)


ROLES: dict[str, Callable[[Loop, CrashingLog, Store], None]] = {
    "scheduler": schedule,
    "rollout": roll_out,
    "pipeline": process,
    "assembler": assemble,
    "trainer": train,
    "evaluator": evaluate,
}
