"""Runs ``astra run`` as a user does, and reads what it came to."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from report import ROOT

from astra_stream.analysis.summary import Summary, read_summary


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
