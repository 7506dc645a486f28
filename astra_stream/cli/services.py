"""The services, one command each: what compose and Kubernetes start, as ``astra run`` does."""

import asyncio
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from astra_stream.cli.options import Overrides, RunFile, StackDirectory

if TYPE_CHECKING:
    from astra_stream.cli.assembly import Parts

Slot = Annotated[
    int, Parameter(help="Number of this process among those of its kind, from 0; no two share one.")
]
Threads = Annotated[
    int | None, Parameter(help="Threads for tensors; absent takes every core it may use.")
]
WorkDirectory = Annotated[
    Path | None,
    Parameter(name="--work", help="Directory for weights on their way; absent is a temporary one."),
]

StateDirectory = Annotated[
    Path | None,
    Parameter(name="--work", help="Directory for files of the pipeline's state; absent is memory."),
]


def schedule(run_file: RunFile, *, overrides: Overrides = (), stack: StackDirectory = None) -> None:
    """Issue rollout requests as far as staleness allows, until the run is over."""
    from astra_stream.algorithms.scheduling import AdmissionRule
    from astra_stream.cli import assembly
    from astra_stream.processing.scheduler import Scheduler, SchedulerSettings

    with assembly.service_parts("scheduler", run_file, overrides, stack) as parts:
        config, topics = parts.config, parts.topics
        batch = config.policy.batch
        select = parts.plugins.selector()
        settings = SchedulerSettings(
            policy=config.policy_name,
            rule=AdmissionRule(
                groups_per_batch=batch.groups,
                max_staleness=config.policy.max_staleness,
                steps=config.steps,
            ),
            sampling=assembly.training_sampling(config),
            group_size=config.rollout.group_size,
            num_partitions=parts.log.num_partitions(topics.requests()),
            epochs=config.prompts.epochs,
            deadline_s=config.rollout.episode_timeout,
            max_drops=batch.max_drops * batch.groups,
            on_no_signal=batch.on_no_signal,
        )
        scheduler = Scheduler(
            settings,
            prompts=assembly.read_prompts(parts, "train"),
            select=lambda num_prompts, epoch: select(num_prompts, epoch, seed=config.seed),
            requests_topic=topics.requests(),
            outcomes_topic=topics.outcomes,
        )
        inputs = (topics.prompts, topics.outcomes)
        assembly.processor_service(parts, "scheduler", inputs=inputs).run(scheduler, parts.stop)


def rollout(
    run_file: RunFile,
    *,
    slot: Slot = 0,
    threads: Threads = None,
    work: WorkDirectory = None,
    overrides: Overrides = (),
    stack: StackDirectory = None,
) -> None:
    """Play requests with the newest weights, until the run is over."""
    from astra_stream.cli import assembly
    from astra_stream.rollout.service import RolloutWorker
    from astra_stream.rollout.settings import WorkerSettings
    from astra_stream.weights.follower import SnapshotFollower

    with (
        assembly.service_parts("rollout", run_file, overrides, stack) as parts,
        tempfile.TemporaryDirectory(prefix="astra-rollout-", dir=work) as directory,
    ):
        config, topics, policy = parts.config, parts.topics, parts.config.policy_name
        settings = WorkerSettings(
            policy=policy,
            requests_topic=topics.requests(),
            trajectories_topic=topics.trajectories(policy),
            evaluation_trajectories_topic=topics.evaluation_trajectories(policy),
            outcomes_topic=topics.outcomes,
            dead_letters_topic=topics.dead_letters,
            weights_topic=topics.weights(policy),
            closes_on_topic=topics.evaluations if config.evaluate else topics.weights(policy),
            group=topics.group("rollout", "main"),
            slot=slot,
            slots=1 if config.repeatable else config.rollout.engine.parameters.get("slots", 64),
            max_attempts=config.rollout.max_attempts,
            max_deliveries=config.rollout.max_deliveries,
            gather_s=0.0 if config.repeatable else WorkerSettings.gather_s,
            grace_s=config.rollout.grace,
        )
        worker = RolloutWorker(
            log=parts.log,
            codec=parts.codec,
            follower=SnapshotFollower(parts.open_store(), Path(directory), policy),
            make_player=assembly.make_player(parts, slot, threads or num_cores()),
            settings=settings,
            stop=parts.stop,
        )
        asyncio.run(worker.run())


def process(
    run_file: RunFile,
    part: Annotated[Literal["pipeline", "assembler"], Parameter(help="Which of the two.")],
    *,
    slot: Slot = 0,
    work: StateDirectory = None,
    overrides: Overrides = (),
    stack: StackDirectory = None,
) -> None:
    """Turn trajectories into groups, or groups into batches, until the run is over."""
    from astra_stream.cli import assembly

    with assembly.service_parts(part, run_file, overrides, stack) as parts:
        if part == "pipeline":
            _pipeline(parts, slot, work)
        else:
            _assembler(parts)


def train(
    run_file: RunFile,
    *,
    threads: Threads = None,
    work: WorkDirectory = None,
    overrides: Overrides = (),
    stack: StackDirectory = None,
) -> None:
    """Train on batches and publish versions, until the run is over."""
    from astra_stream.cli import assembly
    from astra_stream.training.checkpoints import CheckpointStore
    from astra_stream.training.service import Trainer, TrainerSettings
    from astra_stream.weights.publisher import SnapshotPublisher

    with (
        assembly.service_parts("trainer", run_file, overrides, stack) as parts,
        tempfile.TemporaryDirectory(prefix="astra-train-", dir=work) as directory,
    ):
        policy, topics = parts.config.policy_name, parts.topics
        store = parts.open_store()
        settings = TrainerSettings(
            policy=policy,
            batches_topic=topics.batches(policy),
            weights_topic=topics.weights(policy),
            outcomes_topic=topics.outcomes,
            metrics_topic=topics.metrics,
            group=topics.group("trainer", policy),
            max_staleness=parts.config.policy.max_staleness,
            checkpoint_every=parts.config.policy.checkpoint.every,
        )
        trainer = Trainer(
            log=parts.log,
            codec=parts.codec,
            backend=assembly.make_backend(parts.config, parts.plugins, threads or num_cores()),
            publisher=SnapshotPublisher(
                store, policy=policy, files=assembly.model_files(parts.config.policy.model)
            ),
            checkpoints=CheckpointStore(store, policy=policy, directory=Path(directory)),
            settings=settings,
            clock=parts.clock,
            stop=parts.stop,
        )
        trainer.run()


def evaluate(run_file: RunFile, *, overrides: Overrides = (), stack: StackDirectory = None) -> None:
    """Score versions on held-out prompts, until the run is over."""
    from astra_stream.cli import assembly
    from astra_stream.evaluation.evaluator import Evaluator, EvaluatorSettings

    with assembly.service_parts("evaluator", run_file, overrides, stack) as parts:
        config, topics, policy = parts.config, parts.topics, parts.config.policy_name
        table = assembly.evaluation_table(config)
        settings = EvaluatorSettings(
            policy=policy,
            every=table.every,
            num_samples=table.samples,
            sampling=assembly.evaluation_sampling(config),
            num_partitions=parts.log.num_partitions(topics.requests()),
            deadline_s=config.rollout.episode_timeout,
            max_prompts=table.prompts,
        )
        evaluator = Evaluator(
            settings,
            read_prompts=lambda: assembly.read_prompts(parts, "held_out"),
            requests_topic=topics.requests(),
            evaluations_topic=topics.evaluations,
        )
        inputs = (
            topics.weights(policy),
            topics.evaluation_trajectories(policy),
            topics.outcomes,
        )
        assembly.processor_service(parts, "evaluator", inputs=inputs).run(evaluator, parts.stop)


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _pipeline(parts: "Parts", slot: int, state_directory: Path | None) -> None:
    from astra_stream.cli import assembly
    from astra_stream.processing.pipeline import Pipeline

    topics, policy = parts.topics, parts.config.policy_name
    service = assembly.processor_service(
        parts,
        "pipeline",
        inputs=(topics.trajectories(policy),),
        is_singleton=False,
        slot=slot,
        closes_on_topic=topics.weights(policy),
        state_directory=state_directory,
    )
    pipeline = Pipeline(
        assembly.stages(parts),
        policy=policy,
        groups_topic=topics.groups(policy),
        outcomes_topic=topics.outcomes,
        letters=service.letters,
        codec=parts.codec,
        max_message_bytes=min(
            parts.log.max_message_bytes(topic)
            for topic in (topics.groups(policy), service.changelog_topic)
        ),
    )
    service.run(pipeline, parts.stop)


def _assembler(parts: "Parts") -> None:
    from astra_stream.cli import assembly
    from astra_stream.processing.assembler import Assembler, AssemblerSettings

    config, topics, policy = parts.config, parts.topics, parts.config.policy_name
    batch = config.policy.batch
    settings = AssemblerSettings(
        policy=policy,
        groups_per_batch=batch.groups,
        max_staleness=config.policy.max_staleness,
        row_tokens=batch.row_tokens,
        order=batch.order,
        on_slow=batch.on_slow,
        last_batch=batch.last,
        max_drops=batch.max_drops * batch.groups,
        on_no_signal=batch.on_no_signal,
    )
    assembler = Assembler(
        settings,
        advantage=parts.plugins.advantage(),
        codec=parts.codec,
        requests_topic=topics.requests(),
        batches_topic=topics.batches(policy),
        outcomes_topic=topics.outcomes,
    )
    inputs = (topics.requests(), topics.groups(policy), topics.outcomes)
    assembly.processor_service(parts, "assembler", inputs=inputs).run(assembler, parts.stop)
