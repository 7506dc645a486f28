"""Runs ``astra run`` as a user does, and reads what it came to."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import report
from report import ROOT, Row

from astra_stream.analysis.summary import Summary, read_summary


def answer_by_seed(
    question: str,
    run_file: str,
    rows_of: Callable[[str, Summary], list[Row]],
    *,
    seeds: Sequence[int],
) -> None:
    """The whole of a benchmark that trains a run file once for each seed.

    Args:
        question: What it answers.
        run_file: Relative to the top of the checkout.
        rows_of: Rows of one seed's run.
        seeds: Those of the question.
    """
    arguments = report.parser(question)
    arguments.add_argument("--seeds", type=int, nargs="+", default=list(seeds))
    arguments.add_argument("--steps", type=int, help="instead of the run file's")
    arguments.add_argument("--runs", type=Path, help="keep the runs' directories here")
    options = arguments.parse_args()
    rows: list[Row] = []
    for seed in options.seeds:
        overrides = {"seed": seed} | ({"steps": options.steps} if options.steps else {})
        rows += rows_of(f"seed {seed}", finished_run(run_file, overrides, runs=options.runs))
    report.write(question, rows, json_path=options.json)


def reward_rows(seed: str, summary: Summary, *, max_first: float, min_last: float) -> list[Row]:
    """Mean reward of the first and of the last five steps."""
    first, last = (required(summary, f"reward_{when}") for when in ("first", "last"))
    return [
        Row(name=f"{seed}, reward first", value=first, unit="", goal=max_first),
        Row(
            name=f"{seed}, reward last",
            value=last,
            unit="",
            baseline=first,
            goal=min_last,
            higher_is_better=True,
        ),
    ]


def finished_run(
    run_file: str, overrides: Mapping[str, object], *, runs: Path | None = None
) -> Summary:
    """Train to the end and return the summary; what the command says goes to stderr.

    Args:
        run_file: Relative to the top of the checkout.
        overrides: Key of the run file to value.
        runs: Where the run's directory stays; None removes it, unless it fails.
    """
    directory = runs.absolute() if runs else Path(tempfile.mkdtemp(prefix="astra-bench-"))
    before = set(directory.glob("*"))
    argv = [sys.executable, "-m", "astra_stream.cli", "run", run_file]
    argv += ["--runs", str(directory), "--json"]
    for key, value in overrides.items():
        argv += ["--set", f"{key}={value}"]
    done = subprocess.run(argv, cwd=ROOT, stdout=sys.stderr, check=False)
    if done.returncode:
        raise SystemExit(
            f"astra run {run_file} must end with 0: got {done.returncode}. See {directory}."
        )
    (made,) = set(directory.glob("*")) - before
    summary = summary_of(made)
    if runs is None:
        shutil.rmtree(directory, ignore_errors=True)
    return summary


def summary_of(directory: Path) -> Summary:
    summary = read_summary(directory)
    if summary is None:
        raise SystemExit(f"{directory} must hold the summary of a finished run: got none")
    return summary


def required(summary: Summary, name: str) -> float:
    """A number of the summary that must be there."""
    value = getattr(summary, name)
    if value is None:
        raise SystemExit(f"the run must have {name}: got none after {summary.steps} steps")
    return float(value)
