"""Keeps the services of a run up, each of which kills itself once at each of its crash points.

    python crashing.py PLAN.json

A life is a fork of a process that has imported everything, so that it begins at once. To broker and
store it is a process of its own: SIGKILL ends it, and its connections with it.
"""

import json
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from astra_stream.cli import connect, run_command
from astra_stream.config import RunConfig
from astra_stream.local.stack import StackInfo
from astra_stream.testing.crashes import CrashingLog, CrashingStore, Life

TRY_AGAIN = 75
FLUSH_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which services there are, and what happens to them."""

    directory: str
    """For logs, and for the points that each service has reached."""
    commands: dict[str, list[str]]
    """Name of a service to the words of its command."""
    dies_at: dict[str, list[str]]
    """Name to the points at which it dies, each once."""
    kills_at: dict[str, dict[str, int]]
    """Name to point to the process that it kills there, once, and lives on."""

    def reached(self, name: str) -> Path:
        """The file of points that a service has reached, one a line."""
        return Path(self.directory) / f"{name}.points"


class PlannedLife(Life):
    """A life that writes down what it reached before it kills."""

    def __init__(self, plan: Plan, name: str) -> None:
        self.logs: list[CrashingLog] = []
        self._file = plan.reached(name)
        self._file.touch()
        known = self._file.read_text().splitlines()
        kills = plan.kills_at.get(name, {})
        self._kills_at = {point: pid for point, pid in kills.items() if point not in known}
        left = [point for point in plan.dies_at.get(name, []) if point not in known]
        super().__init__(dict.fromkeys(left, 1), die=self._kill_self)

    def passes(self, point: str) -> None:
        """Kill somebody else, or this process."""
        if victim := self._kills_at.pop(point, 0):
            self._reach(point)
            os.kill(victim, signal.SIGKILL)
        super().passes(point)

    def _kill_self(self, point: str) -> None:
        self._reach(point)
        os.kill(os.getpid(), signal.SIGKILL)

    def _reach(self, point: str) -> None:
        # The broker has then what was written before, and not only the queue of a dying client.
        for writer in (writer for log in self.logs for writer in log.writers):
            writer._producer.flush(FLUSH_S)
        with self._file.open("a") as file:
            file.write(f"{point}\n")


def live(plan: Plan, name: str) -> NoReturn:
    """Be a service, in this process, until its end."""
    with (Path(plan.directory) / f"{name}.log").open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    life = PlannedLife(plan, name)
    open_log, open_store = connect.open_log, connect.open_store

    def crashing_log(config: RunConfig, stack: StackInfo | None) -> CrashingLog:
        life.logs.append(CrashingLog(open_log(config, stack), life))
        return life.logs[-1]

    def crashing_store(config: RunConfig, stack: StackInfo | None) -> CrashingStore:
        return CrashingStore(open_store(config, stack), life)

    connect.open_log, connect.open_store = crashing_log, crashing_store
    code = run_command(plan.commands[name])
    sys.stdout.flush()
    os._exit(code)


def keep_up(plan: Plan) -> None:
    """Start every service, and again as often as it is to be, until all have finished."""
    began_s = time.monotonic()
    living: dict[int, str] = {}
    num_lives: Counter[str] = Counter()

    def start(name: str) -> None:
        num_lives[name] += 1
        if num_lives[name] > 2 * len(plan.dies_at.get(name, [])) + 10:
            sys.exit(f"{name} must finish: got {num_lives[name]} lives")
        pid = os.fork()
        if pid == 0:
            live(plan, name)
        living[pid] = name

    for name in plan.commands:
        start(name)
    while living:
        pid, status = os.wait()
        name, code = living.pop(pid), os.waitstatus_to_exitcode(status)
        at_s = time.monotonic() - began_s
        sys.stderr.write(f"{at_s:6.1f} s: {name} ended with {code}, life {num_lives[name]}\n")
        if code in (TRY_AGAIN, -signal.SIGKILL):
            start(name)
        elif code:
            sys.exit(f"{name} must end with 0: got {code}")


def import_everything() -> None:
    """What the services import, so that no life has to."""
    from transformers import AutoTokenizer
    from transformers.models.qwen3 import modeling_qwen3

    from astra_stream.cli import services
    from astra_stream.engines import transformers_engine
    from astra_stream.evaluation import evaluator
    from astra_stream.log import kafka
    from astra_stream.processing import assembler, pipeline, scheduler
    from astra_stream.rollout import service
    from astra_stream.store import s3
    from astra_stream.training import torch_backend

    assert all((AutoTokenizer, modeling_qwen3, services, transformers_engine, evaluator, kafka))
    assert all((assembler, pipeline, scheduler, service, s3, torch_backend))


if __name__ == "__main__":
    planned = Plan(**json.loads(Path(sys.argv[1]).read_text()))
    import_everything()
    keep_up(planned)
