"""What a person sees while a run goes on: a live frame in a terminal, else a line now and then."""

import math
from collections import Counter
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from astra_stream.analysis.run_state import RunState
from astra_stream.analysis.series import moving_mean, quantile, rates, time_share, window_of
from astra_stream.analysis.wording import (
    LABELS,
    counts_text,
    duration,
    number,
    shares_text,
    staleness_text,
)
from astra_stream.clock import Clock

LINE_S = 10.0
"""Least seconds from one plain line to the next."""
SILENCE_S = 60.0
"""Most seconds from one plain line to the next, however few steps there were."""
LINES = 10
"""Plain lines of a run that takes long enough."""
SPARKS = "▁▂▃▄▅▆▇█"
NUM_SPARKS = 40


class LiveView:
    """Shows a run; ``update`` whenever there may be something new, about twice a second.

    Args:
        title: Names the run.
        steps: Versions that the run is to make.
        clock: For elapsed time.
        console: Where to; None is stdout. A terminal gets a frame that is drawn again in place,
            anything else plain lines: one in ten seconds or in a tenth of the steps, whichever is
            rarer, but one a minute at least, and the first and the last state.
    """

    def __init__(
        self, title: str, *, steps: int, clock: Clock, console: Console | None = None
    ) -> None:
        self._title = title
        self._steps = steps
        self._clock = clock
        self._console = console or Console()
        self._live: Live | None = None
        self._started_s = clock.monotonic_s()
        self._said_s = -math.inf
        self._said_step = 0
        self._said = ""
        self._said_stall = ""

    def __enter__(self) -> Self:
        self._started_s = self._clock.monotonic_s()
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, state: RunState, services: Mapping[str, str], *, stall: str = "") -> None:
        """Show how things stand.

        Args:
            state: What the run's topics say.
            services: Each process and how it is, such as ``pid 4711, 1 restart``.
            stall: What a run that stands still waits for; empty while it goes on.
        """
        elapsed_s = self._clock.monotonic_s() - self._started_s
        if self._live is not None:
            self._live.update(self._frame(state, services, elapsed_s, stall), refresh=True)
            return
        if self._is_due(state, elapsed_s):
            self._said_s, self._said_step = elapsed_s, len(state.steps)
            self._said = stage_text(state)
            self._say(line(state, self._steps, elapsed_s))
        if stall != self._said_stall:
            self._said_stall = stall
            self._say(f"[{duration(elapsed_s):>11}]  {stall or 'goes on'}")

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _is_due(self, state: RunState, elapsed_s: float) -> bool:
        num_steps, quiet_s = len(state.steps), elapsed_s - self._said_s
        if quiet_s >= SILENCE_S:
            return True
        is_other_stage = stage_text(state) != self._said
        made = num_steps - self._said_step
        return is_other_stage or (quiet_s >= LINE_S and made >= max(1, self._steps // LINES))

    def _frame(
        self, state: RunState, services: Mapping[str, str], elapsed_s: float, stall: str
    ) -> RenderableType:
        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="dim", no_wrap=True)
        facts.add_column(overflow="fold")
        for name, text in frame_facts(state, has_sparks=self._has_sparks()):
            facts.add_row(name, text)
        if stall:
            facts.add_row("stands still", Text(stall, style="bold"))
        return Group(
            Text(f"{self._title}   {duration(elapsed_s)}", style="bold"),
            self._progress(state),
            facts,
            _service_table(services),
        )

    def _progress(self, state: RunState) -> Table:
        num_steps = len(state.steps)
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            ProgressBar(total=self._steps, completed=num_steps, width=40),
            f"{num_steps:,}/{self._steps:,} steps",
            time_left(state, self._steps),
        )
        return bar

    def _has_sparks(self) -> bool:
        return self._console.encoding.lower().startswith("utf")


def stage_text(state: RunState) -> str:
    """What the run is waiting for or doing, as a constant phrase."""
    if state.is_final:
        is_scoring = bool(state.evaluations) and not state.is_evaluated
        return "scoring the last version" if is_scoring else "done"
    if not state.versions:
        return "waiting for the first weights"
    if state.closed:
        return "no more requests: training what is left"
    return "training" if state.steps else "waiting for the first batch"


def line(state: RunState, steps: int, elapsed_s: float) -> str:
    """How things stand in one line of constant format."""
    samples_rate, _ = recent_rates(state)
    median, maximum = recent_staleness(state)
    shown = [
        f"[{duration(elapsed_s):>11}]",
        f"step {len(state.steps)}/{steps}",
        f"reward {number(recent_reward(state))}",
        f"accuracy {number(_accuracy(state))}",
        f"staleness {'-' if median is None else f'{median}/{maximum}'}",
        f"{samples_rate:.0f} samples/s",
        f"dropped {state.events['dropped']}",
        stage_text(state),
    ]
    return "  ".join(shown)


def frame_facts(state: RunState, *, has_sparks: bool) -> list[tuple[str, str]]:
    """Rows of the frame: name and text."""
    samples_rate, tokens_rate = recent_rates(state)
    rewards = [step.reward for step in state.steps]
    trend = f"  {sparkline(rewards)}" if has_sparks else ""
    return [
        ("now", stage_text(state)),
        ("reward", number(recent_reward(state)) + trend),
        ("accuracy", accuracy_text(state)),
        ("staleness", staleness_text(*recent_staleness(state))),
        ("speed", f"{samples_rate:,.0f} samples/s, {tokens_rate:,.0f} tokens/s"),
        ("groups", f"{state.events['trained']:,} trained, {len(state.waiting):,} waiting"),
        ("dropped", counts_text(state.drops)),
        ("trainer", trainer_text(state)),
    ]


def recent_reward(state: RunState) -> float | None:
    """Mean reward over the last steps; None before the first."""
    rewards = [step.reward for step in state.steps]
    window = window_of(len(rewards))
    means = moving_mean(rewards[-window:], window)
    return means[-1] if means else None


def recent_staleness(state: RunState) -> tuple[int | None, int | None]:
    """Median and largest staleness of the groups that the newest versions were made of."""
    window = window_of(len(state.steps))
    recent = sum(
        (counts for _, counts in sorted(state.staleness.items())[-window:]), Counter[int]()
    )
    return quantile(recent, 0.5), max(recent, default=None)


def recent_rates(state: RunState) -> tuple[float, float]:
    """Samples and trained tokens per second over the last steps; 0 before the first."""
    window = window_of(len(state.steps))
    found = rates(list(state.versions.values())[-window - 1 :], window)
    return (found[-1].samples, found[-1].tokens) if found else (0.0, 0.0)


def trainer_text(state: RunState) -> str:
    """Where the trainer's time went over the last steps, in one line."""
    window = window_of(len(state.steps))
    recent = list(state.versions.values())[-window - 1 :]
    if len(recent) < 2:
        return f"100% {LABELS['waiting_for_rollouts']}" if recent else "starting"
    return shares_text(time_share(recent[1:], recent[-1].at_s - recent[0].at_s))


def accuracy_text(state: RunState) -> str:
    """The newest held-out accuracy and the first, with their versions."""
    last = state.last_evaluation
    if last is None:
        return "-"
    first = state.evaluations[min(state.evaluations)]
    text = f"{number(last.mean_at_k)} at {last.requested_version}"
    since = f" (from {number(first.mean_at_k)} at {first.requested_version})"
    return text + (since if first is not last else "")


def time_left(state: RunState, steps: int) -> str:
    """How long the steps that are left take at the pace of the last ones; empty if unknown."""
    recent = state.steps[-window_of(len(state.steps)) - 1 :]
    left = steps - len(state.steps)
    if len(recent) < 2 or left <= 0 or state.is_final:
        return ""
    each_s = (recent[-1].at_s - recent[0].at_s) / (len(recent) - 1)
    return f"about {duration(left * each_s)} left" if each_s > 0 else ""


def sparkline(values: list[float]) -> str:
    """A series as a row of at most 40 bars, each the mean of equally many neighbors."""
    if not values:
        return ""
    size = math.ceil(len(values) / NUM_SPARKS)
    means = [moving_mean(values[i : i + size], size)[-1] for i in range(0, len(values), size)]
    finite = [mean for mean in means if math.isfinite(mean)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(
        SPARKS[round((mean - low) * scale)] if math.isfinite(mean) else " " for mean in means
    )


def _accuracy(state: RunState) -> float | None:
    last = state.last_evaluation
    return last.mean_at_k if last else None


def _service_table(services: Mapping[str, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, how in services.items():
        table.add_row(Text(name, style="dim"), how)
    return table
