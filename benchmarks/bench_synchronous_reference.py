"""Does the reward curve at max_staleness = 0 match that of a synchronous loop?

    python benchmarks/bench_synchronous_reference.py [--seeds 0 1 2] [--steps N] [--json PATH]

For each seed, ``astra run examples/arithmetic/run.toml`` with ``max_staleness = 0`` and
``examples/synchronous_grpo.py``, one after the other. Values are mean rewards over the last ten
steps; the baseline is that of the synchronous loop.

The rule: the two means over the seeds differ by no more than the synchronous loop's own spread,
which is the largest of its values over the seeds less the smallest. It is applied to the mean over
the last ten steps, and to the mean over all of them. With one seed there is no spread and no goal.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import report
from astra_run import finished_run
from report import ROOT, Row

from astra_stream.cli.report import read_state
from astra_stream.cli.run_directory import run_file_of
from astra_stream.config import load_run

QUESTION = "Does the reward curve at max_staleness = 0 match that of a synchronous loop?"
RUN_FILE = "examples/arithmetic/run.toml"
LAST_STEPS = 10
Curve = list[float]
"""Mean reward of each step."""


def main() -> None:
    arguments = report.parser(QUESTION)
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments.add_argument("--steps", type=int, default=40)
    options = arguments.parse_args()
    pairs: list[tuple[Curve, Curve]] = []
    rows: list[Row] = []
    for seed in options.seeds:
        pair = astra_curve(options.steps, seed), synchronous_curve(options.steps, seed)
        pairs.append(pair)
        ours, theirs = map(end_of, pair)
        rows.append(
            Row(name=f"seed {seed}, reward at the end", value=ours, unit="", baseline=theirs)
        )
    rows.append(difference("difference at the end", pairs, end_of))
    rows.append(difference("difference over all steps", pairs, fmean))
    report.write(QUESTION, rows, json_path=options.json)


def astra_curve(steps: int, seed: int) -> Curve:
    """Evaluated only at both ends, so that nothing but training takes the workers' time."""
    overrides = {
        "seed": seed,
        "steps": steps,
        "policies.main.max_staleness": 0,
        "evaluate.every": steps,
    }
    with tempfile.TemporaryDirectory(prefix="astra-bench-") as runs:
        finished_run(RUN_FILE, overrides, runs=Path(runs))
        (directory,) = Path(runs).iterdir()
        state = read_state(load_run(run_file_of(directory)), directory)
    return [step.reward for step in state.steps]


def synchronous_curve(steps: int, seed: int) -> Curve:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "curve.json"
        argv = [sys.executable, "examples/synchronous_grpo.py", "--json", str(path)]
        argv += ["--steps", str(steps), "--seed", str(seed)]
        subprocess.run(argv, cwd=ROOT, stdout=sys.stderr, check=True)
        rewards: Curve = json.loads(path.read_text())["rewards"]
    return rewards


def end_of(curve: Curve) -> float:
    return fmean(curve[-LAST_STEPS:])


def difference(
    name: str, pairs: list[tuple[Curve, Curve]], value_of: Callable[[Curve], float]
) -> Row:
    """Distance of the means over seeds; the goal is the baseline's spread over seeds."""
    ours = [value_of(curve) for curve, _ in pairs]
    theirs = [value_of(curve) for _, curve in pairs]
    spread = max(theirs) - min(theirs)
    return Row(
        name=name,
        value=abs(fmean(ours) - fmean(theirs)),
        unit="",
        goal=spread if len(pairs) > 1 else None,
    )


if __name__ == "__main__":
    main()
