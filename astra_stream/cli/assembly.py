"""From a run file to the parts of a service, built and joined; the services know no run file."""

import functools
import json
import logging
import socket
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astra_stream.cli.binding import RunPlugins
from astra_stream.cli.signals import stop_on_signal
from astra_stream.clock import Clock, FixedClock, SystemClock
from astra_stream.config import EvaluateConfig, RunConfig, load_run, resolved
from astra_stream.declarations import declared
from astra_stream.errors import ConfigError, RecordError
from astra_stream.log.codec import Codec
from astra_stream.log.names import TopicNames
from astra_stream.telemetry import set_up_logging

if TYPE_CHECKING:
    from astra_stream.log.interface import Log
    from astra_stream.processing.pipeline import DeadLetters, Stage
    from astra_stream.processing.service import ProcessorService
    from astra_stream.records import Prompt, Sampling, WeightAnnouncement
    from astra_stream.rollout.episode import Player
    from astra_stream.store.blobs import Store
    from astra_stream.training.torch_backend import TorchBackend

logger = logging.getLogger(__name__)

TOKENIZER_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)
"""Files of a model directory, beside its weights, that make a snapshot one that loads."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What every service is built from."""

    config: RunConfig
    plugins: RunPlugins
    topics: TopicNames
    log: "Log"
    codec: Codec
    clock: Clock
    stop: threading.Event
    """Set by the first SIGTERM or SIGINT."""
    open_store: Callable[[], "Store"]

    @property
    def max_messages(self) -> int:
        """Most records in one transaction; one alone repeats whatever the timing."""
        return 1 if self.config.repeatable else 500


@contextmanager
def service_parts(
    service: str, run_file: Path, overrides: tuple[str, ...], stack: Path | None
) -> Generator[Parts]:
    """Read the run file, log what it resolves to, connect, and close the log at the end.

    The first SIGTERM or SIGINT sets ``stop``; the second ends the process at once.
    """
    from astra_stream.cli.connect import find_stack, open_log, open_store

    config = load_run(run_file, overrides)
    set_up_logging(service)
    logger.info("started", extra={"configuration": json.dumps(resolved(config))})
    found = find_stack(stack)
    log = open_log(config, found)
    try:
        yield Parts(
            config=config,
            plugins=RunPlugins(config, run_file.name),
            topics=TopicNames(config.run),
            log=log,
            codec=Codec(declared("schemas")),
            clock=FixedClock() if config.repeatable else SystemClock(),
            stop=stop_on_signal(),
            open_store=functools.partial(open_store, config, found),
        )
    finally:
        log.close()


def training_sampling(config: RunConfig) -> "Sampling":
    """How training samples are drawn."""
    from astra_stream.records import Sampling

    return Sampling(seed=config.seed, **config.rollout.sampling.model_dump())


def evaluation_table(config: RunConfig) -> EvaluateConfig:
    """What the run file says of evaluation.

    Raises:
        ConfigError: It says nothing.
    """
    if config.evaluate is None:
        raise ConfigError("[evaluate] must be in the run file: got nothing. Add it.")
    return config.evaluate


def evaluation_sampling(config: RunConfig) -> "Sampling":
    """How evaluation samples are drawn."""
    from astra_stream.records import Sampling

    training = config.rollout.sampling
    return Sampling(
        temperature=evaluation_table(config).temperature,
        max_new_tokens=training.max_new_tokens,
        stop=training.stop,
        seed=config.seed,
    )


def letters(parts: Parts, service: str) -> "DeadLetters":
    """Where a service puts what it cannot process."""
    from astra_stream.processing.pipeline import DeadLetters

    return DeadLetters(parts.topics.dead_letters, service)


def processor_service(
    parts: Parts,
    role: str,
    *,
    inputs: tuple[str, ...],
    is_singleton: bool = True,
    slot: int = 0,
    closes_on_topic: str = "",
    state_directory: Path | None = None,
) -> "ProcessorService":
    """The loop for a processor of this run."""
    from astra_stream.processing.service import ProcessorService

    policy = "" if role == "scheduler" else parts.config.policy_name
    group = parts.topics.group(role, policy)
    return ProcessorService(
        log=parts.log,
        codec=parts.codec,
        clock=parts.clock,
        group=group,
        inputs=inputs,
        changelog_topic=parts.topics.changelog(group, "state"),
        letters=letters(parts, group),
        is_singleton=is_singleton,
        slot=slot,
        max_messages=parts.max_messages,
        closes_on_topic=closes_on_topic,
        state_directory=state_directory,
    )


def read_prompts(parts: Parts, split: str) -> list["Prompt"]:
    """Every prompt of a split that the log has now, in its order; a torn one is left out by name.

    It is the scheduler that makes a dead letter of a torn prompt, where it reads it as its input.
    """
    from astra_stream.log.reading import read_to_end
    from astra_stream.records import Prompt

    found = []
    for message in read_to_end(parts.log, parts.topics.prompts, clock=parts.clock):
        try:
            found.append(parts.codec.read(Prompt, message))
        except RecordError as error:
            logger.warning("prompt left out", extra={"reason": str(error)})
    return [prompt for prompt in found if prompt.split == split]


def stages(parts: Parts) -> list["Stage"]:
    """The pipeline's stages with their parameters bound."""
    import inspect

    from astra_stream.processing.pipeline import Stage

    found = []
    tables = parts.config.policy.pipeline
    for table, function in zip(tables, parts.plugins.stages(), strict=True):
        is_stepper = inspect.isclass(function.func)
        found.append(
            Stage(
                name=table.use,
                function=None if is_stepper else function,
                stepper=function() if is_stepper else None,
            )
        )
    return found


def worker_name(slot: int) -> str:
    """Name of a worker in trajectories."""
    return f"{socket.gethostname()}/{slot}"


def make_player(
    parts: Parts, slot: int, num_threads: int
) -> Callable[[Path, "WeightAnnouncement"], "Player"]:
    """How a worker gets its engine once it has a model directory."""
    config = parts.config
    rollout = config.rollout
    engine, environment = parts.plugins.engine(), parts.plugins.environment()
    overrides: dict[str, Any] = {"slots": 1} if config.repeatable else {}

    def make(directory: Path, announcement: "WeightAnnouncement") -> "Player":
        from astra_stream.engines.chat import ChatTokenizer
        from astra_stream.rollout.episode import Player

        settings = {"use": rollout.engine.use, **rollout.engine.parameters, **overrides}
        return Player(
            engine=engine(directory, num_threads=num_threads, **overrides),
            chat=ChatTokenizer(directory),
            make_environment=environment,
            policy=config.policy_name,
            clock=parts.clock,
            worker="worker" if config.repeatable else worker_name(slot),
            environment_name=rollout.environment.use,
            engine_settings=json.dumps(settings, sort_keys=True),
            on_swap=rollout.engine.parameters.get("on_swap", "keep_kv"),
            model_fingerprint=announcement.model_fingerprint,
        )

    return make


def model_files(directory: Path) -> Mapping[str, bytes]:
    """Configuration and tokenizer of a model directory, by file name.

    Raises:
        ConfigError: There is no config.json.
    """
    found = {name: directory / name for name in TOKENIZER_FILES if (directory / name).is_file()}
    if "config.json" not in found:
        raise ConfigError(
            f"model directory {directory} must have config.json: got none. "
            "Name a directory in Hugging Face format."
        )
    return {name: path.read_bytes() for name, path in found.items()}


def make_backend(config: RunConfig, plugins: RunPlugins, num_threads: int) -> "TorchBackend":
    """The trainer's backend, with the weights that the run begins with."""
    from astra_stream.training.torch_backend import TorchBackend

    policy = config.policy
    return TorchBackend(
        policy.model,
        loss=plugins.loss(),
        tokens_per_micro_batch=policy.trainer.tokens_per_micro_batch,
        num_threads=num_threads,
        seed=config.seed,
        reference_directory=policy.reference,
        **policy.optimizer.model_dump(),
    )
