"""Ends and pauses children of a supervisor at random moments, as a plan that a seed decides."""

import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from astra_stream.local.supervisor import Supervisor

Kind = Literal["kill", "stop", "pause", "hold"]
"""SIGKILL; SIGTERM; SIGSTOP and, once its session has expired, SIGCONT; the same, but between
sending the positions of a transaction and committing it."""

RARE_SHARE = 10
"""Pauses and holds together, and kills of the broker, are one in so many."""
STOP_SHARE = 5
"""One in so many of the other strikes is a SIGTERM."""
PAUSE_S = 8.0
"""Longer than a session of the embedded broker."""
POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """One thing that happens to one process."""

    after_s: float
    """Seconds since the strike before."""
    name: str
    """Child that is struck."""
    kind: Kind
    """How."""
    during: str = ""
    """Service between whose positions and commit it happens; empty: at any moment."""


Plan = Callable[[Sequence[str], Sequence[str]], Sequence[Strike]]
"""Names of services and of servers to what happens to them."""


def plan_strikes(
    services: Sequence[str],
    servers: Sequence[str],
    *,
    num_strikes: int,
    mean_gap_s: float,
    broker: str,
    seed: int,
) -> list[Strike]:
    """Who is struck, how and when.

    Args:
        services: Children that may be killed, stopped, paused and held.
        servers: Children that may only be killed.
        num_strikes: How many strikes.
        mean_gap_s: Mean of the exponential time between two; they may overlap.
        broker: The server that is killed one time in ``RARE_SHARE``.
        seed: Decides all of it.
    """
    rng = random.Random(seed)
    num_rare = num_strikes // RARE_SHARE
    others = [*services, *(name for name in servers if name != broker)]
    pauses: tuple[Kind, Kind] = ("hold", "pause")
    targets: list[tuple[str, Kind, str]] = []
    for number in range(num_rare):
        targets.append((rng.choice(services), pauses[number % 2], ""))
        targets.append((broker, "kill", "" if number % 2 else rng.choice(services)))
    while len(targets) < num_strikes:
        name = rng.choice(others)
        stops = name in services and rng.randrange(STOP_SHARE) == 0
        targets.append((name, "stop" if stops else "kill", ""))
    rng.shuffle(targets)
    return [
        Strike(after_s=rng.expovariate(1 / mean_gap_s), name=name, kind=kind, during=during)
        for name, kind, during in targets
    ]


class Chaos:
    """Carries a plan out on a thread of its own.

    Args:
        supervisor: Parent of the children, which starts again what was killed.
        strikes: The plan.
        hold_file: Name of a service to the file that, while it exists, asks it to stop itself
            before its next commit; it removes the file when it does.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        strikes: Sequence[Strike],
        *,
        hold_file: Callable[[str], Path],
    ) -> None:
        self._supervisor = supervisor
        self._strikes = strikes
        self._hold_file = hold_file
        self._over = threading.Event()
        self._pauses: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._run, name="chaos", daemon=True)
        self.done: list[tuple[float, Strike]] = []
        """What was struck, with the Unix time, seconds."""
        self.stopped: set[str] = set()
        """Services that were told to stop and have not been started again."""

    def start(self) -> None:
        """Begin with the first strike."""
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether every strike was made and every pause has ended."""
        return not any(thread.is_alive() for thread in (self._thread, *self._pauses))

    def end(self) -> None:
        """Strike no more, and let what is paused go on."""
        self._over.set()
        self._thread.join()
        for pause in self._pauses:
            pause.join()

    def _run(self) -> None:
        for strike in self._strikes:
            if self._over.wait(strike.after_s):
                return
            if strike.name not in self._supervisor.pids():
                continue
            if strike.during or strike.kind in ("pause", "hold"):
                pause = threading.Thread(target=self._pause, args=(strike,), daemon=True)
                self._pauses.append(pause)
                pause.start()
            else:
                self._end(strike)

    def _end(self, strike: Strike) -> None:
        self.done.append((time.time(), strike))
        if strike.kind == "stop":
            self.stopped.add(strike.name)
        number = signal.SIGTERM if strike.kind == "stop" else signal.SIGKILL
        self._supervisor.kill(strike.name, number)

    def _pause(self, strike: Strike) -> None:
        """Stop a service, and wake it after a while, or once another process has been struck."""
        paused = strike.during or strike.name
        if strike.kind == "pause":
            self._supervisor.kill(paused, signal.SIGSTOP)
        elif not self._holds(paused):
            return
        if strike.during:
            self._end(strike)
        else:
            self.done.append((time.time(), strike))
            self._over.wait(PAUSE_S)
        self._supervisor.kill(paused, signal.SIGCONT)

    def _holds(self, name: str) -> bool:
        """Wait until a service stops itself; whoever takes its place finds the file too."""
        asked = self._hold_file(name)
        asked.touch()
        while asked.exists():
            if self._over.wait(POLL_S):
                asked.unlink(missing_ok=True)
                return False
        return True
