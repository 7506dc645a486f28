"""How long does a small transaction take, from begin to commit?

    python benchmarks/bench_transaction_latency.py [--rounds 400] [--json PATH]

One small record and the reader's position, on a real broker on two cores. Baseline, in the same
run: Nagle's algorithm on, as the client has it by default. Rounds of 20 alternate between settings.
"""

import time
from collections.abc import Mapping

import report
from embedded import CORES, NAMES, embedded_broker, open_codec, percentile
from report import Row

from astra_stream.log.interface import Committed, Partition
from astra_stream.log.kafka import KafkaLog
from astra_stream.records import MetricPoint

QUESTION = "How long does a small transaction take, from begin to commit?"
GOAL_MS = 6.0
NAGLE = {"socket.nagle.disable": "false"}
WAYS: dict[str, Mapping[str, str]] = {
    "ours": {},
    "with Nagle": NAGLE,
    "with Nagle and 100 ms between retries": {**NAGLE, "retry.backoff.ms": "100"},
}
IN_A_ROW = 20
WARM_UP = 10
READ_TOPIC, WRITE_TOPIC = NAMES.batches("main"), NAMES.metrics


def main() -> None:
    arguments = report.parser(QUESTION)
    arguments.add_argument("--rounds", type=int, default=400, help="transactions of each setting")
    arguments.add_argument("--cores", type=int, default=CORES)
    options = arguments.parse_args()
    with embedded_broker(cores=options.cores) as bootstrap:
        clients = {
            name: Client(bootstrap, f"latency-{index}", security)
            for index, (name, security) in enumerate(WAYS.items())
        }
        for client in clients.values():
            client.commit_times_ms(WARM_UP)
        taken_ms: dict[str, list[float]] = {name: [] for name in WAYS}
        for _ in range(max(1, options.rounds // IN_A_ROW)):
            for name, client in clients.items():
                taken_ms[name] += client.commit_times_ms(IN_A_ROW)
        for client in clients.values():
            client.close()
    report.write(QUESTION, rows(taken_ms), json_path=options.json)


def rows(taken_ms: Mapping[str, list[float]]) -> list[Row]:
    def row(name: str, percent: int, **others: float) -> Row:
        value = percentile(taken_ms[name], percent)
        return Row(name=f"p{percent}, {name}", value=value, unit="ms", **others)

    ours, nagle, default = WAYS
    return [
        row(ours, 50, baseline=percentile(taken_ms[nagle], 50), goal=GOAL_MS),
        row(ours, 95, baseline=percentile(taken_ms[nagle], 95)),
        row(nagle, 50),
        row(nagle, 95),
        row(default, 50),
        row(default, 95),
    ]


class Client:
    def __init__(self, bootstrap: str, name: str, security: Mapping[str, str]) -> None:
        self.log = KafkaLog(bootstrap, security=security)
        self.reader = self.log.assign([READ_TOPIC], group=NAMES.group(name))
        self.writer = self.log.writer(NAMES.group(name))
        self.value = open_codec().encode(
            MetricPoint(
                series="latency", value=1.0, step=1, policy="main", service="bench", at_s=1.7e9
            )
        )

    def commit_times_ms(self, rounds: int) -> list[float]:
        position = {Partition(READ_TOPIC, 0): Committed(0)}
        taken = []
        for _ in range(rounds):
            begin = time.perf_counter()
            with self.writer.transaction() as txn:
                txn.write(WRITE_TOPIC, b"latency", self.value)
                txn.commit_offsets(self.reader, position)
            taken.append((time.perf_counter() - begin) * 1e3)
        return taken

    def close(self) -> None:
        self.reader.close()
        self.writer.close()
        self.log.close()


if __name__ == "__main__":
    main()
