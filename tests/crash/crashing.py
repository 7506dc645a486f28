"""Keeps the services of a run up, each of which kills itself once at each of its crash points.

    python crashing.py PLAN.json

A service may also stop at a point, as if it were dead: another takes its place at once, and wakes
it after the first transaction of its own.

A life is a fork of a process that has imported everything, so that it begins at once. To broker and
store it is a process of its own: SIGKILL ends it, and its connections with it.
"""

import json
import os
import signal
import sys
import threading
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
ZOMBIE_ENDED = "zombie ended with "
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
    stops_at: dict[str, str]
    """Name to the point at which it stops, once, until its successor wakes it."""

    def zombie(self, name: str) -> Path:
        """The file with the pid of the life of a service that has stopped."""
        return Path(self.directory) / f"{name}.zombie"

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
        stops_at = plan.stops_at.get(name, "")
        self._stops_at = "" if stops_at in known else stops_at
        self._zombie = plan.zombie(name)
        left = [point for point in plan.dies_at.get(name, []) if point not in known]
        super().__init__(dict.fromkeys(left, 1), die=self._kill_self)

    def passes(self, point: str) -> None:
        """Kill somebody else, or this process; stop, or wake who has stopped."""
        if point == self._stops_at:
            self._stops_at = ""
            self._reach(point)
            self._zombie.write_text(str(os.getpid()))
            # To this thread: sent to the process, another may take it, and this one goes on.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        elif point.startswith("after commit") and self._zombie.exists():
            os.kill(int(self._zombie.read_text()), signal.SIGCONT)
            self._zombie.unlink()
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


class Keeper:
    """Starts every service, and again as often as it is to be, until all have finished."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._began_s = time.monotonic()
        self._living: dict[int, str] = {}
        self._zombies: dict[int, str] = {}
        self._num_lives: Counter[str] = Counter()

    def keep_up(self) -> None:
        for name in self._plan.commands:
            self._start(name)
        while self._living or self._zombies:
            pid, status = os.waitpid(-1, os.WUNTRACED)
            if os.WIFSTOPPED(status):
                self._zombies[pid] = self._living.pop(pid)
                self._start(self._zombies[pid])
            elif pid in self._zombies:
                with self._plan.reached(self._zombies.pop(pid)).open("a") as file:
                    file.write(f"{ZOMBIE_ENDED}{os.waitstatus_to_exitcode(status)}\n")
            else:
                self._ended(self._living.pop(pid), os.waitstatus_to_exitcode(status))

    def _start(self, name: str) -> None:
        self._num_lives[name] += 1
        if self._num_lives[name] > 2 * len(self._plan.dies_at.get(name, [])) + 10:
            sys.exit(f"{name} must finish: got {self._num_lives[name]} lives")
        pid = os.fork()
        if pid == 0:
            live(self._plan, name)
        self._living[pid] = name

    def _ended(self, name: str, code: int) -> None:
        at_s = time.monotonic() - self._began_s
        life = self._num_lives[name]
        sys.stderr.write(f"{at_s:6.1f} s: {name} ended with {code}, life {life}\n")
        if code in (TRY_AGAIN, -signal.SIGKILL):
            self._start(name)
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
    Keeper(planned).keep_up()
