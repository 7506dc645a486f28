"""How long until a killed process does useful work again?

    python benchmarks/bench_recovery.py [--rounds 5] [--gap 10] [--json PATH]

Trains the arithmetic example with two workers and kills every service and server in turn, one at a
time, ``--gap`` seconds apart; work is the next record that the role writes (see
``astra_stream/analysis/recovery.py``), so waiting for something to do is in it. Then kills only the
trainer, for several values of ``checkpoint.every``: what it trains again grows with it. Then only
the broker, each time between the positions and the commit of a transaction of another service, to
the next work of that service. Each run is audited, its batches trained once more.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import report
from report import ROOT, Row

from astra_stream.cli.chaos import ChaosRun
from astra_stream.cli.run import new_directory, write_run_file
from astra_stream.cli.validation import validate_run
from astra_stream.config import load_run
from astra_stream.local.broker import NAME as BROKER
from astra_stream.local.chaos import Plan, Strike

QUESTION = "How long until a killed process does useful work again?"
RUN_FILE = ROOT / "examples" / "arithmetic" / "run.toml"
BROKER_GOAL_S = 30.0
CHECKPOINTS = (1, 10, 1000)
NUM_SERVICES = 7
STEPS_PER_S = 1.0
"""Steps of a run that lasts a little longer than its strikes, on two fast cores."""


def main() -> None:
    arguments = report.parser(QUESTION)
    arguments.add_argument("--rounds", type=int, default=5, help="kills of each process")
    arguments.add_argument("--gap", type=float, default=10.0, help="seconds between two kills")
    options = arguments.parse_args()
    everyone = in_turn(options.rounds, options.gap)
    found = struck(everyone, num_strikes=9 * options.rounds, gap_s=options.gap)
    rows = [
        row
        for name, times in found["back_at_work_s"].items()
        for row in rows_of(name, times, goal_s=BROKER_GOAL_S if name == BROKER else None)
    ]
    rows += audit_rows("every process in turn", found)
    for every in CHECKPOINTS:
        found = struck(
            in_turn(options.rounds, options.gap, only="train"),
            num_strikes=options.rounds,
            gap_s=options.gap,
            overrides=[f"policies.main.checkpoint.every={every}"],
        )
        name = f"train, checkpoint every {every}"
        rows += rows_of(name, found["back_at_work_s"]["train"])
        repeated = found["batches_trained_again"] / options.rounds
        rows.append(Row(name=f"{name}: trained again at a start", value=repeated, unit="batches"))
        rows += audit_rows(name, found)
    found = struck(
        in_transactions(options.rounds, options.gap),
        num_strikes=NUM_SERVICES * options.rounds,
        gap_s=options.gap,
        # So that the evaluator has a transaction to be caught in.
        overrides=["evaluate.every=5"],
    )
    for name, times in found["back_at_work_s"].items():
        rows += rows_of(name, times, goal_s=BROKER_GOAL_S)
    rows += audit_rows("the broker in transactions", found)
    report.write(QUESTION, rows, json_path=options.json)


def in_transactions(rounds: int, gap_s: float) -> Plan:
    def plan(services: Sequence[str], _servers: Sequence[str]) -> list[Strike]:
        return [
            Strike(after_s=gap_s, name=BROKER, kind="kill", during=name)
            for _ in range(rounds)
            for name in services
        ]

    return plan


def in_turn(rounds: int, gap_s: float, *, only: str = "") -> Plan:
    def plan(services: Sequence[str], servers: Sequence[str]) -> list[Strike]:
        names = [only] if only else [*services, *servers]
        return [Strike(after_s=gap_s, name=n, kind="kill") for _ in range(rounds) for n in names]

    return plan


def struck(
    plan: Plan, *, num_strikes: int, gap_s: float, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    steps = int((num_strikes + 1) * gap_s * STEPS_PER_S)
    config = load_run(RUN_FILE, [f"steps={steps}", "rollout.workers=2", *overrides])
    _, prompts = validate_run(config, file=RUN_FILE.name)
    with tempfile.TemporaryDirectory(prefix="astra-bench-") as runs:
        directory = new_directory(Path(runs), config.run)
        write_run_file(config, directory)
        found = ChaosRun(config, directory, plan).train(prompts)
        shutil.rmtree(directory, ignore_errors=True)
    return found


def rows_of(name: str, times: Mapping[str, float], *, goal_s: float | None = None) -> list[Row]:
    return [
        Row(name=f"{name}: {key}", value=times[key], unit="s", goal=goal_s)
        for key in ("p50", "p95", "max")
    ]


def audit_rows(name: str, found: Mapping[str, Any]) -> list[Row]:
    violations = Row(name=f"{name}: violations", value=len(found["violations"]), unit="", goal=0)
    kills = Row(name=f"{name}: kills", value=found["kills"], unit="")
    return [kills, violations]


if __name__ == "__main__":
    main()
