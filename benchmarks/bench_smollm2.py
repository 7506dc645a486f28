"""Does SmolLM2-135M-Instruct learn from chat prompts, on two cores?

    python benchmarks/bench_smollm2.py [--seeds 0] [--steps N] [--json PATH]

``astra run examples/smollm2/run.toml``. Reward: mean over the samples of the first and of the last
five steps. Baseline of the last: the first.
"""

from pathlib import Path

import report
from astra_run import finished_run, required
from report import Row

from astra_stream.analysis.summary import Summary

QUESTION = "Does SmolLM2-135M-Instruct learn from chat prompts, on two cores?"
RUN_FILE = "examples/smollm2/run.toml"
MAX_REWARD_FIRST, MIN_REWARD_LAST = 0.35, 0.8


def main() -> None:
    arguments = report.parser(QUESTION)
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments.add_argument("--steps", type=int, help="instead of the run file's")
    arguments.add_argument("--runs", type=Path, help="keep the runs' directories here")
    options = arguments.parse_args()
    rows: list[Row] = []
    for seed in options.seeds:
        overrides = {"seed": seed} | ({"steps": options.steps} if options.steps else {})
        rows += rows_of(f"seed {seed}", finished_run(RUN_FILE, overrides, runs=options.runs))
    report.write(QUESTION, rows, json_path=options.json)


def rows_of(seed: str, summary: Summary) -> list[Row]:
    first, last = (required(summary, f"reward_{when}") for when in ("first", "last"))
    return [
        Row(name=f"{seed}, reward first", value=first, unit="", goal=MAX_REWARD_FIRST),
        Row(
            name=f"{seed}, reward last",
            value=last,
            unit="",
            baseline=first,
            goal=MIN_REWARD_LAST,
            higher_is_better=True,
        ),
        Row(name=f"{seed}, wall time", value=summary.wall_s, unit="s"),
        Row(name=f"{seed}, steps", value=float(summary.steps), unit="steps"),
    ]


if __name__ == "__main__":
    main()
