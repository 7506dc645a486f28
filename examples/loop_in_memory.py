"""The whole loop in one process and one file: no broker, no object store, no run file.

    python examples/loop_in_memory.py [--steps 20]

Five services run as threads. They call nothing of one another: all that they share is a log and a
store, here both in memory. They are the classes that ``astra run`` starts as processes over Kafka
and S3, and what follows is all that it takes to build them.

    prompts -> scheduler -> requests -> rollout worker -> trajectories -> pipeline -> groups
      -> assembler -> batches -> trainer -> weights -> rollout worker
"""

import argparse
import asyncio
import functools
import random
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from astra_stream.algorithms.advantage import group_relative
from astra_stream.algorithms.losses import grpo
from astra_stream.algorithms.scheduling import AdmissionRule, shuffled
from astra_stream.algorithms.selection import drop_uniform_groups
from astra_stream.clock import SystemClock
from astra_stream.declarations import declared
from astra_stream.engines.chat import ChatTokenizer
from astra_stream.engines.transformers_engine import TransformersEngine
from astra_stream.environments.verifiable import Verifiable
from astra_stream.log.codec import Codec
from astra_stream.log.memory import MemoryLog
from astra_stream.log.names import TopicNames
from astra_stream.processing.assembler import Assembler, AssemblerSettings
from astra_stream.processing.pipeline import DeadLetters, Pipeline, Stage
from astra_stream.processing.scheduler import Scheduler, SchedulerSettings
from astra_stream.processing.service import ProcessorService
from astra_stream.records import ChatMessage, Prompt, Sampling, WeightAnnouncement
from astra_stream.rollout.episode import Player
from astra_stream.rollout.service import RolloutWorker
from astra_stream.rollout.settings import WorkerSettings
from astra_stream.store.memory import MemoryStore
from astra_stream.training.checkpoints import CheckpointStore
from astra_stream.training.service import Trainer, TrainerSettings
from astra_stream.training.torch_backend import TorchBackend
from astra_stream.weights.follower import SnapshotFollower
from astra_stream.weights.publisher import SnapshotPublisher

MODEL = Path(__file__).parent / "arithmetic" / "model"
POLICY = "main"
TOPICS = TopicNames("loop")
PARTITIONS = 4
MODEL_FILES = {".json", ".jinja"}


@dataclass(frozen=True, kw_only=True)
class Loop:
    """What is trained how, and what the services share."""

    steps: int = 20
    groups_per_batch: int = 16
    group_size: int = 8
    max_staleness: int = 1
    max_new_tokens: int = 6
    row_tokens: int = 256
    lr: float = 1e-4
    seed: int = 0
    log: MemoryLog
    store: MemoryStore
    codec: Codec
    directory: Path
    """For files on their way to and from the store."""
    stop: threading.Event

    @property
    def rule(self) -> AdmissionRule:
        return AdmissionRule(
            groups_per_batch=self.groups_per_batch,
            max_staleness=self.max_staleness,
            steps=self.steps,
        )

    @property
    def max_drops(self) -> int:
        return 10 * self.groups_per_batch


def make_log() -> MemoryLog:
    """Every topic with its partitions, a changelog for each processor included."""
    several = [TOPICS.prompts, TOPICS.requests(), TOPICS.trajectories(POLICY)]
    several += [TOPICS.groups(POLICY), TOPICS.outcomes]
    single = [TOPICS.batches(POLICY), TOPICS.weights(POLICY), TOPICS.metrics, TOPICS.dead_letters]
    single += [changelog(role) for role in ("scheduler", "assembler")]
    several += [changelog("pipeline"), TOPICS.evaluation_trajectories(POLICY)]
    return MemoryLog(dict.fromkeys(several, PARTITIONS) | dict.fromkeys(single, 1))


def changelog(role: str) -> str:
    return TOPICS.changelog(TOPICS.group(role), "state")


def make_prompts(count: int, *, seed: int = 0) -> list[Prompt]:
    """Sums of two numbers of two digits, each with its answer."""
    rng = random.Random(seed)
    sums = [(rng.randint(10, 99), rng.randint(10, 99)) for _ in range(count)]
    return [
        Prompt(
            prompt_id=f"sums/{index}",
            split="train",
            messages=(ChatMessage(role="user", content=f"{a} + {b}="),),
            environment="verifiable",
            answer=str(a + b),
            dataset="sums",
        )
        for index, (a, b) in enumerate(sums)
    ]


def schedule(loop: Loop, prompts: list[Prompt]) -> None:
    """Prompts and outcomes in, requests out: as many as staleness allows."""
    settings = SchedulerSettings(
        policy=POLICY,
        rule=loop.rule,
        sampling=Sampling(max_new_tokens=loop.max_new_tokens, seed=loop.seed),
        group_size=loop.group_size,
        num_partitions=PARTITIONS,
        max_drops=loop.max_drops,
    )
    scheduler = Scheduler(
        settings,
        prompts=prompts,
        select=functools.partial(shuffled, seed=loop.seed),
        requests_topic=TOPICS.requests(),
        outcomes_topic=TOPICS.outcomes,
    )
    service = processor(loop, "scheduler", inputs=(TOPICS.prompts, TOPICS.outcomes))
    service.run(scheduler, loop.stop)


def roll_out(loop: Loop) -> None:
    """Requests and weights in, trajectories out."""

    def make_player(directory: Path, announcement: WeightAnnouncement) -> Player:
        return Player(
            engine=TransformersEngine(directory, slots=64),
            chat=ChatTokenizer(directory),
            make_environment=Verifiable,
            policy=POLICY,
            clock=SystemClock(),
            worker="worker",
            model_fingerprint=announcement.model_fingerprint,
        )

    settings = WorkerSettings(
        policy=POLICY,
        requests_topic=TOPICS.requests(),
        trajectories_topic=TOPICS.trajectories(POLICY),
        evaluation_trajectories_topic=TOPICS.evaluation_trajectories(POLICY),
        outcomes_topic=TOPICS.outcomes,
        dead_letters_topic=TOPICS.dead_letters,
        weights_topic=TOPICS.weights(POLICY),
        closes_on_topic=TOPICS.weights(POLICY),
        group=TOPICS.group("rollout"),
    )
    worker = RolloutWorker(
        log=loop.log,
        codec=loop.codec,
        follower=SnapshotFollower(loop.store, loop.directory / "rollout", POLICY),
        make_player=make_player,
        settings=settings,
        stop=loop.stop,
    )
    asyncio.run(worker.run())


def process(loop: Loop) -> None:
    """Trajectories in, groups out: those whose samples differ in reward."""
    pipeline = Pipeline(
        [Stage(name="drop_uniform", function=drop_uniform_groups)],
        policy=POLICY,
        groups_topic=TOPICS.groups(POLICY),
        outcomes_topic=TOPICS.outcomes,
        letters=DeadLetters(TOPICS.dead_letters, "pipeline"),
        codec=loop.codec,
    )
    processor(loop, "pipeline", inputs=(TOPICS.trajectories(POLICY),)).run(pipeline, loop.stop)


def assemble(loop: Loop) -> None:
    """Groups in, batches out: those that are the oldest, with their advantages."""
    settings = AssemblerSettings(
        policy=POLICY,
        groups_per_batch=loop.groups_per_batch,
        max_staleness=loop.max_staleness,
        row_tokens=loop.row_tokens,
        max_drops=loop.max_drops,
    )
    assembler = Assembler(
        settings,
        advantage=group_relative,
        codec=loop.codec,
        requests_topic=TOPICS.requests(),
        batches_topic=TOPICS.batches(POLICY),
        outcomes_topic=TOPICS.outcomes,
    )
    inputs = (TOPICS.requests(), TOPICS.groups(POLICY), TOPICS.outcomes)
    processor(loop, "assembler", inputs=inputs).run(assembler, loop.stop)


def processor(loop: Loop, role: str, *, inputs: tuple[str, ...]) -> ProcessorService:
    """The loop of a processor; the pipeline could be several, the others are alone."""
    is_pipeline = role == "pipeline"
    return ProcessorService(
        log=loop.log,
        codec=loop.codec,
        clock=SystemClock(),
        group=TOPICS.group(role),
        inputs=inputs,
        changelog_topic=changelog(role),
        letters=DeadLetters(TOPICS.dead_letters, role),
        is_singleton=not is_pipeline,
        closes_on_topic=TOPICS.weights(POLICY) if is_pipeline else "",
    )


def train(loop: Loop, model: Path) -> None:
    """Batches in, weights out: uploaded to the store, announced in the log."""
    settings = TrainerSettings(
        policy=POLICY,
        batches_topic=TOPICS.batches(POLICY),
        weights_topic=TOPICS.weights(POLICY),
        outcomes_topic=TOPICS.outcomes,
        metrics_topic=TOPICS.metrics,
        group=TOPICS.group("trainer"),
        max_staleness=loop.max_staleness,
    )
    files = {p.name: p.read_bytes() for p in model.iterdir() if p.suffix in MODEL_FILES}
    trainer = Trainer(
        log=loop.log,
        codec=loop.codec,
        backend=TorchBackend(model, loss=functools.partial(grpo), lr=loop.lr, seed=loop.seed),
        publisher=SnapshotPublisher(loop.store, policy=POLICY, files=files),
        checkpoints=CheckpointStore(loop.store, policy=POLICY, directory=loop.directory / "train"),
        settings=settings,
        clock=SystemClock(),
        stop=loop.stop,
    )
    trainer.run()


def run(loop: Loop, *, model: Path = MODEL, say: Callable[[str], None] = print) -> None:
    """Load the prompts, start the services, follow the weights, wait for all to end.

    A service that fails stops the others, and its error is raised here.
    """
    prompts = make_prompts(1000, seed=loop.seed)
    with loop.log.writer("prompts").transaction() as txn:
        for prompt in prompts:
            txn.write(TOPICS.prompts, prompt.prompt_id.encode(), loop.codec.encode(prompt))
    services: tuple[Callable[[], None], ...] = (
        functools.partial(schedule, loop, prompts),
        functools.partial(roll_out, loop),
        functools.partial(process, loop),
        functools.partial(assemble, loop),
        functools.partial(train, loop, model),
    )

    def ended(service: Future[None]) -> None:
        if service.exception() is not None:
            loop.stop.set()

    with ThreadPoolExecutor(len(services)) as threads:
        running = [threads.submit(service) for service in services]
        for one in running:
            one.add_done_callback(ended)
        follow(loop, say)
        for one in running:
            one.result()


def follow(loop: Loop, say: Callable[[str], None]) -> None:
    """Say what each version was trained on, until the final one: anyone may read the log."""
    news = loop.log.assign([TOPICS.weights(POLICY)])
    while not loop.stop.is_set():
        for message in news.poll(0.5):
            announcement = loop.codec.decode(message.value or b"")
            if announcement.kind == "final":
                return
            reward = announcement.train_metrics.get("reward_mean")
            if reward is not None:
                say(f"{announcement.version}: reward of the samples it was trained on {reward:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        loop = Loop(
            steps=options.steps,
            seed=options.seed,
            log=make_log(),
            store=MemoryStore(),
            codec=Codec(declared("schemas")),
            directory=Path(directory),
            stop=threading.Event(),
        )
        run(loop)


if __name__ == "__main__":
    main()
