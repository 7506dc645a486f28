"""How many 18 KB trajectories a second go through the durable log, encoded and decoded?

    python benchmarks/bench_transport.py [--seconds 60] [--json PATH]

A real broker, a writer and a reader, three processes on two cores, all at once. Writing: acks=all,
zstd, transactions of 2,000 records; reading: read_committed. The writer encodes every record as
Avro, and the reader decodes and checks it. Baseline: the same bytes, encoded beforehand and not
decoded, through a new broker. Every record has a number, so that losses and repeats are seen.
"""

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
import report
from bench_trajectory_codec import make_trajectory
from embedded import CORES, NAMES, embedded_broker, open_codec
from report import Row

from astra_stream.log.codec import Codec
from astra_stream.log.interface import Message, Writer
from astra_stream.log.kafka import KafkaLog
from astra_stream.records import Trajectory

QUESTION = "How many 18 KB trajectories a second go through the durable log, encoded and decoded?"
GOAL = 8000.0
TOKENS = 2048
SAMPLES = 256
"""Different trajectories: more than a compressed batch of records holds."""
TOPIC = NAMES.trajectories("main")
END = b"end"
SILENCE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    bootstrap: str
    seconds: float
    records_per_transaction: int
    encoded: bool
    """Whether Avro is written and read, or bytes alone."""


@dataclass(frozen=True, kw_only=True)
class Written:
    count: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Read:
    numbers: np.ndarray
    """[N] number of each record read, in order."""
    seconds: float
    """From the first record to the last."""


def main() -> None:
    arguments = report.parser(QUESTION)
    arguments.add_argument("--seconds", type=float, default=60.0, help="of writing, each way")
    arguments.add_argument("--records-per-transaction", type=int, default=2000)
    arguments.add_argument("--cores", type=int, default=CORES)
    options = arguments.parse_args()
    found = []
    for encoded in (False, True):
        with embedded_broker(cores=options.cores) as bootstrap:
            plan = Plan(
                bootstrap=bootstrap,
                seconds=options.seconds,
                records_per_transaction=options.records_per_transaction,
                encoded=encoded,
            )
            found.append(write_and_read(plan))
    report.write(QUESTION, rows(*found), json_path=options.json)


def write_and_read(plan: Plan) -> tuple[Written, Read]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as processes:
        reading = processes.submit(read, plan)
        writing = processes.submit(write, plan)
        return writing.result(), reading.result()


def rows(plain: tuple[Written, Read], encoded: tuple[Written, Read]) -> list[Row]:
    made = [
        Row(
            name=name,
            value=value,
            unit="1/s",
            baseline=baseline,
            goal=GOAL,
            higher_is_better=True,
        )
        for name, value, baseline in (
            ("encoded and written", written_per_s(encoded[0]), written_per_s(plain[0])),
            ("read and decoded", read_per_s(encoded[1]), read_per_s(plain[1])),
        )
    ]
    times_read = np.bincount(encoded[1].numbers, minlength=encoded[0].count)
    size = len(open_codec().encode(make_trajectory(0, TOKENS)))
    return [
        *made,
        Row(name="lost", value=float((times_read == 0).sum()), unit="records", goal=0),
        Row(name="read twice", value=float((times_read > 1).sum()), unit="records", goal=0),
        Row(name="records in all", value=float(encoded[0].count), unit="records"),
        Row(name="size of one", value=float(size), unit="bytes"),
    ]


def written_per_s(written: Written) -> float:
    return written.count / written.seconds


def read_per_s(found: Read) -> float:
    return len(found.numbers) / found.seconds


def write(plan: Plan) -> Written:
    log = KafkaLog(plan.bootstrap)
    writer = log.writer(NAMES.group("writer"))
    next_value = values(encoded=plan.encoded)
    count = 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < plan.seconds:
        with writer.transaction() as txn:
            for number in range(count, count + plan.records_per_transaction):
                txn.write(TOPIC, b"%d" % number, next_value(number))
        count += plan.records_per_transaction
    seconds = time.perf_counter() - begin
    write_end(writer, log.num_partitions(TOPIC))
    writer.close()
    log.close()
    return Written(count=count, seconds=seconds)


def values(*, encoded: bool) -> Callable[[int], bytes]:
    encode = open_codec().encode
    made = [make_trajectory(number, TOKENS) for number in range(SAMPLES)]
    if encoded:
        return lambda number: encode(made[number % SAMPLES])
    written = [encode(trajectory) for trajectory in made]
    return lambda number: written[number % SAMPLES]


def write_end(writer: Writer, num_partitions: int) -> None:
    with writer.transaction() as txn:
        for index in range(num_partitions):
            txn.write(TOPIC, END, b"", partition=index)


def read(plan: Plan) -> Read:
    log = KafkaLog(plan.bootstrap)
    reader = log.assign([TOPIC])
    number_of = decoded_number(open_codec()) if plan.encoded else key_number
    numbers: list[int] = []
    open_partitions = set(reader.assignment())
    first_s = last_s = heard_s = time.perf_counter()
    while open_partitions:
        messages = reader.poll(0.5)
        now_s = time.perf_counter()
        if not messages and now_s - heard_s > SILENCE_S:
            raise TimeoutError(f"a record must come within {SILENCE_S} s: got {len(numbers)}")
        heard_s = now_s if messages else heard_s
        first_s = first_s if numbers or not messages else now_s
        open_partitions -= {m.source for m in messages if m.key == END}
        before = len(numbers)
        numbers += [number_of(message) for message in messages if message.key != END]
        last_s = time.perf_counter() if len(numbers) > before else last_s
    reader.close()
    log.close()
    return Read(numbers=np.array(numbers), seconds=last_s - first_s)


def key_number(message: Message) -> int:
    return int(message.key or b"-1")


def decoded_number(codec: Codec) -> Callable[[Message], int]:
    def number_of(message: Message) -> int:
        trajectory = codec.decode_as(Trajectory, message.value or b"")
        assert len(trajectory.segments[0].tokens) == TOKENS
        return key_number(message)

    return number_of


if __name__ == "__main__":
    main()
