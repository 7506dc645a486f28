"""How long does a trajectory take to write and to read, as Avro?

    python benchmarks/bench_trajectory_codec.py [--json PATH]

Each trajectory is another one (ids, tokens, sampling seed); what a run repeats is repeated. Reading
includes every check of the record. Baselines: the same fields as msgpack with bytes, without any
check and without records; and Avro arrays of numbers by fastavro.

The goals are missed: a library writes and reads the bytes, and it takes about half a microsecond
for every field, whatever its length. That is three quarters of writing and half of reading. The
rest of writing makes its dict; the rest of reading is the conversion and, as much again, the
records' constructors with their checks. A longer trajectory adds what copying its bytes takes.
"""

import dataclasses
import io
import itertools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fastavro
import msgpack
import numpy as np
import report
from report import Row

from astra_stream.log.codec import Codec
from astra_stream.log.schemas import load_schemas
from astra_stream.records import Sampling, Segment, Trajectory, Turn, VersionSpan

SCHEMAS = Path(__file__).parents[1] / "schemas"
QUESTION = "How long does a trajectory take to write and to read, as Avro?"
GOAL_TOKENS = 8192
GOALS_US = {"write": 10.0, "read": 5.0}
SAMPLES = 16


def main() -> None:
    arguments = report.parser(QUESTION)
    arguments.add_argument("--seconds", type=float, default=1.0, help="measuring time of each row")
    options = arguments.parse_args()
    rows = list(itertools.chain(*(measure(n, options.seconds) for n in (1024, 8192, 32768))))
    report.write(QUESTION, rows, json_path=options.json)


def measure(num_tokens: int, seconds: float) -> list[Row]:
    codec = Codec(SCHEMAS)
    made = [make_trajectory(number, num_tokens) for number in range(SAMPLES)]
    written = [codec.encode(trajectory) for trajectory in made]
    plain = [as_plain(trajectory) for trajectory in made]
    packed = [msgpack.packb(value) for value in plain]
    schema, listed = array_schema(), [as_lists(value) for value in plain]
    arrays = [avro_bytes(schema, value) for value in listed]
    at_goal = num_tokens == GOAL_TOKENS

    def row(way: str, name: str, us: float, baseline: float | None = None) -> Row:
        goal = GOALS_US[way]
        return Row(
            name=f"{way} {num_tokens} tokens, {name}",
            value=us,
            unit="us",
            baseline=baseline,
            goal=goal if at_goal and baseline is not None else None,
        )

    pack_us = fastest_us(msgpack.packb, plain, seconds)
    unpack_us = fastest_us(msgpack.unpackb, packed, seconds)
    return [
        row("write", "codec", fastest_us(codec.encode, made, seconds), pack_us),
        row("write", "msgpack of a dict of bytes", pack_us),
        row(
            "write",
            "Avro arrays",
            fastest_us(lambda value: avro_bytes(schema, value), listed, seconds),
        ),
        row("read", "codec", fastest_us(codec.decode, written, seconds), unpack_us),
        row("read", "msgpack of a dict of bytes", unpack_us),
        row(
            "read",
            "Avro arrays",
            fastest_us(
                lambda data: fastavro.schemaless_reader(io.BytesIO(data), schema, None),
                arrays,
                seconds,
            ),
        ),
    ]


def fastest_us(call: Callable[[Any], object], values: Sequence[Any], seconds: float) -> float:
    """Microseconds of one call in the fastest round: other work on the machine counts least."""
    fastest = float("inf")
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        begin = time.perf_counter()
        for value in values:
            call(value)
        fastest = min(fastest, time.perf_counter() - begin)
    return fastest / len(values) * 1e6


def make_trajectory(number: int, num_tokens: int) -> Trajectory:
    rng = np.random.default_rng(number)
    prompt_tokens = num_tokens // 4
    mask = np.ones(num_tokens, np.uint8)
    mask[:prompt_tokens] = 0
    segment = Segment(
        tokens=rng.integers(0, 50_000, num_tokens, dtype=np.int32),
        loss_mask=mask,
        behavior_logprobs=-rng.random(num_tokens, dtype=np.float32) * mask,
        spans=(VersionSpan(prompt_tokens, 0, 100 + number), VersionSpan(num_tokens - 9, 0, 130)),
        turns=(Turn(prompt_tokens, 0.0, ""),),
        finish_reason="stop",
    )
    return Trajectory(
        trajectory_id=f"arithmetic/main/{number:08d}/3/main",
        group_id=f"arithmetic/main/{number:08d}",
        sample_index=3,
        group_size=8,
        policy="main",
        prompt_id=f"chain_sum/{number}/0123456789abcdef",
        environment="verifiable",
        answer=str(number),
        episode_id=f"arithmetic/main/{number:08d}/3",
        segments=(segment,),
        reward=float(number % 2),
        raw_outcome=float(number % 2),
        sampling=Sampling(max_new_tokens=1024, seed=number),
        tokenizer_hash="a" * 64,
        model_fingerprint="b" * 64,
        engine='{"use":"transformers","slots":64,"dtype":"float32"}',
        started_at_s=1.7e9 + number,
        finished_at_s=1.7e9 + number + 2.5,
        worker="rollout-0",
    )


def as_plain(value: Any) -> Any:
    """Dataclasses to dicts, arrays to bytes."""
    if dataclasses.is_dataclass(value):
        return {f.name: as_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        items = [as_plain(item) for item in value]
        return items if names is None else dict(zip(names, items, strict=True))
    return dict(value) if isinstance(value, dict) else value


ARRAYS = {"tokens": "<i4", "loss_mask": "u1", "behavior_logprobs": "<f4"}


def as_lists(trajectory: dict[str, Any]) -> dict[str, Any]:
    segments = [
        segment | {n: np.frombuffer(segment[n], dtype).tolist() for n, dtype in ARRAYS.items()}
        for segment in trajectory["segments"]
    ]
    return trajectory | {"segments": segments}


def array_schema() -> Any:
    """The trajectory's schema with Avro arrays in the place of bytes."""
    schema = next(s for s in load_schemas(SCHEMAS) if s.record == "trajectory" and s.is_current)
    items = {"<i4": "int", "u1": "int", "<f4": "float"}

    def with_arrays(part: dict[str, Any]) -> dict[str, Any]:
        is_array = part.get("logicalType") == "ndarray"
        return {"type": "array", "items": items[part["dtype"]]} if is_array else part

    text = json.dumps(schema.definition)
    return fastavro.parse_schema(json.loads(text, object_hook=with_arrays))


def avro_bytes(schema: Any, value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


if __name__ == "__main__":
    main()
