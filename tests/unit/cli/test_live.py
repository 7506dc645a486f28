import io
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from astra_stream.analysis import RunState
from astra_stream.cli.live import LiveView, line, sparkline, stage_text, time_left
from astra_stream.records import Evaluation, Outcome, PolicyVersion, WeightAnnouncement


class HandClock:
    """Shows the time that a test sets."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def now_s(self) -> float:
        return self.at_s

    def monotonic_s(self) -> float:
        return self.at_s


def announce(state: RunState, number: int, *, kind: str = "snapshot") -> None:
    announcement = WeightAnnouncement(
        policy="main",
        version=PolicyVersion(0, number),
        kind=kind,
        root_hash="0" * 64,
        model_fingerprint="0" * 64,
        tensors=(),
        objects=(),
        train_metrics={"reward_mean": number / 10, "step_seconds": 0.5} if number else {},
        num_trained_samples=8 * number,
        num_trained_tokens=24 * number,
    )
    state.fold(announcement, at_s=2.0 * number)


def evaluate(state: RunState, number: int, *, final: bool = False) -> None:
    version = PolicyVersion(0, number)
    evaluation = Evaluation(
        policy="main",
        suite="held_out",
        requested_version=version,
        min_version=version,
        max_version=version,
        num_prompts=1,
        num_samples=1,
        k=1,
        mean_at_k=0.75,
        pass_at_k=0.75,
        temperature=0.0,
        mean_length_tokens=1.0,
        final=final,
    )
    state.fold(evaluation, at_s=2.0 * number)


def state_after(num_steps: int) -> RunState:
    state = RunState()
    for number in range(num_steps + 1):
        announce(state, number)
    return state


def view_of(clock: HandClock, *, steps: int = 100) -> tuple[LiveView, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=False, width=40)
    return LiveView("sums", steps=steps, clock=clock, console=console), out


def test_a_plain_line_has_a_constant_format() -> None:
    state = state_after(5)
    evaluate(state, 0)
    assert line(state, 100, 62.0) == (
        "[ 1 min 02 s]  step 5/100  reward 0.300  accuracy 0.750  staleness -  "
        "4 samples/s  dropped 0  training"
    )


def test_a_plain_line_is_one_line_whatever_the_width() -> None:
    view, out = view_of(HandClock())
    with view:
        view.update(state_after(5), {})
    assert len(out.getvalue().splitlines()) == 1


def test_lines_come_after_ten_seconds_and_a_tenth_of_the_steps() -> None:
    clock = HandClock()
    view, out = view_of(clock, steps=100)
    with view:
        for at_s, num_steps in [(0, 1), (9, 30), (11, 30), (12, 35), (22, 39), (23, 40), (34, 50)]:
            clock.at_s = float(at_s)
            view.update(state_after(num_steps), {})
    assert re.findall(r"step (\d+)/", out.getvalue()) == ["1", "30", "40", "50"]


def test_a_run_that_stands_still_says_so_every_minute() -> None:
    clock = HandClock()
    view, out = view_of(clock)
    with view:
        for at_s in range(0, 150, 5):
            clock.at_s = float(at_s)
            view.update(RunState(), {})
    assert out.getvalue().count("waiting for the first weights") == 3


def test_what_a_run_that_stands_still_waits_for_is_said_once_and_its_end_too() -> None:
    clock = HandClock()
    view, out = view_of(clock)
    with view:
        for at_s, stall in enumerate(["", "it waits", "it waits", "it waits longer", "", ""]):
            clock.at_s = float(at_s)
            view.update(state_after(0), {}, stall=stall)
    assert [said.split("]  ")[1] for said in out.getvalue().splitlines()[1:]] == [
        "it waits",
        "it waits longer",
        "goes on",
    ]


def test_a_frame_says_what_a_run_that_stands_still_waits_for() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=110, height=40, color_system=None)
    with LiveView("sums", steps=100, clock=HandClock(), console=console) as view:
        view.update(state_after(1), {}, stall="version 2 waits")
    assert "stands still" in out.getvalue()
    assert "version 2 waits" in out.getvalue()


def test_another_stage_is_said_at_once() -> None:
    clock = HandClock()
    view, out = view_of(clock)
    with view:
        view.update(RunState(), {})
        view.update(state_after(0), {})
        view.update(state_after(1), {})
    assert len(out.getvalue().splitlines()) == 3


def test_a_terminal_gets_a_frame_with_everything() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=110, height=40, color_system=None)
    state = state_after(20)
    evaluate(state, 0)
    outcome = {"prompt_id": "p", "policy": "main", "stage": "pipeline"}
    state.fold(Outcome(group_id="a", event="dropped", reason="uniform", **outcome), at_s=9.0)
    state.fold(Outcome(group_id="b", event="completed", **outcome), at_s=9.0)
    with LiveView("sums", steps=100, clock=HandClock(), console=console) as view:
        view.update(state, {"trainer": "pid 12, 1 restart"})
    shown = out.getvalue()
    for text in (
        "20/100 steps",
        "0.750 at v0",
        "1 uniform",
        "1 waiting",
        "4 samples/s",
        "pid 12, 1 restart",
        "25% step",
        "about 2 min 40 s left",
    ):
        assert text in shown


def test_the_stage_follows_the_run() -> None:
    state = RunState()
    assert stage_text(state) == "waiting for the first weights"
    announce(state, 0)
    evaluate(state, 0)
    assert stage_text(state) == "waiting for the first batch"
    announce(state, 1)
    assert stage_text(state) == "training"
    closed = {"group_id": "", "prompt_id": "", "policy": "main", "stage": "scheduler"}
    state.fold(Outcome(event="closed", **closed), at_s=3.0)
    assert stage_text(state) == "no more requests: training what is left"
    announce(state, 1, kind="final")
    assert stage_text(state) == "scoring the last version"
    evaluate(state, 1, final=True)
    assert stage_text(state) == "done"


def test_a_run_without_evaluation_is_done_when_it_is_final() -> None:
    state = state_after(1)
    announce(state, 1, kind="final")
    assert stage_text(state) == "done"


def test_the_time_left_is_that_of_the_last_steps() -> None:
    assert time_left(state_after(10), 20) == "about 20.0 s left"
    assert time_left(state_after(20), 20) == ""
    assert time_left(RunState(), 20) == ""


@given(st.lists(st.floats(allow_infinity=False, width=32), max_size=200))
def test_a_sparkline_fits_and_never_fails(values: list[float]) -> None:
    assert len(sparkline(values)) <= 40


@pytest.mark.parametrize(
    ("values", "bars"), [([], ""), ([1.0, 1.0], "▁▁"), ([0.0, math.nan, 1.0], "▁ █")]
)
def test_a_sparkline_goes_from_the_least_to_the_most(values: list[float], bars: str) -> None:
    assert sparkline(values) == bars
