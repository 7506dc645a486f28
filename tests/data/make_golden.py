"""Keep what the current schemas write: run after a change in ``schemas/``, commit what it adds.

    python tests/data/make_golden.py

For each record whose current schema has none yet it writes

- ``schemas/history/<record>/<fingerprint>.avsc``, the schema whole, so that later versions read it,
- ``tests/data/golden/<record>/<fingerprint>.bin``, a record in its bytes,
- ``tests/data/golden/<record>/<fingerprint>.json``, what has to come out of these bytes for ever.

It never changes a file that is there.
"""

import dataclasses
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "schemas"
GOLDEN = ROOT / "tests" / "data" / "golden"
sys.path.insert(0, str(ROOT))

from astra_stream.log.codec import Codec  # noqa: E402 - found through the line above
from astra_stream.log.schemas import load_schemas  # noqa: E402
from astra_stream.records import (  # noqa: E402
    BatchSlice,
    ChatMessage,
    DeadLetter,
    Evaluation,
    Extra,
    Group,
    GroupStatistics,
    MetricPoint,
    ObjectEntry,
    Outcome,
    PolicyNeed,
    PolicyVersion,
    Prompt,
    RolloutRequest,
    Sample,
    Sampling,
    Segment,
    TensorEntry,
    Trajectory,
    Turn,
    VersionSpan,
    WeightAnnouncement,
)


def main() -> None:
    codec, examples = Codec(SCHEMAS), example_records()
    for schema in load_schemas(SCHEMAS):
        if schema.is_current:
            name = f"{schema.record}/{schema.fingerprint.hex()}"
            data = codec.encode(examples[schema.record])
            _keep(SCHEMAS / "history" / f"{name}.avsc", _without_prose(schema.definition))
            _keep(GOLDEN / f"{name}.bin", data)
            _keep(GOLDEN / f"{name}.json", as_json(codec.decode(data)))


def as_json(record: Any) -> bytes:
    """A record in a form that a person can compare; numbers exactly, arrays with their dtype."""
    return (json.dumps(_plain(record), indent=1, ensure_ascii=False) + "\n").encode()


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "shape": value.shape, "values": value.ravel().tolist()}
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _without_prose(definition: Mapping[str, Any]) -> bytes:
    """What decides the bytes and their meaning, on one line."""
    text = json.dumps(definition, separators=(",", ":"))
    parsed = json.loads(
        text, object_hook=lambda part: {k: v for k, v in part.items() if k != "doc"}
    )
    return (json.dumps(parsed, separators=(",", ":")) + "\n").encode()


def _keep(path: Path, content: bytes) -> None:
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    print(f"added {path.relative_to(ROOT)}")  # noqa: T201


def example_records() -> dict[str, Any]:
    """A record of each kind with every field away from its default."""
    trajectory = _trajectory()
    return {
        "prompt": _prompt(),
        "rollout_request": _request(),
        "trajectory": trajectory,
        "group": _group(trajectory),
        "batch_slice": _batch_slice(),
        "weight_announcement": _announcement(),
        "outcome": Outcome(
            group_id="main/7",
            prompt_id="sums/12/ab",
            policy="main",
            event="dropped",
            stage="drop_uniform",
            reason="uniform",
            rewards=np.array([1.0, 1.0], "<f4"),
            lengths=np.array([3, 5], "<i4"),
            min_version=2,
            max_version=3,
            trained_version=4,
            staleness=2,
            num_issued=9,
            at_s=1.7e9 + 0.5,
        ),
        "evaluation": Evaluation(
            policy="main",
            suite="held_out",
            requested_version=PolicyVersion(0, 10),
            min_version=PolicyVersion(0, 10),
            max_version=PolicyVersion(1, 11),
            num_prompts=500,
            num_samples=499,
            k=1,
            mean_at_k=0.75,
            pass_at_k=0.8,
            temperature=0.0,
            mean_length_tokens=3.5,
            num_invalid=1,
            final=True,
            at_s=1.7e9,
        ),
        "metric_point": MetricPoint(
            series="staleness_versions",
            value=float("nan"),
            step=3,
            policy="main",
            service="trainer",
            labels={"kind": "p50"},
            at_s=1.7e9,
        ),
        "dead_letter": DeadLetter(
            topic="run.trajectories.main",
            partition=3,
            offset=81244,
            service="pipeline",
            stage="decode",
            error_kind="SchemaError",
            error="cut off",
            stack="Traceback",
            key=b"key",
            value=bytes(range(256)),
            headers={"schema": b"\1\2"},
            at_s=1.7e9,
            num_bytes=20_000_000,
        ),
    }


def _prompt() -> Prompt:
    return Prompt(
        prompt_id="sums/12/ab",
        split="held_out",
        messages=(
            ChatMessage(role="system", content="Add."),
            ChatMessage(role="user", content="1 + 2 = é?"),
        ),
        environment="verifiable",
        answer="3",
        fields={"difficulty": "2"},
        dataset="sums",
        features={"digits": "[1, 1]"},
    )


def _sampling() -> Sampling:
    return Sampling(
        temperature=0.7, top_p=0.9, top_k=50, max_new_tokens=8, stop=("\n", "END"), seed=-5
    )


def _request() -> RolloutRequest:
    return RolloutRequest(
        request_id="main/7/2/1",
        group_id="main/7",
        prompt=_prompt(),
        policies=(PolicyNeed(policy="main", min_version=PolicyVersion(1, 300)),),
        first_sample=2,
        num_samples=3,
        group_size=8,
        sampling=_sampling(),
        attempt=1,
        stage="pilot",
        propensity=0.25,
        data_epoch=2,
        issued_at_s=1.7e9,
        deadline_s=60.0,
        purpose="evaluate",
    )


def _trajectory() -> Trajectory:
    first = Segment(
        segment_id=0,
        tokens=np.array([1, 70000, 3, 4], "<i4"),
        loss_mask=np.array([0, 1, 1, 0], "u1"),
        behavior_logprobs=np.array([0.0, -0.25, -1.5, 0.0], "<f4"),
        spans=(VersionSpan(1, 0, 41), VersionSpan(2, 1, 42)),
        turns=(Turn(1, 0.5, "s0"),),
        finish_reason="stop",
    )
    second = dataclasses.replace(
        first, segment_id=1, parent=0, parent_offset=2, agent="solver", finish_reason="length"
    )
    return Trajectory(
        trajectory_id="main/7/2/main",
        group_id="main/7",
        sample_index=2,
        group_size=8,
        attempt=1,
        policy="main",
        prompt_id="sums/12/ab",
        environment="verifiable",
        answer="3",
        prompt_fields={"difficulty": "2"},
        purpose="evaluate",
        stage="pilot",
        propensity=0.25,
        data_epoch=2,
        episode_id="main/7/2",
        segments=(first, second),
        reward=0.75,
        raw_outcome=1.0,
        reward_parts={"format": 0.5},
        reward_valid=False,
        status="truncated",
        error_kind="Timeout",
        error="took 60 s",
        retryable=True,
        sampling=_sampling(),
        tokenizer_hash="a" * 64,
        model_fingerprint="b" * 64,
        engine='{"use":"transformers"}',
        on_swap="recompute_kv",
        started_at_s=1.7e9,
        finished_at_s=1.7e9 + 2.5,
        worker="rollout-3",
        extras={"values": Extra(dtype="<f4", shape=(1,), axis="sample", data=b"\0\0\x80?")},
    )


def _group(trajectory: Trajectory) -> Group:
    other = dataclasses.replace(trajectory, trajectory_id="main/7/3/main", sample_index=3)
    return Group(
        group_id="main/7",
        prompt_id="sums/12/ab",
        policy="main",
        trajectories=(trajectory, other),
        statistics=GroupStatistics(mean=0.5, std=0.25, ddof=1, num_valid=2, all_equal=True),
        min_version=PolicyVersion(0, 41),
        max_version=PolicyVersion(1, 42),
    )


def _batch_slice() -> BatchSlice:
    sample = Sample(
        trajectory_id="main/7/2/main",
        group_id="main/7",
        prompt_id="sums/12/ab",
        agent="solver",
        row=1,
        start=1,
        length_tokens=2,
        reward=0.75,
        raw_outcome=1.0,
        group_mean=0.5,
        group_std=0.25,
        truncated=True,
        temperature=0.7,
        propensity=0.25,
        staleness=2,
        replay_use=1,
        weight=0.5,
    )
    places = np.arange(6, dtype="<i4").reshape(2, 3)
    return BatchSlice(
        batch_id="main/43",
        policy="main",
        index=1,
        count=2,
        trains_version=43,
        last=True,
        num_rows=2,
        row_tokens=3,
        tokens=places + 70000,
        positions=places % 3,
        sample_ids=np.array([[-1, -1, -1], [-1, 0, 0]], "<i4"),
        loss_mask=np.array([[0, 0, 0], [0, 0, 1]], "u1"),
        behavior_logprobs=np.array([[0, 0, 0], [0, 0, -1.25]], "<f4"),
        versions=np.array([[-1, -1, -1], [-1, -1, 41]], "<i4"),
        samples=(sample,),
        token_columns={"token_rewards": np.array([[0, 0, 0], [0, 0, 2]], "<f4")},
        sample_columns={"advantages": np.array([-0.5], "<f4")},
    )


def _announcement() -> WeightAnnouncement:
    return WeightAnnouncement(
        policy="main",
        version=PolicyVersion(1, 118),
        kind="delta",
        base=PolicyVersion(0, 117),
        base_hash="c" * 64,
        root_hash="d" * 64,
        model_fingerprint="e" * 64,
        tensors=(TensorEntry(name="w", dtype="BF16", shape=(2, 3), xxh3="f" * 32),),
        objects=(
            ObjectEntry(
                key="weights/main/1/00000118/delta-0.zst",
                size_bytes=10,
                sha256="0" * 64,
                raw_size_bytes=12,
            ),
        ),
        changed_fraction=0.01,
        num_bytes=10,
        train_metrics={"loss": -0.5},
        num_trained_samples=256,
        num_trained_tokens=4096,
        batch_id="main/117",
        checkpoint="checkpoints/main/118",
    )


if __name__ == "__main__":
    main()
