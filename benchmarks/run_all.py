"""Run every benchmark, keep the answers, and name the rows that miss their goal.

    python benchmarks/run_all.py [--only NAME ...] [--quick] [--json PATH]

Each is a process of its own. The answers go into benchmarks/results/, one file for a day, a machine
and a commit, and the last answers into benchmarks/README.md. ``--quick`` shows within minutes that
all of them run; its numbers mean little and go into build/. Exit code: 1 where a benchmark fails, 0
otherwise, also where a goal is missed.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import report
from answers import Answer, cells, last_answers, missed_rows, read_results, update_document
from report import ROOT

HERE = Path(__file__).parent
NAMES = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
QUICK = {
    "chaos": ["--seeds", "0", "--kills", "10", "--steps", "40"],
    "batch_to_trainer": ["--rounds", "10"],
    "codec_fuzz": ["--inputs", "20000"],
    "engine_throughput": ["--prompts", "32", "--max-new-tokens", "16", "--rounds", "1"],
    "learning": ["--seeds", "0", "--steps", "10"],
    "recovery": ["--rounds", "1"],
    "repeated_work": ["--tasks", "100", "--rounds", "1"],
    "smollm2": ["--steps", "2"],
    "synchronous_reference": ["--seeds", "0", "--steps", "5"],
    "trainer_wait": ["--steps", "10", "--long-steps", "2"],
    "trajectory_codec": ["--seconds", "0.05"],
    "transaction_latency": ["--rounds", "40"],
    "transport": ["--seconds", "3"],
}
LONGEST_S = 2 * 3600


def main() -> None:
    arguments = argparse.ArgumentParser(description="Run every benchmark.")
    arguments.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME")
    arguments.add_argument("--quick", action="store_true", help="short and inexact")
    arguments.add_argument("--json", type=Path, help="where the answers go")
    options = arguments.parse_args()
    path = options.json or default_path(quick=options.quick)
    failed = []
    for name in options.only:
        answer = measured(name, QUICK.get(name, []) if options.quick else [])
        if answer is None:
            failed.append(name)
        else:
            keep(path, name, answer)
    print_answers(path, options.only)
    if not options.quick:
        update_document(HERE / "README.md", last_answers(path.parent))
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def default_path(*, quick: bool) -> Path:
    """``<date>_<machine>_<commit>.json``."""
    machine = report.machine()
    model = re.sub(r"[^a-z0-9]+", "-", machine["cpu"].lower()).strip("-") or "unknown"
    commit = report.as_object("", [])["commit"]
    name = f"{time.strftime('%Y-%m-%d')}_{model}-{machine['cores']}-cores_{commit}.json"
    return (ROOT / "build" / "benchmarks" if quick else HERE / "results") / name


def measured(name: str, arguments: Sequence[str]) -> Answer | None:
    """Run one benchmark; None where it fails."""
    command = [f"benchmarks/bench_{name}.py", *arguments]
    print(f"\n== {name}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "answer.json"
        argv = [sys.executable, *command, "--json", str(path)]
        try:
            done = subprocess.run(argv, cwd=ROOT, check=False, timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            return None
        if done.returncode or not path.exists():
            return None
        answer: Answer = json.loads(path.read_text())
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {**answer, "command": " ".join(["python", *command]), "at": at}


def keep(path: Path, name: str, answer: Answer) -> None:
    """Add an answer to the file, so that a later failure loses none."""
    kept = dict(sorted({**read_results(path), name: answer}.items()))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"benchmarks": kept}, indent=2) + "\n")


def print_answers(path: Path, names: Sequence[str]) -> None:
    """Every row, and last those that miss their goal."""
    found = {name: answer for name, answer in read_results(path).items() if name in names}
    lines = [
        [f"{name}: {row['name']}", *cells(row)]
        for name, answer in found.items()
        for row in answer["rows"]
    ]
    heads = ["row", "value", "unit", "baseline", "goal", ""]
    widths = [max(map(len, column)) for column in zip(heads, *lines, strict=True)]
    print(f"\nAnswers, also in {path}")
    for line in [heads, *lines]:
        print("  ".join(c.ljust(width) for c, width in zip(line, widths, strict=True)).rstrip())
    missed = missed_rows(found)
    print(f"\n{len(missed)} rows miss their goal" + "".join(f"\n  {line}" for line in missed))


if __name__ == "__main__":
    main()
