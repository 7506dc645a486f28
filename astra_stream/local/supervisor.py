"""Run named child processes: restart those that may be, stop all in order, leave no orphan.

A child is restarted when it exits with 75 ("try again") or dies of a signal nobody sent through
``stop``; any other exit is final. A terminal's Ctrl-C never reaches a child: whoever catches it
calls ``stop``.
"""

import itertools
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from astra_stream.local.spawn import log_tail, spawn

_TRY_AGAIN = 75
_RESTART_DELAY_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Service:
    """One program to keep running."""

    name: str
    """Names the child and its log, ``<name>.log``."""
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Added to the environment of this process."""
    directory: Path | None = None
    """Working directory; None is this process's own."""
    stop_signal: signal.Signals = signal.SIGTERM
    stop_stage: int = 0
    """Stages stop in ascending order, the members of a stage together."""


@dataclass(frozen=True, kw_only=True)
class ChildExited:
    """A child ended."""

    name: str
    code: int
    """Exit code; negative for the signal it died of."""
    restarted: bool
    """False: it stays down, because it finished, failed, was stopped or ended too often."""
    expected: bool
    """It was being stopped."""
    log_path: Path
    log_tail: str
    """The last lines that this child wrote; empty when the exit was expected."""


@dataclass
class _Child:
    service: Service
    log_path: Path
    process: subprocess.Popen[bytes]
    log_start_bytes: int
    exit_times: deque[float]
    stopping: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    code: int = 0

    def signal(self, number: signal.Signals) -> None:
        # An unreaped child keeps its pid, and only its watcher reaps it, after setting returncode.
        if self.process.returncode is None:
            os.kill(self.process.pid, number)


class Supervisor:
    """Starts, watches, restarts and stops children of this process.

    Args:
        log_directory: Each child appends to ``<name>.log`` here.
        grace_s: How long a stopped child may take before it is killed.
        max_restarts: More ends than this within ``window_s`` and a child stays down.
        window_s: The span in which ends are counted.
        detached: Leave children running when this process ends; nothing restarts them then.
    """

    def __init__(
        self,
        log_directory: Path,
        *,
        grace_s: float = 15.0,
        max_restarts: int = 3,
        window_s: float = 60.0,
        detached: bool = False,
    ) -> None:
        self.log_directory = log_directory
        self.detached = detached
        self._grace_s = grace_s
        self._max_restarts = max_restarts
        self._window_s = window_s
        self._children: dict[str, _Child] = {}
        self._events: list[ChildExited] = []
        self._changed = threading.Condition()

    def __enter__(self) -> "Supervisor":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self, service: Service) -> int:
        """Start a child and return its pid.

        Raises:
            ValueError: A child of this name is running.
            OSError: The log or the working directory cannot be opened.
        """
        with self._changed:
            present = self._children.get(service.name)
            if present is not None and not present.ended.is_set():
                raise ValueError(f"service name must be free: got {service.name!r}, which runs.")
            self.log_directory.mkdir(parents=True, exist_ok=True)
            log_path = self.log_path(service.name)
            process, log_start_bytes = self._spawn(service, log_path)
            child = _Child(service, log_path, process, log_start_bytes, deque())
            self._children[service.name] = child
        watcher = threading.Thread(
            target=self._watch, args=(child,), name=f"watch-{service.name}", daemon=True
        )
        watcher.start()
        return child.process.pid

    def pids(self) -> dict[str, int]:
        """The pid of every child that has not ended for good; a restart changes it."""
        with self._changed:
            running = [c for c in self._children.values() if not c.ended.is_set()]
            return {child.service.name: child.process.pid for child in running}

    def log_path(self, name: str) -> Path:
        """Where the child of this name writes."""
        return self.log_directory / f"{name}.log"

    def log_tail(self, name: str) -> str:
        """The last lines that the child of this name wrote since it was last started."""
        child = self._children[name]
        return log_tail(child.log_path, since_bytes=child.log_start_bytes)

    def events(self) -> Iterator[ChildExited]:
        """Every exit from the first on, in order; ends when no child is left."""
        for position in itertools.count():
            with self._changed:
                self._changed.wait_for(lambda at=position: len(self._events) > at or self._idle())
                if len(self._events) <= position:
                    return
                event = self._events[position]
            yield event

    def exits(self) -> list[ChildExited]:
        """Every exit until now, in order."""
        with self._changed:
            return list(self._events)

    def wait(self) -> dict[str, int]:
        """Block until every child has ended for good, and return their exit codes."""
        with self._changed:
            self._changed.wait_for(self._idle)
            return {name: child.code for name, child in self._children.items()}

    def has_ended(self, name: str, *, within_s: float = 0.0) -> bool:
        """Whether the child is down for good, waiting up to ``within_s`` for that."""
        return self._children[name].ended.wait(within_s)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal a child without stopping it, so that it is restarted as after a crash."""
        with self._changed:
            self._children[name].signal(number)

    def stop(self, names: Collection[str] | None = None) -> dict[str, int]:
        """Stop these children, or all, stage by stage, and return their exit codes.

        A child that outlives ``grace_s`` is killed. Children that have ended are left alone.
        """
        with self._changed:
            chosen = [self._children[n] for n in (self._children if names is None else names)]
        for stage in sorted({child.service.stop_stage for child in chosen}):
            self._stop_together([c for c in chosen if c.service.stop_stage == stage])
        return {child.service.name: child.code for child in chosen}

    def _stop_together(self, children: list[_Child]) -> None:
        with self._changed:
            for child in children:
                child.stopping.set()
                child.signal(child.service.stop_signal)
        deadline = time.monotonic() + self._grace_s
        for child in children:
            if not child.ended.wait(max(0.0, deadline - time.monotonic())):
                with self._changed:
                    child.signal(signal.SIGKILL)
                child.ended.wait()

    def _spawn(self, service: Service, log_path: Path) -> tuple[subprocess.Popen[bytes], int]:
        log_start_bytes = log_path.stat().st_size if log_path.exists() else 0
        process = spawn(
            service.argv,
            log_path=log_path,
            env=service.env,
            directory=service.directory,
            detached=self.detached,
        )
        return process, log_start_bytes

    def _watch(self, child: _Child) -> None:
        """Wait for one child, again after each restart, until it is down for good."""
        restarted = True
        while restarted:
            code = self._reap(child)
            delay_s = self._restart_delay_s(child, code)
            may_restart = delay_s is not None and not child.stopping.wait(delay_s)
            with self._changed:
                expected = child.stopping.is_set()
                tail = "" if expected else self.log_tail(child.service.name)
                restarted = may_restart and not expected and self._restart(child)
                if not restarted:
                    child.code = code
                    child.ended.set()
                self._events.append(
                    ChildExited(
                        name=child.service.name,
                        code=code,
                        restarted=restarted,
                        expected=expected,
                        log_path=child.log_path,
                        log_tail=tail,
                    )
                )
                self._changed.notify_all()

    def _restart(self, child: _Child) -> bool:
        try:
            child.process, child.log_start_bytes = self._spawn(child.service, child.log_path)
        except OSError:
            return False
        return True

    def _reap(self, child: _Child) -> int:
        pid = child.process.pid
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with self._changed:
            # The unreaped leader keeps the group's number from being used again.
            os.killpg(pid, signal.SIGKILL)
            return child.process.wait()

    def _restart_delay_s(self, child: _Child, code: int) -> float | None:
        """Seconds until the restart, doubling with each recent one; None: it stays down."""
        if code != _TRY_AGAIN and code >= 0:
            return None
        now_s = time.monotonic()
        times = child.exit_times
        times.append(now_s)
        while times[0] < now_s - self._window_s:
            times.popleft()
        if len(times) > self._max_restarts:
            return None
        return 0.0 if len(times) == 1 else _RESTART_DELAY_S * 2 ** (len(times) - 2)

    def _idle(self) -> bool:
        return all(child.ended.is_set() for child in self._children.values())
