"""Does SmolLM2-135M-Instruct learn from chat prompts, on two cores?

    python benchmarks/bench_smollm2.py [--seeds 0] [--steps N] [--json PATH]

``astra run examples/smollm2/run.toml``. Reward: mean over the samples of the first and of the last
five steps. Baseline of the last: the first.
"""

from astra_run import answer_by_seed, reward_rows
from report import Row

from astra_stream.analysis.summary import Summary

QUESTION = "Does SmolLM2-135M-Instruct learn from chat prompts, on two cores?"
RUN_FILE = "examples/smollm2/run.toml"


def rows_of(seed: str, summary: Summary) -> list[Row]:
    return [
        *reward_rows(seed, summary, max_first=0.35, min_last=0.8),
        Row(name=f"{seed}, wall time", value=summary.wall_s, unit="s"),
        Row(name=f"{seed}, steps", value=float(summary.steps), unit="steps"),
    ]


if __name__ == "__main__":
    answer_by_seed(QUESTION, RUN_FILE, rows_of, seeds=[0])
