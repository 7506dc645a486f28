"""Is anything lost or done twice while a run's processes are struck at random?

    python benchmarks/bench_chaos.py [--seeds 0 1 2 3 4] [--kills 200] [--json PATH]

``astra chaos`` on the arithmetic example with two workers, once for each seed, as ``make chaos``
does it: SIGKILL, SIGTERM, and pauses that outlast a session, of services, broker and store. Then
the audit, with every batch trained once more from the model and all hashes compared.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import report
from report import ROOT, Row

QUESTION = "Is anything lost or done twice while a run's processes are struck at random?"
MOST_S = 1800.0
NUM_WORKERS, STEPS = 2, 300


def main() -> None:
    arguments = report.parser(QUESTION)
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    arguments.add_argument("--kills", type=int, default=200)
    arguments.add_argument("--gap", type=float, default=3.0, help="mean seconds between two")
    arguments.add_argument("--steps", type=int, default=STEPS)
    options = arguments.parse_args()
    rows: list[Row] = []
    for seed in options.seeds:
        found = struck(
            [
                *("--kills", str(options.kills), "--seed", str(seed), "--gap", str(options.gap)),
                *("--set", f"steps={options.steps}"),
            ]
        )
        rows += rows_of(f"seed {seed}", found, options.kills)
        # What is measured so far stays where a later seed fails.
        report.write(QUESTION, rows, json_path=options.json)


def struck(arguments: Sequence[str]) -> dict[str, Any]:
    argv = [sys.executable, "-m", "astra_stream.cli", "chaos", "examples/arithmetic/run.toml"]
    argv += ["--json", "--set", f"rollout.workers={NUM_WORKERS}", *arguments]
    with tempfile.TemporaryDirectory(prefix="astra-bench-") as runs:
        done = subprocess.run(
            [*argv, "--runs", runs], cwd=ROOT, stdout=subprocess.PIPE, check=False
        )
    if not done.stdout:
        raise SystemExit(f"astra chaos must end with a finding: got exit code {done.returncode}.")
    return json.loads(done.stdout)


def rows_of(name: str, found: dict[str, Any], kills: int) -> list[Row]:
    played, again = found["samples"], found["episodes_played_again"]
    return [
        Row(
            name=f"{name}: strikes",
            value=found["kills"],
            unit="",
            goal=kills,
            higher_is_better=True,
        ),
        Row(name=f"{name}: run and audit", value=found["wall_s"], unit="s", goal=MOST_S),
        Row(name=f"{name}: versions", value=found["versions"], unit=""),
        Row(name=f"{name}: samples", value=played, unit=""),
        Row(name=f"{name}: lost", value=found["lost"], unit="", goal=0),
        Row(name=f"{name}: twice", value=found["duplicated"], unit="", goal=0),
        Row(name=f"{name}: violations", value=len(found["violations"]), unit="", goal=0),
        Row(
            name=f"{name}: hashes that differ",
            value=int(not found["hashes_equal"]),
            unit="",
            goal=0,
        ),
        Row(name=f"{name}: episodes played again", value=again / max(1, played), unit="share"),
        Row(name=f"{name}: batches trained again", value=found["batches_trained_again"], unit=""),
    ]


if __name__ == "__main__":
    main()
