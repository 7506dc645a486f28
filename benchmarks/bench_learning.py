"""Does the demo learn, for three seeds?

    python benchmarks/bench_learning.py [--seeds 0 1 2] [--steps N] [--json PATH]

``astra run examples/arithmetic/run.toml`` once per seed. Accuracy: greedy, on held-out prompts.
Reward: mean over the samples of the first and of the last five steps. Baseline of what a run ends
with: what it began with.
"""

from pathlib import Path

import report
from astra_run import finished_run, required
from report import Row

from astra_stream.analysis.summary import Summary

QUESTION = "Does the demo learn, for three seeds?"
RUN_FILE = "examples/arithmetic/run.toml"
MAX_ACCURACY_BEFORE, MIN_ACCURACY_AFTER = 0.8, 0.95
MAX_REWARD_FIRST, MIN_REWARD_LAST = 0.45, 0.75
MAX_WALL_S = 240.0


def main() -> None:
    arguments = report.parser(QUESTION)
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments.add_argument("--steps", type=int, help="instead of the run file's")
    arguments.add_argument("--runs", type=Path, help="keep the runs' directories here")
    options = arguments.parse_args()
    rows: list[Row] = []
    for seed in options.seeds:
        overrides = {"seed": seed} | ({"steps": options.steps} if options.steps else {})
        summary = finished_run(RUN_FILE, overrides, runs=options.runs)
        rows += rows_of(f"seed {seed}", summary)
    report.write(QUESTION, rows, json_path=options.json)


def rows_of(seed: str, summary: Summary) -> list[Row]:
    before, after = (required(summary, f"accuracy_{when}") for when in ("before", "after"))
    first, last = (required(summary, f"reward_{when}") for when in ("first", "last"))
    return [
        Row(name=f"{seed}, accuracy before", value=before, unit="", goal=MAX_ACCURACY_BEFORE),
        Row(
            name=f"{seed}, accuracy after",
            value=after,
            unit="",
            baseline=before,
            goal=MIN_ACCURACY_AFTER,
            higher_is_better=True,
        ),
        Row(name=f"{seed}, reward first", value=first, unit="", goal=MAX_REWARD_FIRST),
        Row(
            name=f"{seed}, reward last",
            value=last,
            unit="",
            baseline=first,
            goal=MIN_REWARD_LAST,
            higher_is_better=True,
        ),
        Row(name=f"{seed}, wall time", value=summary.wall_s, unit="s", goal=MAX_WALL_S),
        Row(name=f"{seed}, steps", value=float(summary.steps), unit="steps"),
    ]


if __name__ == "__main__":
    main()
