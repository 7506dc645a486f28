"""What share of the trainer's time goes to waiting on anything but rollouts?

    python benchmarks/bench_trainer_wait.py [--run DIR] [--steps 40] [--json PATH]

First for the arithmetic example: of a finished run's directory, or of a new run of ``--steps``
steps. Then for steps that take 5 s: the trainer's service with a backend that blocks so long, all
batches there beforehand, log and store in memory. A share is of the time from the first version to
the last; the rest of it is steps and waiting for rollouts, which are shown as well.
"""

import threading
from collections.abc import Mapping
from pathlib import Path

import report
from astra_run import finished_run, summary_of
from bench_batch_to_trainer import last_slices
from embedded import NAMES, open_codec
from report import Row
from standing_in import StandInBackend, train

from astra_stream.algorithms.packing import Batch, pack_batch
from astra_stream.analysis.run_log import RunTail
from astra_stream.analysis.series import time_share
from astra_stream.clock import SystemClock
from astra_stream.log.memory import MemoryLog
from astra_stream.testing.builders import make_group

QUESTION = "What share of the trainer's time goes to waiting on anything but rollouts?"
RUN_FILE = "examples/arithmetic/run.toml"
EXAMPLE_GOAL, LONG_STEPS_GOAL = 0.10, 0.01
WAITS = ("publish_wait", "export", "other")
WORK = ("step", "waiting_for_rollouts")
POLICY = "main"


def main() -> None:
    arguments = report.parser(QUESTION)
    arguments.add_argument("--run", type=Path, metavar="DIR", help="a finished run")
    arguments.add_argument("--steps", type=int, default=40, help="of the new run without --run")
    arguments.add_argument("--long-steps", type=int, default=6, help="steps of --step-seconds")
    arguments.add_argument("--step-seconds", type=float, default=5.0)
    arguments.add_argument("--parameters", type=int, default=1_000_000, help="of the long steps")
    options = arguments.parse_args()
    summary = (
        summary_of(options.run) if options.run else finished_run(RUN_FILE, {"steps": options.steps})
    )
    long_steps = share_of_long_steps(
        options.long_steps, options.step_seconds, num_parameters=options.parameters
    )
    rows = [
        *rows_of(f"{summary.run}, {summary.steps} steps", summary.time_share, EXAMPLE_GOAL),
        *rows_of(f"steps of {options.step_seconds:g} s", long_steps, LONG_STEPS_GOAL),
    ]
    report.write(QUESTION, rows, json_path=options.json)


def rows_of(name: str, shares: Mapping[str, float], goal: float) -> list[Row]:
    waiting = sum(shares[part] for part in WAITS)
    return [
        Row(name=f"{name}: not step, not rollouts", value=waiting, unit="share", goal=goal),
        *(
            Row(name=f"{name}: {part}", value=shares[part], unit="share")
            for part in (*WAITS, *WORK)
        ),
    ]


def share_of_long_steps(
    num_steps: int, step_seconds: float, *, num_parameters: int
) -> Mapping[str, float]:
    log = MemoryLog(dict.fromkeys(topics(), 1))
    write_batches(log, num_steps)
    never = threading.Event()

    def on_step(batch: Batch) -> None:
        del batch
        never.wait(step_seconds)

    train(log, POLICY, StandInBackend(on_step, num_parameters=num_parameters))
    with RunTail(log, open_codec(), topics=NAMES, policy=POLICY, clock=SystemClock()) as tail:
        state = tail.catch_up()
    assert len(state.steps) == num_steps
    return time_share(state.steps, state.training_s)


def topics() -> list[str]:
    mine = [NAMES.batches(POLICY), NAMES.weights(POLICY)]
    return [*mine, NAMES.outcomes, NAMES.metrics, NAMES.evaluations]


def write_batches(log: MemoryLog, num_steps: int) -> None:
    encode = open_codec().encode
    groups = [make_group(1, 0, 0, 1, group_id=f"g{number}") for number in range(8)]
    writer = log.writer("batches")
    for number in range(num_steps):
        slices = pack_batch(
            groups,
            batch_id=f"{POLICY}/{number}",
            policy=POLICY,
            trains_version=number,
            row_tokens=256,
        )
        with writer.transaction() as txn:
            for one in slices:
                txn.write(NAMES.batches(POLICY), one.batch_id.encode(), encode(one))
    with writer.transaction() as txn:
        for one in last_slices(POLICY):
            txn.write(NAMES.batches(POLICY), one.batch_id.encode(), encode(one))
    writer.close()


if __name__ == "__main__":
    main()
