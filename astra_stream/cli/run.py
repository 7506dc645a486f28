"""``astra run``: everything on this machine, from a broker to a report.

Effects, in order, and what a kill after each leaves: the run's directory with its run file; the
embedded servers, which end with this process; topics; prompts; services, which end with it too; the
summary and the picture. ``astra run --resume DIR`` goes on from any of them.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from astra_stream.cli.connect import STACK_VARIABLE, open_admin, open_log
from astra_stream.cli.exits import last_words, refuse_full_disk, restarted_text
from astra_stream.cli.options import AsJson, Overrides
from astra_stream.cli.run_directory import PICTURE_FILE, RUN_FILE, run_file_of
from astra_stream.cli.signals import interrupts
from astra_stream.errors import AstraStreamError, ConfigError, TransientError

if TYPE_CHECKING:
    from astra_stream.analysis.run_state import RunState
    from astra_stream.config import RunConfig
    from astra_stream.local.stack import StackInfo
    from astra_stream.local.supervisor import ChildExited, Service, Supervisor
    from astra_stream.records import Prompt

POLL_S = 0.5
EXIT_S = 15.0
"""Beyond a worker's grace: what it may take to write what has finished, and to end."""
TRY_AGAIN = 75
USER_MISTAKE = 2


class ServiceError(AstraStreamError):
    """A service ended with an error that is not the user's: its log says more; exit 1."""


def run(
    run_file: Annotated[Path | None, Parameter(help="The run file.")] = None,
    *,
    resume: Annotated[
        Path | None, Parameter(help="Go on with the run of this directory.", negative=())
    ] = None,
    runs: Annotated[Path, Parameter(help="Where directories of runs are made.")] = Path("runs"),
    overrides: Overrides = (),
    as_json: AsJson = False,
) -> None:
    """Start everything on this machine, train, and report."""
    from astra_stream.cli.validation import validate_run
    from astra_stream.config import load_run

    source = _source(run_file, resume)
    config = load_run(source, overrides)
    expected, prompts = validate_run(config, file=source.name)
    directory = resume.absolute() if resume else new_directory(runs, config.run)
    write_run_file(config, directory)
    _say(
        f"{config.run}: {expected.steps} steps of {expected.samples_per_step} samples, "
        f"{expected.num_train} prompts to train on, {expected.num_held_out} held out"
    )
    _say(f"directory: {directory}")
    with interrupts():
        try:
            LocalRun(config, directory).train(prompts)
        except KeyboardInterrupt:
            _say(f"stopped. Go on with: astra run --resume {directory}")
            raise
    _show(directory, steps=config.steps, as_json=as_json)


def astra(_name: str) -> tuple[str, ...]:
    """The command ``astra`` of this installation."""
    return (sys.executable, "-m", "astra_stream.cli")


@dataclass(frozen=True)
class LocalRun:
    """A run whose services, and servers where the run file names none, are children of this one."""

    config: "RunConfig"
    directory: Path
    entry: Callable[[str], tuple[str, ...]] = astra
    """Name of a service to the program that its command is given to."""

    def train(self, prompts: "list[Prompt]") -> None:
        """Start what is needed, wait for the end, leave the summary and the picture.

        Raises:
            ConfigError: A service refused what it was asked; its own words.
            TransientError: A service or a server went on failing.
            ServiceError: A service has a bug.
        """
        from astra_stream.local.supervisor import Supervisor

        began_s = time.monotonic()
        with Supervisor(self.directory / "logs", grace_s=self.grace_s) as supervisor:
            stack = self.begin(supervisor, prompts)
            try:
                state = self._watch(supervisor, stack)
            except KeyboardInterrupt:
                _say(f"stopping within {self.grace_s:.0f} s; once more ends everything at once")
                raise
            finally:
                supervisor.stop([service.name for service in self.services()])
            self._report(state, time.monotonic() - began_s)

    @property
    def grace_s(self) -> float:
        """What a service may take to end once it is told to, seconds."""
        return self.config.rollout.grace + EXIT_S

    def begin(self, supervisor: "Supervisor", prompts: "list[Prompt]") -> "StackInfo | None":
        """Start the servers and every service; the embedded servers, if there are any."""
        stack = self._stack(supervisor)
        self._prepare(stack, prompts)
        for service in self.services():
            supervisor.start(service)
        return stack

    def services(self) -> "list[Service]":
        """The run's services as children."""
        from astra_stream.local.supervisor import Service

        share = str(threads_each(self.config))
        commands = {
            "train": ("train", "--threads", share),
            **{
                f"rollout-{slot}": ("rollout", "--slot", str(slot), "--threads", share)
                for slot in range(self.config.rollout.workers)
            },
            "scheduler": ("schedule",),
            "pipeline": ("process", "pipeline", *self._state()),
            "assembler": ("process", "assembler"),
        }
        if self.config.evaluate is not None:
            commands["evaluator"] = ("evaluate",)
        found = []
        for name, (command, *arguments) in commands.items():
            is_tensor_service = name.startswith(("train", "rollout"))
            found.append(
                Service(
                    name=name,
                    argv=(*self.entry(name), command, str(self._run_file()), *arguments),
                    env=self._environment(share if is_tensor_service else "1"),
                )
            )
        return found

    def _environment(self, threads: str) -> dict[str, str]:
        return {
            **({STACK_VARIABLE: str(self.directory)} if self._is_embedded() else {}),
            "OMP_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
        }

    def _state(self) -> tuple[str, ...]:
        on_disk = self.config.local.state == "disk"
        return ("--work", str(self.directory / "state")) if on_disk else ()

    def _run_file(self) -> Path:
        return self.directory / RUN_FILE

    def _is_embedded(self) -> bool:
        return self.config.kafka is None or self.config.store is None

    def _stack(self, supervisor: "Supervisor") -> "StackInfo | None":
        """The embedded servers, unless the run file names its own."""
        if not self._is_embedded():
            return None
        from astra_stream.local.stack import start_stack

        _say("starting the broker and the store")
        stack = start_stack(
            self.directory,
            java=self.config.local.java,
            supervisor=supervisor,
            on_progress=lambda done, total: _say(f"fetching the broker: {done} of {total} jars"),
        )
        os.environ[STACK_VARIABLE] = str(self.directory)
        return stack.info

    def _prepare(self, stack: "StackInfo | None", prompts: "list[Prompt]") -> None:
        from astra_stream.cli.topics import apply_topics
        from astra_stream.connectors.loading import load_into
        from astra_stream.declarations import declared
        from astra_stream.log.codec import Codec
        from astra_stream.log.names import TopicNames

        names = TopicNames(self.config.run)
        changes = apply_topics(self.config, open_admin(self.config, stack))
        log = open_log(self.config, stack)
        try:
            written = load_into(
                log,
                Codec(declared("schemas")),
                names.prompts,
                prompts,
                writer_id=names.group("prompts"),
            )
        finally:
            log.close()
        share = threads_each(self.config)
        _say(f"{len(changes)} topics made, {written} prompts written")
        _say(f"{len(self.services())} services; {share} thread(s) for each that computes")

    def _watch(self, supervisor: "Supervisor", stack: "StackInfo | None") -> "RunState":
        """Show the run until its services have ended.

        A service that fails ends the run; one that died and was started again does not.
        """
        from rich.console import Console

        from astra_stream.analysis.run_log import RunTail
        from astra_stream.cli.live import LiveView
        from astra_stream.cli.stalls import stall_watch
        from astra_stream.clock import SystemClock
        from astra_stream.declarations import declared
        from astra_stream.log.codec import Codec
        from astra_stream.log.names import TopicNames

        clock, codec = SystemClock(), Codec(declared("schemas"))
        log = open_log(self.config, stack)
        stalls = stall_watch(self.config, stack, log, codec, since_s=clock.now_s())
        watched = {service.name for service in self.services()}
        restarts: dict[str, int] = {}
        with ExitStack() as closing:
            closing.callback(log.close)
            tail = closing.enter_context(
                RunTail(
                    log,
                    codec,
                    topics=TopicNames(self.config.run),
                    policy=self.config.policy_name,
                    clock=clock,
                )
            )
            # Standard output is for what the run came to, which may be JSON.
            console = Console(stderr=True)
            view = closing.enter_context(
                LiveView(self.config.run, steps=self.config.steps, clock=clock, console=console)
            )
            seen = 0
            while watched:
                tail.poll(POLL_S)
                events = supervisor.exits()
                for event in events[seen:]:
                    if event.restarted:
                        restarts[event.name] = restarts.get(event.name, 0) + 1
                        console.print(restarted_text(event), highlight=False, soft_wrap=True)
                    elif event.name in watched or event.code:
                        watched.discard(event.name)
                        refuse_failure(event)
                seen = len(events)
                view.update(
                    tail.state,
                    describe(supervisor.pids(), restarts),
                    stall=stalls.line(tail.state, clock.now_s()),
                )
            state = tail.catch_up()
            view.update(state, {})
            return state

    def _report(self, state: "RunState", wall_s: float) -> None:
        from astra_stream.analysis.picture import draw
        from astra_stream.analysis.summary import summarise, write_summary

        summary = summarise(
            state, run=self.config.run, policy=self.config.policy_name, wall_s=wall_s
        )
        write_summary(summary, self.directory)
        draw(
            state,
            self.directory / PICTURE_FILE,
            title=self.config.run,
            max_staleness=self.config.policy.max_staleness,
        )


def threads_each(config: "RunConfig") -> int:
    """Threads for each process that computes with tensors: an equal share, at least 1."""
    cores = config.local.cores or len(os.sched_getaffinity(0))
    return max(1, cores // (1 + config.rollout.workers))


def new_directory(runs: Path, name: str) -> Path:
    """A directory that no other run has: ``<name>-<time>``.

    Raises:
        ConfigError: It cannot be made.
    """
    path = runs.absolute() / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        path.mkdir(parents=True, exist_ok=False)
    except OSError as error:
        raise ConfigError(
            f"run directory {path} must be new and writable: got {error.strerror}. "
            "Try again, or name another place with --runs."
        ) from None
    return path


def describe(pids: dict[str, int], restarts: dict[str, int]) -> dict[str, str]:
    """Each process and how it is, for people."""
    found = {}
    for name, pid in pids.items():
        times = restarts.get(name, 0)
        found[name] = f"pid {pid}" + (f", {times} restart{'s' * (times > 1)}" if times else "")
    return found


def refuse_failure(event: "ChildExited") -> None:
    """Raise what a service's exit means for the run; nothing where it finished.

    Raises:
        ConfigError: It refused what it was asked.
        TransientError: It went on failing, or its disk is full.
        ServiceError: It has a bug.
    """
    if event.code == 0:
        return
    refuse_full_disk(event)
    last = last_words(event)
    if event.code == USER_MISTAKE:
        raise ConfigError(last)
    what = (
        f"service {event.name} must go on: got exit {event.code}, and last it said: {last}. "
        f"See {event.log_path}."
    )
    if event.code == TRY_AGAIN or event.code < 0:
        raise TransientError(what)
    raise ServiceError(what)


def _source(run_file: Path | None, resume: Path | None) -> Path:
    if resume is not None and run_file is None:
        return run_file_of(resume)
    if run_file is None or resume is not None:
        raise ConfigError(
            "astra run must be given a run file or --resume DIR: got "
            f"{'neither' if run_file is None else 'both'}. Name one of them."
        )
    return run_file


def write_run_file(config: "RunConfig", directory: Path) -> None:
    """Put the resolved run file into the run's directory, whole or not at all."""
    from astra_stream.config import resolved

    text = json.dumps(resolved(config), indent=2)
    partial = directory / f"{RUN_FILE}.partial"
    partial.write_text(text + "\n", encoding="utf-8")
    shutil.move(partial, directory / RUN_FILE)


def _show(directory: Path, *, steps: int, as_json: bool) -> None:
    from astra_stream.analysis.summary import (
        SUMMARY_FILE,
        read_summary,
        summary_json,
        summary_table,
    )
    from astra_stream.cli.output import print_facts, print_json

    summary = read_summary(directory)
    if summary is None:
        raise ConfigError(f"{directory} must have a summary: got none. Run it again.")
    if as_json:
        print_json(summary_json(summary))
        return
    print_facts(summary.run, dict(summary_table(summary, steps=steps)))
    _say(f"picture: {directory / PICTURE_FILE}")
    _say(f"summary: {directory / SUMMARY_FILE}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
