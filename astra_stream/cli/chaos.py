"""``astra chaos``: a run on this machine whose processes are struck at random, and its audit."""

import contextlib
import dataclasses
import math
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from astra_stream.cli.options import AsJson, Overrides, RunFile
from astra_stream.cli.output import print_facts, print_json, print_rows
from astra_stream.cli.run import LocalRun, interrupts, new_directory, refuse_failure, write_run_file
from astra_stream.errors import ConfigError

if TYPE_CHECKING:
    from astra_stream.analysis.audit import AuditReport
    from astra_stream.analysis.recovery import Work
    from astra_stream.config import RunConfig
    from astra_stream.local.chaos import Chaos, Plan, Strike
    from astra_stream.local.stack import StackInfo
    from astra_stream.local.supervisor import Supervisor
    from astra_stream.records import Prompt

POLL_S = 0.25
SPREAD = ("p50", "p95", "max")
STOPPED = (0, 128 + signal.SIGTERM)
"""How a service ends that is told to once, or twice."""
BROKER_DURING = "broker, in "
"""Before the name of the service in whose transaction the broker was killed."""
MANY_RESTARTS = 1_000_000
"""A child that is killed on purpose has not failed."""


def chaos(
    run_file: RunFile,
    *,
    kills: Annotated[int, Parameter(help="How many processes to strike.")] = 200,
    seed: Annotated[int, Parameter(help="Decides whom, when and how.")] = 0,
    gap: Annotated[float, Parameter(help="Mean seconds between two strikes.")] = 8.0,
    runs: Annotated[Path, Parameter(help="Where directories of runs are made.")] = Path("runs"),
    overrides: Overrides = (),
    as_json: AsJson = False,
) -> int:
    """Train while rollout workers, processors, trainer, broker and store are struck; then audit.

    Most strikes are SIGKILL, some SIGTERM, a tenth hit the broker, and a tenth are pauses that
    outlast a session, half of them between the positions of a transaction and its commit. The run
    goes on to its last step. The audit trains its batches once more and compares every hash. Exit
    code: 1 where anything was lost, counted twice or differs.
    """
    from astra_stream.cli.validation import validate_run
    from astra_stream.config import load_run

    config = load_run(run_file, overrides)
    if config.kafka is not None or config.store is not None:
        raise ConfigError(
            f"{run_file.name}: chaos must have servers of its own: got [kafka] or [store]. "
            "Remove the tables; it does not strike servers that others use."
        )
    _, prompts = validate_run(config, file=run_file.name)
    directory = new_directory(runs, f"{config.run}-chaos")
    write_run_file(config, directory)
    with interrupts():
        found = ChaosRun(config, directory, plan_of(kills, seed=seed, gap_s=gap)).train(prompts)
    if as_json:
        print_json(found)
    else:
        show(found, title=config.run)
    return 1 if found["violations"] else 0


def plan_of(kills: int, *, seed: int, gap_s: float) -> "Plan":
    """Strikes at random, as a seed decides them."""
    from astra_stream.local.broker import NAME as BROKER
    from astra_stream.local.chaos import plan_strikes

    def plan(services: Sequence[str], servers: Sequence[str]) -> "list[Strike]":
        return plan_strikes(
            services, servers, num_strikes=kills, mean_gap_s=gap_s, broker=BROKER, seed=seed
        )

    return plan


class ChaosRun:
    """A local run under strikes.

    Args:
        config: The run.
        directory: Its directory.
        plan: Names of services and of servers to the strikes; where the run ends before the last
            of them, the others are not made.
    """

    def __init__(self, config: "RunConfig", directory: Path, plan: "Plan") -> None:
        self._config = config
        self._run = LocalRun(config, directory, entry=self._entry)
        self._directory = directory
        self._plan = plan
        self._restarts: Counter[str] = Counter()
        self._num_exits = 0
        """Ends of children that are dealt with."""

    def train(self, prompts: "list[Prompt]") -> dict[str, Any]:
        """Train to the end and say what came of it.

        Raises:
            ConfigError, TransientError, ServiceError: A service failed by itself.
        """
        from astra_stream.cli.audit import audited
        from astra_stream.local.chaos import Chaos
        from astra_stream.local.supervisor import Supervisor

        began_s = time.monotonic()
        logs = self._directory / "logs"
        with Supervisor(logs, grace_s=self._run.grace_s, max_restarts=MANY_RESTARTS) as supervisor:
            stack = self._run.begin(supervisor, prompts)
            services = [service.name for service in self._run.services()]
            servers = sorted(supervisor.pids().keys() - set(services))
            chaos = Chaos(supervisor, self._plan(services, servers), hold_file=self._hold_file)
            chaos.start()
            try:
                self._watch(supervisor, chaos, stack)
            finally:
                chaos.end()
            trained_s = time.monotonic() - began_s
            work = self._work(stack)
            report = audited(self._config, stack, retrain=True)
        strikes = [strike for _, strike in chaos.done]
        return {
            "wall_s": round(time.monotonic() - began_s, 1),
            "trained_s": round(trained_s, 1),
            "strikes": strikes_by_name(strikes),
            "kills": len(strikes),
            "restarts": dict(self._restarts),
            "back_at_work_s": times_by_name(chaos.done, work),
            "episodes_played_again": work.num_played_again,
            "batches_trained_again": work.num_trained_again,
            **facts_of(report),
        }

    def _hold_file(self, name: str) -> Path:
        return self._directory / f"{name}.hold"

    def _entry(self, name: str) -> tuple[str, ...]:
        """Every service can be stopped in the middle of a transaction."""
        return (sys.executable, "-m", "astra_stream.cli.holdable", str(self._hold_file(name)))

    def _work(self, stack: "StackInfo | None") -> "Work":
        from astra_stream.analysis.recovery import read_work
        from astra_stream.cli.connect import open_log
        from astra_stream.clock import SystemClock
        from astra_stream.declarations import declared
        from astra_stream.log.codec import Codec
        from astra_stream.log.names import TopicNames

        with contextlib.closing(open_log(self._config, stack)) as log:
            return read_work(
                log,
                Codec(declared("schemas")),
                topics=TopicNames(self._config.run),
                policy=self._config.policy_name,
                clock=SystemClock(),
            )

    def _watch(self, supervisor: "Supervisor", chaos: "Chaos", stack: "StackInfo | None") -> None:
        """Wait until every service has ended by itself; say what is struck, and what stalls."""
        from astra_stream.analysis.run_log import RunTail
        from astra_stream.cli.connect import open_log
        from astra_stream.cli.stalls import stall_watch
        from astra_stream.clock import SystemClock
        from astra_stream.declarations import declared
        from astra_stream.log.codec import Codec
        from astra_stream.log.names import TopicNames

        codec, clock, topics = (
            Codec(declared("schemas")),
            SystemClock(),
            TopicNames(self._config.run),
        )
        running = {service.name for service in self._run.services()}
        num_said, said = 0, ""
        with (
            contextlib.closing(open_log(self._config, stack)) as log,
            RunTail(
                log, codec, topics=topics, policy=self._config.policy_name, clock=clock
            ) as tail,
        ):
            stalls = stall_watch(self._config, stack, log, codec, since_s=clock.now_s())
            while running:
                tail.poll(POLL_S)
                running -= self._ended(supervisor, chaos)
                for _, strike in chaos.done[num_said:]:
                    during = f" in a transaction of {strike.during}" if strike.during else ""
                    say(f"{len(tail.state.versions)} versions: {strike.kind} {strike.name}{during}")
                    num_said += 1
                stall = stalls.line(tail.state, clock.now_s())
                if stall and stall != said:
                    say(stall)
                said = stall

    def _ended(self, supervisor: "Supervisor", chaos: "Chaos") -> set[str]:
        """Services that have finished; those that were told to stop are started again."""
        services = {service.name: service for service in self._run.services()}
        ended: set[str] = set()
        exits = supervisor.exits()
        for event in exits[self._num_exits :]:
            self._restarts[event.name] += event.restarted
            if event.restarted or event.name not in services:
                continue
            if event.code in STOPPED and event.name in chaos.stopped:
                chaos.stopped.discard(event.name)
                supervisor.start(services[event.name])
            else:
                refuse_failure(event)
                ended.add(event.name)
        self._num_exits = len(exits)
        return ended


def strikes_by_name(strikes: "Sequence[Strike]") -> dict[str, dict[str, int]]:
    """How often each process was struck in each way; a broker in a transaction apart."""
    found: dict[str, dict[str, int]] = {}
    counts = Counter(
        (f"{BROKER_DURING}{s.during}" if s.during else s.name, s.kind) for s in strikes
    )
    for (name, kind), count in sorted(counts.items()):
        found.setdefault(name, {})[kind] = count
    return found


def times_by_name(
    done: "Sequence[tuple[float, Strike]]", work: "Work"
) -> dict[str, dict[str, float]]:
    """Seconds from kill or stop to the next work, over the strikes of each process.

    Of a broker that was killed during a service's transaction, to the next work of that service.
    """
    from astra_stream.analysis.recovery import times_to_work

    found: dict[str, dict[str, float]] = {}
    for is_during in (False, True):
        strikes = [
            (at_s, strike.during or strike.name)
            for at_s, strike in done
            if strike.kind in ("kill", "stop") and bool(strike.during) == is_during
        ]
        for name, times_s in sorted(times_to_work(strikes, work.times_s).items()):
            found[f"{BROKER_DURING}{name}" if is_during else name] = spread(times_s)
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, 95th percentile and largest of at least one value, in seconds."""
    ordered = sorted(values)
    at_95 = ordered[math.ceil(0.95 * len(ordered)) - 1]
    values_s = (statistics.median(ordered), at_95, ordered[-1])
    return {key: round(value_s, 1) for key, value_s in zip(SPREAD, values_s, strict=True)}


def facts_of(report: "AuditReport") -> dict[str, Any]:
    """What the audit adds."""
    return {
        "versions": report.versions,
        "samples": report.samples,
        "outcomes": report.outcomes,
        "endings": dict(report.endings),
        "lost": report.lost,
        "duplicated": report.duplicated,
        "dead_letters": report.dead_letters,
        "orphans": len(report.orphans),
        "hashes_equal": not any(v.rule == "weights" for v in report.violations),
        "violations": [dataclasses.asdict(violation) for violation in report.violations],
    }


def show(found: dict[str, Any], *, title: str) -> None:
    """Print who was struck, and what came of it."""
    kinds, times = ("kill", "stop", "pause", "hold"), found["back_at_work_s"]
    rows = [
        {
            "process": name,
            **{kind: str(counts.get(kind, "")) for kind in kinds},
            "restarts": str(found["restarts"].get(name, "")),
            **{f"back, {key}": times.get(name, {}).get(key, "") for key in SPREAD},
        }
        for name, counts in found["strikes"].items()
    ]
    print_rows(
        f"{title}: {found['kills']} strikes in {found['trained_s']:.0f} s; times in seconds", rows
    )
    facts = {
        "versions": found["versions"],
        "samples": f"{found['samples']:,}",
        "episodes played again": f"{found['episodes_played_again']:,}",
        "batches trained again": found["batches_trained_again"],
        "lost": found["lost"],
        "twice": found["duplicated"],
        "hashes equal": "yes" if found["hashes_equal"] else "no",
        "objects that nothing names": found["orphans"],
        "violations": len(found["violations"]),
    }
    print_facts("audit", facts)
    if found["violations"]:
        print_rows("violations", found["violations"][:20])


def say(text: str) -> None:
    """A line for people, beside what standard output is for."""
    print(text, file=sys.stderr, flush=True)
