"""``astra chaos``: a run on this machine whose processes are struck at random, and its audit."""

import contextlib
import dataclasses
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
    from astra_stream.config import RunConfig
    from astra_stream.local.chaos import Chaos, Strike
    from astra_stream.local.stack import StackInfo
    from astra_stream.local.supervisor import Supervisor
    from astra_stream.records import Prompt

POLL_S = 0.25
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

    Most strikes are SIGKILL, some SIGTERM, a tenth a pause that outlasts a session, and a tenth
    hit the broker. The run goes on to its last step. The audit trains its batches once more and
    compares every hash. Exit code: 1 where anything was lost, counted twice or differs.
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
        found = ChaosRun(config, directory, kills=kills, seed=seed, gap_s=gap).train(prompts)
    if as_json:
        print_json(found)
    else:
        show(found, title=config.run)
    return 1 if found["violations"] else 0


class ChaosRun:
    """A local run under strikes.

    Args:
        config: The run.
        directory: Its directory.
        kills: Strikes at most; fewer where the run ends before.
        seed: Of the plan.
        gap_s: Mean time between two strikes.
    """

    def __init__(
        self, config: "RunConfig", directory: Path, *, kills: int, seed: int, gap_s: float
    ) -> None:
        self._config = config
        self._run = LocalRun(config, directory)
        self._directory = directory
        self._kills = kills
        self._seed = seed
        self._gap_s = gap_s
        self._made_s: list[float] = []
        """When each version was first seen."""
        self._restarts: Counter[str] = Counter()

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
            chaos = Chaos(supervisor, self._plan(supervisor))
            chaos.start()
            try:
                self._watch(supervisor, chaos, stack)
            finally:
                chaos.end()
            report = audited(self._config, stack, retrain=True)
        strikes = [strike for _, strike in chaos.done]
        return {
            "wall_s": round(time.monotonic() - began_s, 1),
            "strikes": strikes_by_name(strikes),
            "kills": len(strikes),
            "restarts": dict(self._restarts),
            "recovery_s": spread(self._recoveries_s(chaos)),
            **facts_of(report),
        }

    def _plan(self, supervisor: "Supervisor") -> "list[Strike]":
        from astra_stream.local.broker import NAME as BROKER
        from astra_stream.local.chaos import plan_strikes

        services = [service.name for service in self._run.services()]
        return plan_strikes(
            services,
            sorted(supervisor.pids().keys() - set(services)),
            num_strikes=self._kills,
            mean_gap_s=self._gap_s,
            broker=BROKER,
            seed=self._seed,
        )

    def _watch(self, supervisor: "Supervisor", chaos: "Chaos", stack: "StackInfo | None") -> None:
        """Wait until every service has ended by itself; start again those that were stopped."""
        from astra_stream.analysis.run_log import RunTail
        from astra_stream.cli.connect import open_log
        from astra_stream.clock import SystemClock
        from astra_stream.declarations import declared
        from astra_stream.log.codec import Codec
        from astra_stream.log.names import TopicNames

        services = {service.name: service for service in self._run.services()}
        running = set(services)
        num_seen = num_said = 0
        with (
            contextlib.closing(open_log(self._config, stack)) as log,
            RunTail(
                log,
                Codec(declared("schemas")),
                topics=TopicNames(self._config.run),
                policy=self._config.policy_name,
                clock=SystemClock(),
            ) as tail,
        ):
            while running:
                tail.poll(POLL_S)
                new = len(tail.state.versions) - len(self._made_s)
                self._made_s += [time.monotonic()] * new
                exits = supervisor.exits()
                for event in exits[num_seen:]:
                    self._restarts[event.name] += event.restarted
                    if event.restarted or event.name not in services:
                        continue
                    if event.code == 0 and event.name in chaos.stopped:
                        chaos.stopped.discard(event.name)
                        supervisor.start(services[event.name])
                    else:
                        refuse_failure(event)
                        running.discard(event.name)
                num_seen = len(exits)
                for _, strike in chaos.done[num_said:]:
                    say(f"{len(self._made_s)} versions: {strike.kind} {strike.name}")
                    num_said += 1

    def _recoveries_s(self, chaos: "Chaos") -> list[float]:
        """Time from each strike to the next version."""
        return [
            next(made_s for made_s in self._made_s if made_s > at_s) - at_s
            for at_s, _ in chaos.done
            if self._made_s and self._made_s[-1] > at_s
        ]


def strikes_by_name(strikes: "Sequence[Strike]") -> dict[str, dict[str, int]]:
    """How often each process was struck in each way."""
    found: dict[str, dict[str, int]] = {}
    for (name, kind), count in sorted(Counter((s.name, s.kind) for s in strikes).items()):
        found.setdefault(name, {})[kind] = count
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, 95th percentile and largest, in seconds; empty without values."""
    if not values:
        return {}
    ordered = sorted(values)
    return {
        "p50": round(statistics.median(ordered), 1),
        "p95": round(ordered[int(0.95 * (len(ordered) - 1))], 1),
        "max": round(ordered[-1], 1),
    }


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
    kinds = ("kill", "stop", "pause")
    rows = [
        {
            "process": name,
            **{kind: str(counts.get(kind, "")) for kind in kinds},
            "restarts": str(found["restarts"].get(name, "")),
        }
        for name, counts in found["strikes"].items()
    ]
    print_rows(f"{title}: {found['kills']} strikes in {found['wall_s']:.0f} s", rows)
    recovery = found["recovery_s"]
    facts = {
        "versions": found["versions"],
        "samples": f"{found['samples']:,}",
        "strike to next version": ", ".join(f"{k} {v:g} s" for k, v in recovery.items()),
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
