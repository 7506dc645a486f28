from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from astra_stream.errors import RecordError
from astra_stream.records import (
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
    Trajectory,
    VersionSpan,
    WeightAnnouncement,
)

V0 = PolicyVersion(0, 0)


def _segment(num_tokens: int = 4, *starts: int, mask: list[int] | None = None) -> Segment:
    return Segment(
        tokens=np.zeros(num_tokens, "<i4"),
        loss_mask=np.array(mask if mask is not None else [1] * num_tokens, "u1"),
        behavior_logprobs=np.zeros(num_tokens, "<f4"),
        spans=tuple(VersionSpan(start, 0, 10 + start) for start in starts),
    )


def _trajectory(*segments: Segment, **changes: Any) -> Trajectory:
    fields: dict[str, Any] = {
        "trajectory_id": "g/0/main",
        "group_id": "g",
        "sample_index": 0,
        "group_size": 2,
        "policy": "main",
        "prompt_id": "p",
        "episode_id": "e",
        "segments": segments,
        "reward": 1.0,
        "raw_outcome": 1.0,
        "sampling": Sampling(),
    }
    return Trajectory(**fields | changes)


def _prompt(text: str = "1+1?") -> Prompt:
    return Prompt(
        prompt_id="p",
        split="train",
        messages=(ChatMessage(role="user", content=text),),
        environment="",
        answer="2",
    )


def _request(**changes: Any) -> RolloutRequest:
    fields: dict[str, Any] = {
        "request_id": "g/0/0",
        "group_id": "g",
        "prompt": _prompt(),
        "policies": (PolicyNeed(policy="main", min_version=V0),),
        "first_sample": 0,
        "num_samples": 2,
        "group_size": 2,
        "sampling": Sampling(),
    }
    return RolloutRequest(**fields | changes)


def _group(**changes: Any) -> Group:
    fields: dict[str, Any] = {
        "group_id": "g",
        "prompt_id": "p",
        "policy": "main",
        "trajectories": (_trajectory(),),
        "statistics": GroupStatistics(0.0, 0.0, 0, 0, all_equal=True),
        "min_version": V0,
        "max_version": V0,
    }
    return Group(**fields | changes)


def _batch(**changes: Any) -> BatchSlice:
    table = np.zeros((2, 3), "<i4")
    fields: dict[str, Any] = {
        "batch_id": "main/0",
        "policy": "main",
        "index": 0,
        "count": 1,
        "trains_version": 0,
        "num_rows": 2,
        "row_tokens": 3,
        "tokens": table,
        "positions": table,
        "sample_ids": table,
        "loss_mask": table.astype("u1"),
        "behavior_logprobs": table.astype("<f4"),
        "versions": table,
        "samples": (_sample(),),
    }
    return BatchSlice(**fields | changes)


def _sample(**changes: Any) -> Sample:
    fields: dict[str, Any] = {
        "trajectory_id": "t",
        "group_id": "g",
        "prompt_id": "p",
        "row": 1,
        "start": 0,
        "length_tokens": 3,
        "reward": 1.0,
        "raw_outcome": 1.0,
        "group_mean": 0.5,
        "group_std": 0.5,
        "truncated": False,
        "temperature": 1.0,
        "staleness": 0,
    }
    return Sample(**fields | changes)


def _announcement(**changes: Any) -> WeightAnnouncement:
    fields: dict[str, Any] = {
        "policy": "main",
        "version": V0,
        "kind": "snapshot",
        "root_hash": "",
        "model_fingerprint": "",
        "tensors": (),
        "objects": (),
    }
    return WeightAnnouncement(**fields | changes)


def _outcome(**changes: Any) -> Outcome:
    fields = {"group_id": "g", "prompt_id": "p", "policy": "main", "event": "trained", "stage": "s"}
    return Outcome(**fields | changes)


def _evaluation(**changes: Any) -> Evaluation:
    fields: dict[str, Any] = {
        "policy": "main",
        "suite": "s",
        "requested_version": V0,
        "min_version": V0,
        "max_version": V0,
        "num_prompts": 1,
        "num_samples": 1,
        "k": 1,
        "mean_at_k": 1.0,
        "pass_at_k": 1.0,
        "temperature": 0.0,
        "mean_length_tokens": 1.0,
    }
    return Evaluation(**fields | changes)


def _letter(**changes: Any) -> DeadLetter:
    fields: dict[str, Any] = {
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "service": "s",
        "stage": "decode",
        "error_kind": "E",
        "error": "e",
        "stack": "",
        "key": b"",
        "value": b"",
    }
    return DeadLetter(**fields | changes)


ENTRY = ObjectEntry(key="k", size_bytes=-1, sha256="", raw_size_bytes=0)
NAN_COLUMN = np.full((2, 3), np.nan, "<f4")
REFUSED = [
    (lambda: replace(_prompt(), prompt_id=""), "prompt.prompt_id must not be empty"),
    (lambda: replace(_prompt(), split="test"), "prompt.split must be one of"),
    (lambda: _prompt(""), "prompt.messages must not be empty"),
    (lambda: Sampling(temperature=-1.0), "sampling.temperature must be at least 0.0: got -1.0"),
    (lambda: Sampling(top_k=-1), "sampling.top_k must be at least 0"),
    (lambda: Sampling(max_new_tokens=0), "sampling.max_new_tokens must be at least 1"),
    (lambda: _request(purpose="test"), "rollout_request.purpose must be one of"),
    (lambda: _request(stage="half"), "rollout_request.stage must be one of"),
    (lambda: _request(num_samples=0), "rollout_request.num_samples must be at least 1"),
    (lambda: _request(first_sample=-1), "rollout_request.first_sample must be at least 0"),
    (lambda: _request(first_sample=1), "rollout_request.group_size must be at least 3: got 2"),
    (
        lambda: _request(policies=(PolicyNeed(policy="a", min_version=PolicyVersion(0, -1)),)),
        "rollout_request.min_version must be at least 0: got -1",
    ),
    (lambda: _trajectory(status="lost"), "trajectory.status must be one of"),
    (lambda: _trajectory(reward=float("nan")), "trajectory.reward must be finite: got nan"),
    (lambda: _trajectory(raw_outcome=float("inf")), "trajectory.raw_outcome must be finite"),
    (lambda: _trajectory(sample_index=-1), "trajectory.sample_index must be at least 0"),
    (lambda: _trajectory(sample_index=2), "trajectory.group_size must be at least 3: got 2"),
    (lambda: _trajectory(group_id=""), "trajectory.group_id must not be empty"),
    (lambda: _segment(4, 4), "segment.spans.start must rise and stay below the 4 tokens: got 4"),
    (lambda: _segment(4, 2, 2), "must rise and stay below the 4 tokens: got 2 after 2"),
    (lambda: _segment(4, -1), "must rise and stay below the 4 tokens: got -1"),
    (lambda: _segment(4, -11), "segment.spans.number must be at least 0: got -1"),
    (lambda: _segment(4, mask=[1, 1, 1]), "segment.loss_mask must have 4 entries: got 3"),
    (
        lambda: Extra(dtype="<f4", shape=(2,), axis="token", data=b"1234"),
        "extra.data must have 8 bytes: got 4",
    ),
    (lambda: Extra(dtype="u1", shape=(0,), axis="row", data=b""), "extra.axis must be one of"),
    (
        lambda: Extra(dtype="6 1i", shape=(0,), axis="token", data=b""),
        "extra.dtype must be a little",
    ),
    (
        lambda: Extra(dtype=">f4", shape=(0,), axis="token", data=b""),
        "extra.dtype must .* got .>f4",
    ),
    (
        lambda: Extra(dtype="u1", shape=(2**40, 2**40), axis="token", data=b""),
        f"extra.data must have {2**80} bytes: got 0",
    ),
    (lambda: Extra(dtype="u1", shape=(-1, 0), axis="token", data=b""), "extra.shape must be at"),
    (lambda: _request(policies=()), "rollout_request.policies must be at least 1: got 0"),
    (lambda: _group(trajectories=()), "group.trajectories must be at least 1: got 0"),
    (lambda: _group(min_version=PolicyVersion(0, -1)), "group.min_version.number must be at least"),
    (lambda: _batch(count=0), "batch_slice.count must be at least 1: got 0"),
    (lambda: _batch(trains_version=-1), "batch_slice.trains_version must be at least 0"),
    (lambda: _batch(num_rows=3), r"batch_slice.tokens must have \(3, 3\) entries: got \(2, 3\)"),
    (lambda: _batch(behavior_logprobs=NAN_COLUMN), "batch_slice.behavior_logprobs.0. must be"),
    (lambda: _batch(token_columns={"x": NAN_COLUMN}), r"token_columns\['x'\]\[0\] must be finite"),
    (
        lambda: _batch(sample_columns={"x": np.zeros(2, "<f4")}),
        r"sample_columns\['x'\] must have 1 entries: got 2",
    ),
    (lambda: _batch(samples=(_sample(row=2),)), "samples must lie inside .* 't' at row 2"),
    (lambda: _batch(samples=(_sample(start=1),)), r"samples must lie inside .* 1 \+ 3"),
    (lambda: _batch(samples=(_sample(row=-1),)), "samples must lie inside .* at row -1"),
    (lambda: _batch(samples=(_sample(start=-3),)), r"samples must lie inside .* -3 \+ 3"),
    (lambda: _batch(samples=(_sample(length_tokens=-1),)), r"samples must lie inside .* \+ -1"),
    (lambda: _announcement(kind="patch"), "weight_announcement.kind must be one of"),
    (
        lambda: _announcement(version=PolicyVersion(0, -1)),
        "weight_announcement.version.number must be at least 0: got -1",
    ),
    (lambda: _announcement(objects=(ENTRY,)), "objects.size_bytes must be at least 0: got -1"),
    (lambda: _outcome(event="lost"), "outcome.event must be one of"),
    (lambda: _outcome(group_id=""), "outcome.group_id must not be empty"),
    (lambda: _outcome(policy=""), "outcome.policy must not be empty"),
    (lambda: _evaluation(k=0), "evaluation.k must be at least 1"),
    (lambda: MetricPoint(series="", value=0.0, step=0), "metric_point.series must not be empty"),
    (lambda: _letter(offset=-1), "dead_letter.offset must be at least 0"),
    (lambda: _letter(topic=""), "dead_letter.topic must not be empty"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_bad_value_is_refused_with_field_value_and_remedy(make: Any, message: str):
    with pytest.raises(RecordError, match=rf"{message}.*\. [A-Z]"):
        make()


def test_what_holds_to_the_rules_is_taken():
    assert _request().policies[0].min_version == V0
    assert _group().rewards == (1.0,)
    assert _batch().samples[0].row == 1
    assert _announcement().kind == "snapshot"
    assert _outcome(event="closed", group_id="").rewards.dtype == np.float32
    assert _outcome().lengths.dtype == np.int32
    assert _evaluation().k == 1
    assert _letter().headers == {}
    assert Extra(dtype="<f4", shape=(9,), axis="token", data=b"", claim="key").claim == "key"


def test_a_span_ends_where_the_next_begins():
    versions = _segment(5, 1, 3).token_versions()
    assert versions.tolist() == [-1, 11, 11, 13, 13]
    assert versions.dtype == np.int32


def test_the_version_range_looks_at_trained_tokens_only():
    segments = (_segment(5, 0, 2, 4, mask=[0, 0, 1, 0, 0]), _segment(3, 1, mask=[0, 0, 1]))
    trajectory = _trajectory(*segments)
    assert trajectory.version_range == (PolicyVersion(0, 11), PolicyVersion(0, 12))
    assert trajectory.trained_tokens == 2
    assert _trajectory(_segment(2, 0, mask=[0, 0])).version_range is None
    assert _trajectory().version_range is None


def test_rewards_leave_out_what_is_not_valid():
    bad = _trajectory(reward=9.0, reward_valid=False)
    assert _group(trajectories=(_trajectory(reward=0.5), bad)).rewards == (0.5,)


def test_versions_are_ordered_by_lineage_first():
    assert PolicyVersion(0, 9) < PolicyVersion(1, 3) < PolicyVersion(1, 3).next()
    assert [str(PolicyVersion(0, 118)), str(PolicyVersion(2, 7))] == ["v118", "v2.7"]
