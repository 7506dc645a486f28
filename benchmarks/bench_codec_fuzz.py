"""Does the codec refuse or rightly read a million hostile inputs, and how long does one take?

    python benchmarks/bench_codec_fuzz.py [--inputs N] [--seed S] [--json PATH]

Mutations of an encoded record of every schema, current and earlier: flipped, cut, joined, claiming
gigabytes, stretched, made up, of another schema, zeroed. An input that raises anything but
``RecordError``, that is read as another record than it is written as, or that takes more memory or
time than its length allows ends the benchmark with its bytes. The baseline is decoding the records
as they are.
"""

import time
from collections.abc import Sequence

from report import ROOT, Row, parser, write

from astra_stream.declarations import declared
from astra_stream.log.codec import Codec
from astra_stream.testing.fuzzing import LONGEST_S, fuzz

QUESTION = "Does the codec refuse or rightly read a million hostile inputs, and how quickly?"
BASELINE_ROUNDS = 2000


def main() -> None:
    options = parser(QUESTION)
    options.add_argument("--inputs", type=int, default=1_000_000)
    options.add_argument("--seed", type=int, default=1)
    arguments = options.parse_args()
    golden = ROOT / "tests" / "data" / "golden"
    samples = [path.read_bytes() for path in sorted(golden.glob("*/*.bin"))]
    codec = Codec(declared("schemas"))
    began_s = time.perf_counter()
    report = fuzz(codec, samples, num_inputs=arguments.inputs, seed=arguments.seed)
    took_s = time.perf_counter() - began_s
    accepted = report.inputs - report.refused
    slowest_ms = 1e3 * report.slowest_s
    rows = [
        Row(name="inputs", value=report.inputs, unit="inputs"),
        Row(name="refused", value=report.refused, unit="inputs"),
        Row(name="read, and the same again from their bytes", value=accepted, unit="inputs"),
        Row(name="anything else", value=0, unit="inputs", goal=0),
        Row(
            name="slowest",
            value=slowest_ms,
            unit="ms",
            baseline=1e3 * slowest_undamaged_s(codec, samples),
            goal=1e3 * LONGEST_S,
        ),
        Row(name="largest peak of memory", value=report.peak_bytes / 1024, unit="KiB"),
        Row(name="inputs a second, mutation included", value=report.inputs / took_s, unit="1/s"),
    ]
    write(QUESTION, rows, json_path=arguments.json)


def slowest_undamaged_s(codec: Codec, samples: Sequence[bytes]) -> float:
    """CPU time of the slowest decoding of a record as it is."""
    slowest_s = 0.0
    for _ in range(BASELINE_ROUNDS):
        for data in samples:
            began_s = time.thread_time()
            codec.decode(data)
            slowest_s = max(slowest_s, time.thread_time() - began_s)
    return slowest_s


if __name__ == "__main__":
    main()
