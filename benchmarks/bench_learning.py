"""Does the demo learn, for three seeds?

    python benchmarks/bench_learning.py [--seeds 0 1 2] [--steps N] [--json PATH]

``astra run examples/arithmetic/run.toml`` once per seed. Accuracy: greedy, on held-out prompts.
Reward: mean over the samples of the first and of the last five steps. Baseline of what a run ends
with: what it began with.
"""

from astra_run import answer_by_seed, required, reward_rows
from report import Row

from astra_stream.analysis.summary import Summary

QUESTION = "Does the demo learn, for three seeds?"
RUN_FILE = "examples/arithmetic/run.toml"
MAX_ACCURACY_BEFORE, MIN_ACCURACY_AFTER = 0.8, 0.95
MAX_WALL_S = 240.0


def rows_of(seed: str, summary: Summary) -> list[Row]:
    before, after = (required(summary, f"accuracy_{when}") for when in ("before", "after"))
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
        *reward_rows(seed, summary, max_first=0.45, min_last=0.75),
        Row(name=f"{seed}, wall time", value=summary.wall_s, unit="s", goal=MAX_WALL_S),
        Row(name=f"{seed}, steps", value=float(summary.steps), unit="steps"),
    ]


if __name__ == "__main__":
    answer_by_seed(QUESTION, RUN_FILE, rows_of, seeds=[0, 1, 2])
