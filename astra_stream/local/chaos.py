"""Ends and pauses children of a supervisor at random moments, as a plan that a seed decides."""

import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from astra_stream.local.supervisor import Supervisor

Kind = Literal["kill", "stop", "pause"]
"""SIGKILL; SIGTERM; SIGSTOP and, once its session has expired, SIGCONT."""

RARE_SHARE = 10
"""Pauses, and kills of the broker, are one in so many."""
STOP_SHARE = 5
"""One in so many of the other strikes is a SIGTERM."""
PAUSE_S = 8.0
"""Longer than a session of the embedded broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """One thing that happens to one process."""

    after_s: float
    """Seconds since the strike before."""
    name: str
    """Child that is struck."""
    kind: Kind
    """How."""


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
        services: Children that may be killed, stopped and paused.
        servers: Children that may only be killed.
        num_strikes: How many strikes.
        mean_gap_s: Mean of the exponential time between two; they may overlap.
        broker: The server that is killed one time in ``RARE_SHARE``.
        seed: Decides all of it.
    """
    rng = random.Random(seed)
    num_rare = num_strikes // RARE_SHARE
    others = [*services, *(name for name in servers if name != broker)]
    targets: list[tuple[str, Kind]] = [(broker, "kill")] * num_rare
    targets += [(rng.choice(services), "pause") for _ in range(num_rare)]
    while len(targets) < num_strikes:
        name = rng.choice(others)
        stops = name in services and rng.randrange(STOP_SHARE) == 0
        targets.append((name, "stop" if stops else "kill"))
    rng.shuffle(targets)
    gaps = (rng.expovariate(1 / mean_gap_s) for _ in targets)
    return [
        Strike(after_s=gap, name=name, kind=kind)
        for gap, (name, kind) in zip(gaps, targets, strict=True)
    ]


class Chaos:
    """Carries a plan out on a thread of its own.

    Args:
        supervisor: Parent of the children, which starts again what was killed.
        strikes: The plan.
    """

    def __init__(self, supervisor: Supervisor, strikes: Sequence[Strike]) -> None:
        self._supervisor = supervisor
        self._strikes = strikes
        self._over = threading.Event()
        self._resumes: list[threading.Timer] = []
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
        return not self._thread.is_alive() and not any(t.is_alive() for t in self._resumes)

    def end(self) -> None:
        """Strike no more, and let what is paused go on."""
        self._over.set()
        self._thread.join()
        for timer in self._resumes:
            timer.join()

    def _run(self) -> None:
        for strike in self._strikes:
            if self._over.wait(strike.after_s):
                return
            if strike.name in self._supervisor.pids():
                self._carry_out(strike)

    def _carry_out(self, strike: Strike) -> None:
        self.done.append((time.time(), strike))
        if strike.kind == "kill":
            self._supervisor.kill(strike.name)
        elif strike.kind == "stop":
            self.stopped.add(strike.name)
            self._supervisor.kill(strike.name, signal.SIGTERM)
        else:
            self._supervisor.kill(strike.name, signal.SIGSTOP)
            resume = threading.Timer(PAUSE_S, self._supervisor.kill, (strike.name, signal.SIGCONT))
            self._resumes.append(resume)
            resume.start()
