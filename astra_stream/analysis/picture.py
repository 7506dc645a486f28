"""The picture of a run: what it learned, how fresh its samples were, how fast it was, and why.

Colours are those of Okabe and Ito, which every kind of color vision tells apart.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astra_stream.analysis.run_state import RunState
from astra_stream.analysis.series import (
    WAITS,
    moving_mean,
    quantile,
    rates,
    staleness_bins,
    time_bins,
    time_share,
    window_of,
)
from astra_stream.analysis.summary import summarise
from astra_stream.analysis.wording import LABELS, duration, number, staleness_text
from astra_stream.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, SKY, GREEN, ORANGE, VERMILLION = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00"
INK, FAINT, GRID = "#333333", "#8A8A8A", "#E6E6E6"
PART_COLORS = {
    "waiting_for_rollouts": SKY,
    "step": BLUE,
    "export": GREEN,
    "publish_wait": ORANGE,
    "other": "#BBBBBB",
}
MAX_BARS = 50
STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10.5,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "round",
}


def draw(state: RunState, path: Path, *, title: str, max_staleness: int | None = None) -> None:
    """Draw a run into a PNG of 1,950 by 1,350 pixels.

    Args:
        state: What the run's topics say; it may be unfinished, or have no step yet.
        path: File to write.
        title: Stands on top.
        max_staleness: Bound to mark; versions.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError:
        raise ConfigError(
            "the picture of a run needs the package 'matplotlib': got none installed. "
            'Run: pip install "astra-stream[train]".'
        ) from None
    with rc_context(STYLE):
        layout = ConstrainedLayoutEngine(
            w_pad=0.15, h_pad=0.1, wspace=0.05, hspace=0.05, rect=(0, 0, 1, 0.915)
        )
        figure = Figure(figsize=(13, 9), layout=layout)
        FigureCanvasAgg(figure)
        figure.text(0.012, 0.965, title, fontsize=16, fontweight="bold", va="center")
        figure.text(0.012, 0.93, subtitle(state), fontsize=11, color=FAINT, va="center")
        axes = figure.subplots(2, 2)
        _draw_reward(axes[0, 0], state)
        _draw_staleness(axes[0, 1], state, max_staleness)
        _draw_throughput(axes[1, 0], state)
        _draw_time(axes[1, 1], state)
        figure.savefig(path, dpi=150, format="png")


def subtitle(state: RunState) -> str:
    """What the run came to, in one line."""
    if not state.steps:
        return "no step yet"
    s = summarise(state, run="", policy="")
    parts = [
        f"{s.steps:,} steps and {s.samples:,} samples in {duration(s.training_s)}",
        f"reward {number(s.reward_first)} to {number(s.reward_last)}",
    ]
    if s.accuracy_after is not None:
        parts.append(f"accuracy {number(s.accuracy_before)} to {number(s.accuracy_after)}")
    return "   ·   ".join([*parts, f"staleness {staleness_text(s.staleness_p50, s.staleness_max)}"])


def _draw_reward(axes: "Axes", state: RunState) -> None:
    axes.set_title("Reward and held-out accuracy")
    axes.set_xlabel("step")
    axes.set_ylabel("mean reward, accuracy")
    steps = state.steps
    numbers = [step.version.number for step in steps]
    rewards = [step.reward for step in steps]
    window = window_of(len(steps))
    axes.plot(numbers, rewards, ".", color=BLUE, alpha=0.28, markersize=5, label="reward of a step")
    axes.plot(
        numbers, moving_mean(rewards, window), color=BLUE, label=f"reward, mean of {window} steps"
    )
    scored = [(n, e.mean_at_k) for n, e in sorted(state.evaluations.items())]
    if scored:
        axes.plot(
            *zip(*scored, strict=True),
            "o-",
            color=VERMILLION,
            markersize=6,
            markeredgecolor="white",
            clip_on=False,
            label="held-out accuracy",
        )
        _label_point(axes, scored[0], "left")
        if len(scored) > 1:
            _label_point(axes, scored[-1], "right")
    values = [v for v in (*rewards, *(score for _, score in scored)) if math.isfinite(v)]
    if all(0 <= value <= 1 for value in values):
        axes.set_ylim(0, 1.07)
    if values:
        axes.legend(loc="lower right")
    _fit_steps(axes, numbers)


def _label_point(axes: "Axes", point: tuple[float, float], side: str) -> None:
    axes.annotate(
        number(point[1]),
        point,
        xytext=(6, -16) if side == "left" else (-2, 9),
        textcoords="offset points",
        ha=side,
        color=VERMILLION,
        fontsize=9.5,
        fontweight="bold",
    )


def _draw_staleness(axes: "Axes", state: RunState, bound: int | None) -> None:
    axes.set_title("Staleness of trained groups")
    axes.set_xlabel("step")
    axes.set_ylabel("staleness (versions)")
    bins = staleness_bins(state.staleness, MAX_BARS)
    edges = [first - 0.5 for first, _, _ in bins] + [last + 0.5 for _, last, _ in bins[-1:]]
    medians = [quantile(counts, 0.5) or 0 for _, _, counts in bins]
    maxima = [max(counts) for _, _, counts in bins]
    if bins:
        axes.stairs(maxima, edges, baseline=medians, fill=True, color=SKY, alpha=0.3, linewidth=0)
        axes.stairs(maxima, edges, baseline=None, color=SKY, linewidth=2, label="largest")
        axes.stairs(medians, edges, baseline=None, color=BLUE, linewidth=2.4, label="median")
    if bound is not None:
        axes.axhline(bound, color=INK, linestyle=(0, (4, 4)), linewidth=1.2, label=f"bound {bound}")
    if bins:
        axes.legend(loc="upper left", ncols=3)
    top = max([*maxima, bound or 0, 1])
    axes.set_ylim(-0.06 * top, top * 1.3)
    axes.locator_params(axis="y", integer=True)
    _fit_steps(axes, [bins[0][0], bins[-1][1]] if bins else [])


def _draw_throughput(axes: "Axes", state: RunState) -> None:
    axes.set_title("Throughput")
    axes.set_xlabel("time since the first version (min)")
    axes.set_ylabel("samples/s", color=BLUE)
    axes.tick_params(axis="y", labelcolor=BLUE)
    tokens_axes = axes.twinx()
    tokens_axes.grid(visible=False)
    tokens_axes.set_ylabel("trained tokens/s", color=VERMILLION)
    tokens_axes.tick_params(axis="y", labelcolor=VERMILLION, color=FAINT)
    versions = list(state.versions.values())
    found = rates(versions, window_of(len(versions)))
    minutes = [rate.minutes for rate in found]
    samples = [rate.samples for rate in found]
    tokens = [rate.tokens for rate in found]
    axes.plot(minutes, samples, color=BLUE)
    tokens_axes.plot(minutes, tokens, color=VERMILLION, linewidth=1.5, linestyle=(0, (5, 1.5)))
    tokens_axes.spines["right"].set_visible(True)
    # The two run alike: unequal heights keep them from covering one another.
    axes.set_ylim(0, 1.1 * max(samples, default=1.0) or 1)
    tokens_axes.set_ylim(0, 1.9 * max(tokens, default=1.0) or 1)
    axes.set_xlim(0, max(minutes, default=1.0))


def _draw_time(axes: "Axes", state: RunState) -> None:
    axes.set_title("Where the trainer's time went")
    axes.set_xlabel("step")
    axes.set_ylabel("share of time (%)")
    versions = list(state.versions.values())
    whole = time_share(state.steps, state.training_s)
    bins = time_bins(versions, MAX_BARS)
    left = [first for first, _, _ in bins]
    width = [last - first + 1 for first, last, _ in bins]
    floor = [0.0] * len(bins)
    for part in (*WAITS, "other"):
        heights = [100 * shares.get(part, 0.0) for _, _, shares in bins]
        axes.bar(
            [place - 0.5 for place in left],
            heights,
            width=width,
            bottom=floor,
            align="edge",
            color=PART_COLORS[part],
            linewidth=0,
            label=f"{LABELS[part]} {whole.get(part, 0.0):.0%}",
        )
        floor = [low + height for low, height in zip(floor, heights, strict=True)]
    axes.set_ylim(0, 100)
    if bins:
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(-0.02, -0.14),
            ncols=3,
            handlelength=1.0,
            columnspacing=1.4,
            handletextpad=0.5,
        )
    _fit_steps(axes, [left[0], bins[-1][1]] if bins else [])


def _fit_steps(axes: "Axes", numbers: Sequence[int]) -> None:
    low, high = (min(numbers), max(numbers)) if numbers else (0, 1)
    axes.set_xlim(min(0, low), high + max(0.5, 0.01 * (high - low)))
    axes.locator_params(axis="x", integer=True)
