"""How long until a committed batch of 256 samples is tensors in the trainer?

    python benchmarks/bench_batch_to_trainer.py [--rounds 60] [--json PATH]

From the return of the writer's commit to the micro-batches of the whole batch. The trainer is the
real service in its own process, waiting as it does in a run; only its model is missing. A real
broker; all on two cores. Baseline: until another process has the same records as bytes.
"""

import dataclasses
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.queues import Queue

import numpy as np
import report
from embedded import CORES, NAMES, embedded_broker, open_codec, percentile
from report import Row
from standing_in import StandInBackend, train

from astra_stream.algorithms.packing import Batch, pack_batch
from astra_stream.log.interface import Reader
from astra_stream.log.kafka import KafkaLog
from astra_stream.records import BatchSlice
from astra_stream.records.batch import PADDING
from astra_stream.testing.builders import make_group
from astra_stream.training.micro_batches import cut_micro_batches

QUESTION = "How long until a committed batch of 256 samples is tensors in the trainer?"
GOAL_MS = 20.0
GROUPS, GROUP_SIZE = 32, 8
SIZES = {10: 256, 1000: 1024}
"""Tokens of a sample to tokens of a row."""
TOKENS_PER_MICRO_BATCH = 2048
VOCABULARY = 50_000
WARM_UP = 5
PATIENCE_S = 60.0


def main() -> None:
    arguments = report.parser(QUESTION)
    arguments.add_argument("--rounds", type=int, default=60, help="batches of each size")
    arguments.add_argument("--cores", type=int, default=CORES)
    options = arguments.parse_args()
    rows: list[Row] = []
    policies = [name_of(way, size) for size in SIZES for way in ("trainer", "bytes")]
    with embedded_broker(policies, cores=options.cores) as bootstrap:
        for size, row_tokens in SIZES.items():
            slices = make_slices(size, row_tokens)
            rounds = options.rounds + WARM_UP
            bytes_ms = to_reader_ms(bootstrap, size, slices, rounds)
            trainer_ms = to_trainer_ms(bootstrap, size, slices, rounds)
            rows += rows_of(size, trainer_ms, bytes_ms)
    report.write(QUESTION, rows, json_path=options.json)


def name_of(way: str, num_tokens: int) -> str:
    return f"{way}-{num_tokens}"


def rows_of(num_tokens: int, trainer_ms: list[float], bytes_ms: list[float]) -> list[Row]:
    return [
        Row(
            name=f"256 samples of {num_tokens} tokens, p{percent}",
            value=percentile(trainer_ms[WARM_UP:], percent),
            unit="ms",
            baseline=percentile(bytes_ms[WARM_UP:], percent),
            goal=GOAL_MS if percent == 50 else None,
        )
        for percent in (50, 95)
    ]


def to_trainer_ms(
    bootstrap: str, num_tokens: int, slices: Sequence[BatchSlice], rounds: int
) -> list[float]:
    """Each batch is written once the version before is announced: the trainer is then waiting."""
    policy = name_of("trainer", num_tokens)
    with process(run_trainer, bootstrap, policy) as arrivals, Sender(bootstrap, policy) as sender:
        announced = sender.log.assign([NAMES.weights(policy)])
        taken = []
        for number in range(rounds):
            require_message(announced)
            taken.append(sender.milliseconds(slices, number, arrivals))
        require_message(announced)
        sender.send(last_slices(policy), rounds)
        announced.close()
    return taken


def to_reader_ms(
    bootstrap: str, num_tokens: int, slices: Sequence[BatchSlice], rounds: int
) -> list[float]:
    policy = name_of("bytes", num_tokens)
    counts = {"num_slices": len(slices), "rounds": rounds}
    with (
        process(run_reader, bootstrap, policy, **counts) as arrivals,
        Sender(bootstrap, policy) as sender,
    ):
        arrivals.get(timeout=PATIENCE_S)
        return [sender.milliseconds(slices, number, arrivals) for number in range(rounds)]


class Sender:
    """Writes batches of one policy, each in one transaction."""

    def __init__(self, bootstrap: str, policy: str) -> None:
        self.log = KafkaLog(bootstrap)
        self._policy = policy
        self._codec = open_codec()
        self._writer = self.log.writer(NAMES.group("sender", policy))

    def __enter__(self) -> "Sender":
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        self.log.close()

    def milliseconds(
        self, slices: Sequence[BatchSlice], number: int, arrivals: "Queue[float]"
    ) -> float:
        """From the return of the commit to the arrival."""
        committed_s = self.send(slices, number)
        return (arrivals.get(timeout=PATIENCE_S) - committed_s) * 1e3

    def send(self, slices: Sequence[BatchSlice], number: int) -> float:
        """Write a batch that trains version ``number``; return when it was committed."""
        batch_id = f"{self._policy}/{number}"
        values = [
            self._codec.encode(
                dataclasses.replace(
                    one, policy=self._policy, batch_id=batch_id, trains_version=number
                )
            )
            for one in slices
        ]
        with self._writer.transaction() as txn:
            for value in values:
                txn.write(NAMES.batches(self._policy), batch_id.encode(), value)
        return time.monotonic()


@contextmanager
def process(
    target: Callable[..., None], *arguments: str, **counts: int
) -> "Iterator[Queue[float]]":
    """Run ``target(queue, ...)`` in a process of its own, which must end by itself."""
    context = multiprocessing.get_context("spawn")
    arrivals: Queue[float] = context.Queue()
    child = context.Process(target=target, args=(arrivals, *arguments), kwargs=counts, daemon=True)
    child.start()
    yield arrivals
    child.join(PATIENCE_S)
    assert child.exitcode == 0, f"the other process must end in order: got {child.exitcode}"


def run_trainer(arrivals: "Queue[float]", bootstrap: str, policy: str) -> None:
    def on_step(batch: Batch) -> None:
        cut_micro_batches(batch, tokens_per_micro_batch=TOKENS_PER_MICRO_BATCH)
        arrivals.put(time.monotonic())

    log = KafkaLog(bootstrap)
    train(log, policy, StandInBackend(on_step))
    log.close()


def run_reader(
    arrivals: "Queue[float]", bootstrap: str, policy: str, *, num_slices: int, rounds: int
) -> None:
    log = KafkaLog(bootstrap)
    reader = log.assign([NAMES.batches(policy)])
    reader.poll(0.5)
    arrivals.put(time.monotonic())
    for _ in range(rounds):
        for _ in range(num_slices):
            require_message(reader)
        arrivals.put(time.monotonic())
    reader.close()
    log.close()


def require_message(reader: Reader) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not reader.poll(0.5, max_messages=1):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"a record must come within {PATIENCE_S} s: got none")


def make_slices(num_tokens: int, row_tokens: int) -> list[BatchSlice]:
    prompt_tokens = max(1, num_tokens // 4)
    rewards = [float(index % 2) for index in range(GROUP_SIZE)]
    groups = [
        make_group(
            *rewards,
            group_id=f"bench/main/{number:08d}",
            prompt_tokens=prompt_tokens,
            reply_tokens=num_tokens - prompt_tokens,
        )
        for number in range(GROUPS)
    ]
    advantages = np.ones(GROUPS * GROUP_SIZE, np.float32)
    slices = pack_batch(
        groups,
        batch_id="main/0",
        policy="main",
        trains_version=0,
        row_tokens=row_tokens,
        sample_columns={"advantages": advantages},
    )
    rng = np.random.default_rng(0)
    return [with_random_tokens(one, rng) for one in slices]


def with_random_tokens(one: BatchSlice, rng: np.random.Generator) -> BatchSlice:
    """Ids of a large vocabulary: those of built groups would compress too well."""
    tokens = rng.integers(0, VOCABULARY, one.tokens.shape, dtype=np.int32)
    return dataclasses.replace(one, tokens=np.where(one.sample_ids == PADDING, 0, tokens))


def last_slices(policy: str) -> list[BatchSlice]:
    return pack_batch(
        [],
        batch_id=f"{policy}/0",
        policy=policy,
        trains_version=0,
        row_tokens=256,
        sample_columns={"advantages": np.zeros(0, np.float32)},
        last=True,
    )


if __name__ == "__main__":
    main()
