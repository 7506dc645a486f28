import io
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_stream.errors import RecordError, SchemaError
from astra_stream.log.codec import HEADER_BYTES, Codec
from astra_stream.log.schemas import RECORDS, load_schemas
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
    TensorEntry,
    Trajectory,
    Turn,
    VersionSpan,
    WeightAnnouncement,
    same_record,
)

SCHEMAS = Path(__file__).parents[3] / "schemas"
CODEC = Codec(SCHEMAS)

texts = st.text("aé\n\0𝄞 /", max_size=6)
names = st.sampled_from(["a", "main", "ds/12/é", "x" * 200])
longs = st.integers(-(2**63), 2**63 - 1)
counts = st.integers(0, 2**40)
numbers = st.floats(allow_nan=False, allow_infinity=False)
any_numbers = st.floats()
versions = st.builds(PolicyVersion, counts, counts)
text_maps = st.dictionaries(names, texts, max_size=2)
number_maps = st.dictionaries(names, any_numbers, max_size=2)
samplings = st.builds(
    Sampling,
    temperature=st.floats(0, 10),
    top_p=any_numbers,
    top_k=counts,
    max_new_tokens=st.integers(1, 2**40),
    stop=st.lists(texts, max_size=2).map(tuple),
    seed=longs,
)


def arrays(size: int, dtype: str) -> st.SearchStrategy[np.ndarray]:
    """Any bit patterns that the records allow, from a seed."""
    return st.integers(0, 2**32 - 1).map(lambda seed: _array(seed, size, dtype))


def _array(seed: int, size: int, dtype: str) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype == "<f4":
        return rng.standard_normal(size).astype(dtype)
    return rng.integers(0, 256, size * np.dtype(dtype).itemsize, dtype=np.uint8).view(dtype)


def _segments(size: int) -> st.SearchStrategy[Segment]:
    starts = st.sets(st.integers(0, size - 1), max_size=3) if size else st.just(set())
    return st.builds(
        Segment,
        segment_id=longs,
        parent=longs,
        parent_offset=longs,
        agent=texts,
        tokens=arrays(size, "<i4"),
        loss_mask=arrays(size, "u1"),
        behavior_logprobs=arrays(size, "<f4"),
        spans=starts.map(lambda s: tuple(VersionSpan(n, 0, n * 1000) for n in sorted(s))),
        turns=st.lists(st.builds(Turn, longs, any_numbers, texts), max_size=2).map(tuple),
        finish_reason=texts,
    )


extras = st.sampled_from(
    [
        Extra(dtype="<f4", shape=(2, 1), axis="token", data=b"12345678"),
        Extra(dtype="<i2", shape=(10**12,), axis="episode", data=b"", claim="blob/x"),
    ]
)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    index = draw(st.integers(0, 100))
    return Trajectory(
        trajectory_id=draw(names),
        group_id=draw(names),
        sample_index=index,
        group_size=index + draw(st.integers(1, 100)),
        attempt=draw(longs),
        policy=draw(texts),
        prompt_id=draw(texts),
        environment=draw(texts),
        answer=draw(texts),
        prompt_fields=draw(text_maps),
        purpose=draw(texts),
        stage=draw(texts),
        propensity=draw(any_numbers),
        data_epoch=draw(longs),
        episode_id=draw(texts),
        segments=tuple(
            draw(st.lists(st.sampled_from([0, 1, 3, 200]).flatmap(_segments), max_size=2))
        ),
        reward=draw(numbers),
        raw_outcome=draw(numbers),
        reward_parts=draw(number_maps),
        reward_valid=draw(st.booleans()),
        status=draw(st.sampled_from(["done", "truncated", "aborted", "error"])),
        error_kind=draw(texts),
        error=draw(texts),
        retryable=draw(st.booleans()),
        sampling=draw(samplings),
        tokenizer_hash=draw(texts),
        model_fingerprint=draw(texts),
        engine=draw(texts),
        on_swap=draw(texts),
        started_at_s=draw(any_numbers),
        finished_at_s=draw(any_numbers),
        worker=draw(texts),
        extras=draw(st.dictionaries(names, extras, max_size=2)),
    )


prompts = st.builds(
    Prompt,
    prompt_id=names,
    split=st.sampled_from(["train", "held_out"]),
    messages=st.lists(st.builds(ChatMessage, role=texts, content=names), min_size=1).map(tuple),
    environment=texts,
    answer=texts,
    fields=text_maps,
    dataset=texts,
    features=text_maps,
)


needs = st.builds(PolicyNeed, policy=texts, min_version=versions)


@st.composite
def requests(draw: st.DrawFn) -> RolloutRequest:
    first, wanted = draw(st.integers(0, 50)), draw(st.integers(1, 50))
    return RolloutRequest(
        request_id=draw(names),
        group_id=draw(names),
        prompt=draw(prompts),
        policies=tuple(
            draw(
                st.lists(
                    st.builds(PolicyNeed, policy=texts, min_version=versions),
                    min_size=1,
                    max_size=2,
                )
            )
        ),
        first_sample=first,
        num_samples=wanted,
        group_size=first + wanted + draw(st.integers(0, 5)),
        sampling=draw(samplings),
        attempt=draw(longs),
        stage=draw(st.sampled_from(["full", "pilot", "commit"])),
        propensity=draw(any_numbers),
        data_epoch=draw(longs),
        issued_at_s=draw(any_numbers),
        deadline_s=draw(any_numbers),
        purpose=draw(st.sampled_from(["train", "evaluate"])),
    )


groups = st.builds(
    Group,
    group_id=names,
    prompt_id=texts,
    policy=texts,
    trajectories=st.lists(trajectories(), min_size=1, max_size=2).map(tuple),
    statistics=st.builds(GroupStatistics, any_numbers, any_numbers, longs, longs, st.booleans()),
    min_version=versions,
    max_version=versions,
)


@st.composite
def batch_slices(draw: st.DrawFn) -> BatchSlice:
    rows, width, num_samples = draw(st.sampled_from([(0, 4, 0), (1, 1, 1), (2, 7, 3), (3, 80, 0)]))

    def table(dtype: str) -> np.ndarray:
        return draw(arrays(rows * width, dtype)).reshape(rows, width)

    sample = st.builds(
        Sample,
        trajectory_id=texts,
        group_id=texts,
        prompt_id=texts,
        agent=texts,
        row=st.integers(0, max(rows - 1, 0)),
        start=st.just(0),
        length_tokens=st.integers(0, width),
        reward=any_numbers,
        raw_outcome=any_numbers,
        group_mean=any_numbers,
        group_std=any_numbers,
        truncated=st.booleans(),
        temperature=any_numbers,
        propensity=any_numbers,
        staleness=longs,
        replay_use=longs,
        weight=any_numbers,
    )
    return BatchSlice(
        batch_id=draw(names),
        policy=draw(texts),
        index=draw(st.integers(0, 3)),
        count=draw(st.integers(4, 9)),
        trains_version=draw(counts),
        last=draw(st.booleans()),
        num_rows=rows,
        row_tokens=width,
        tokens=table("<i4"),
        positions=table("<i4"),
        sample_ids=table("<i4"),
        loss_mask=table("u1"),
        behavior_logprobs=table("<f4"),
        versions=table("<i4"),
        samples=tuple(draw(sample) for _ in range(num_samples)),
        token_columns={name: table("<f4") for name in draw(st.sets(names, max_size=2))},
        sample_columns={
            name: draw(arrays(num_samples, "<f4")) for name in draw(st.sets(names, max_size=2))
        },
    )


announcements = st.builds(
    WeightAnnouncement,
    policy=names,
    version=versions,
    kind=st.sampled_from(["snapshot", "delta", "skip", "final"]),
    base=st.none() | versions,
    base_hash=texts,
    root_hash=texts,
    model_fingerprint=texts,
    tensors=st.lists(
        st.builds(
            TensorEntry,
            name=texts,
            dtype=texts,
            shape=st.lists(counts, max_size=3).map(tuple),
            xxh3=texts,
        ),
        max_size=2,
    ).map(tuple),
    objects=st.lists(
        st.builds(ObjectEntry, key=texts, size_bytes=counts, sha256=texts, raw_size_bytes=longs),
        max_size=2,
    ).map(tuple),
    changed_fraction=any_numbers,
    num_bytes=longs,
    train_metrics=number_maps,
    num_trained_samples=longs,
    num_trained_tokens=longs,
    batch_id=texts,
    checkpoint=texts,
)
outcomes = st.builds(
    Outcome,
    group_id=names,
    prompt_id=texts,
    policy=names,
    event=st.sampled_from(["completed", "dropped", "trained", "replayed", "closed"]),
    stage=texts,
    reason=texts,
    rewards=st.integers(0, 3).flatmap(lambda size: arrays(size, "<f4")),
    lengths=st.integers(0, 3).flatmap(lambda size: arrays(size, "<i4")),
    min_version=longs,
    max_version=longs,
    trained_version=longs,
    staleness=longs,
    at_s=any_numbers,
)
evaluations = st.builds(
    Evaluation,
    policy=names,
    suite=texts,
    requested_version=versions,
    min_version=versions,
    max_version=versions,
    num_prompts=longs,
    num_samples=longs,
    k=st.integers(1, 100),
    mean_at_k=any_numbers,
    pass_at_k=any_numbers,
    temperature=any_numbers,
    mean_length_tokens=any_numbers,
    num_invalid=longs,
    final=st.booleans(),
    at_s=any_numbers,
)
metric_points = st.builds(
    MetricPoint,
    series=names,
    value=any_numbers,
    step=longs,
    policy=texts,
    service=texts,
    labels=text_maps,
    at_s=any_numbers,
)
dead_letters = st.builds(
    DeadLetter,
    topic=names,
    partition=longs,
    offset=counts,
    service=texts,
    stage=texts,
    error_kind=texts,
    error=texts,
    stack=texts,
    key=st.binary(max_size=5),
    value=st.sampled_from([b"", b"\xff" * 63, b"\0" * 64, b"x" * 20_000]),
    headers=st.dictionaries(names, st.binary(max_size=3), max_size=2),
    at_s=any_numbers,
    num_bytes=longs,
)
STRATEGIES: Mapping[type, st.SearchStrategy[Any]] = {
    Prompt: prompts,
    RolloutRequest: requests(),
    Trajectory: trajectories(),
    Group: groups,
    BatchSlice: batch_slices(),
    WeightAnnouncement: announcements,
    Outcome: outcomes,
    Evaluation: evaluations,
    MetricPoint: metric_points,
    DeadLetter: dead_letters,
}
"""How each record is made up for the laws below."""

PARSED = {
    schema.record: fastavro.parse_schema(dict(schema.definition))
    for schema in load_schemas(SCHEMAS)
    if schema.is_current
}


@pytest.mark.parametrize("record", sorted(RECORDS))
def test_what_is_encoded_decodes_to_the_same(record: str):
    @settings(max_examples=40)
    @given(STRATEGIES[RECORDS[record]])
    def law(value: Any) -> None:
        data = CODEC.encode(value)
        decoded = CODEC.decode(data)
        assert same_record(decoded, value)
        assert CODEC.encode(decoded) == data

    law()


@pytest.mark.parametrize("record", sorted(RECORDS))
def test_the_bytes_are_those_of_an_avro_library(record: str):
    @settings(max_examples=20)
    @given(STRATEGIES[RECORDS[record]])
    def law(value: Any) -> None:
        data = CODEC.encode(value)
        plain = fastavro.schemaless_reader(io.BytesIO(data[HEADER_BYTES:]), PARSED[record], None)
        written = io.BytesIO()
        fastavro.schemaless_writer(written, PARSED[record], plain)
        assert written.getvalue() == data[HEADER_BYTES:]

    law()


def make_segment(num_tokens: int = 8, **changes: Any) -> Segment:
    fields = {
        "tokens": np.arange(num_tokens, dtype="<i4"),
        "loss_mask": np.ones(num_tokens, "u1"),
        "behavior_logprobs": np.full(num_tokens, -0.5, "<f4"),
        "spans": (VersionSpan(0, 0, 3),),
    }
    return Segment(**fields | changes)


def make_trajectory(**changes: Any) -> Trajectory:
    fields: dict[str, Any] = {
        "trajectory_id": "g/0/main",
        "group_id": "g",
        "sample_index": 0,
        "group_size": 1,
        "policy": "main",
        "prompt_id": "p",
        "episode_id": "e",
        "segments": (make_segment(),),
        "reward": 1.0,
        "raw_outcome": 1.0,
        "sampling": Sampling(),
    }
    return Trajectory(**fields | changes)


def test_arrays_are_read_only_and_aligned():
    for name in ("a", "ab", "abc", "abcd"):
        decoded = CODEC.decode(CODEC.encode(make_trajectory(trajectory_id=name)))
        for array in (decoded.segments[0].tokens, decoded.segments[0].behavior_logprobs):
            assert array.flags.aligned
            assert not array.flags.writeable


def test_an_array_that_does_not_lie_in_order_is_written_in_order():
    tokens = np.arange(16, dtype="<i4")[::2]
    decoded = CODEC.decode(CODEC.encode(make_trajectory(segments=(make_segment(tokens=tokens),))))
    np.testing.assert_array_equal(decoded.segments[0].tokens, tokens)


def test_records_that_were_read_are_of_their_class_and_frozen():
    decoded = CODEC.decode(CODEC.encode(make_trajectory()))
    assert type(decoded) is Trajectory
    assert type(decoded.segments[0].spans[0]) is VersionSpan
    with pytest.raises(AttributeError, match="cannot assign to field"):
        decoded.reward = 0.0
    assert replace(decoded, reward=0.0).reward == 0.0


def test_decode_as_refuses_another_record():
    data = CODEC.encode(MetricPoint(series="loss", value=1.0, step=1))
    assert CODEC.decode_as(MetricPoint, data).series == "loss"
    with pytest.raises(SchemaError, match="the record must be a Trajectory: got MetricPoint"):
        CODEC.decode_as(Trajectory, data)


def test_a_part_of_a_record_does_not_travel_alone():
    with pytest.raises(TypeError, match=r"a record must be one of .* got Segment"):
        CODEC.encode(make_segment())


@pytest.mark.parametrize(
    "changes",
    [
        {"answer": None},
        {"answer": 3},
        {"answer": "\ud800"},
        {"data_epoch": 2**63},
        {"data_epoch": "1"},
        {"data_epoch": 1.5},
        {"data_epoch": 5000.5},
        {"propensity": "x"},
        {"propensity": "1.5"},
        {"prompt_fields": {"a": 1}},
        {"sampling": None},
    ],
    ids=str,
)
def test_a_field_of_another_type_is_refused(changes: dict[str, Any]):
    with pytest.raises(SchemaError, match="Trajectory must hold the types of its schema"):
        CODEC.encode(make_trajectory(**changes))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "must begin with c301 and a fingerprint: got '' of 0 bytes"),
        (b"\xc3\x01abc", "must begin with c301"),
        (b"{}" * 20, "must begin with c301"),
        (b"\xc3\x01\0\1\2\3\4\5\6\7xyz", "schema must be in schemas/: got fingerprint 00010203"),
    ],
)
def test_bytes_that_are_no_record_are_refused(data: bytes, message: str):
    with pytest.raises(SchemaError, match=message):
        CODEC.decode(data)


def test_every_cut_and_every_added_byte_is_refused():
    data = CODEC.encode(make_trajectory(answer="42", prompt_fields={"a": "1"}))
    for size in range(len(data)):
        with pytest.raises(RecordError):
            CODEC.decode(data[:size])
        assert CODEC.encode(CODEC.decode(data)) == data
    with pytest.raises(SchemaError, match="must end with its last field"):
        CODEC.decode(data + b"\0")


@given(place=st.integers(HEADER_BYTES, 260), byte=st.integers(0, 255))
def test_a_changed_byte_gives_a_record_or_a_refusal(place: int, byte: int):
    data = bytearray(CODEC.encode(make_trajectory(answer="42", prompt_fields={"a": "1"})))
    data[min(place, len(data) - 1)] = byte
    try:
        record = CODEC.decode(bytes(data))
    except RecordError:
        return
    assert type(record) is Trajectory
    CODEC.encode(record)


def _replaced(trajectory: Trajectory, old: bytes, new: bytes) -> bytes:
    data = CODEC.encode(trajectory)
    assert data.count(old) == 1
    return data.replace(old, new)


def test_the_rules_hold_on_reading_too():
    half, nan = np.float32(-0.5).tobytes(), np.float32("nan").tobytes()
    one = make_trajectory(segments=(make_segment(1),), trajectory_id="t1", raw_outcome=3.0)
    span = make_trajectory(segments=(make_segment(1, spans=(VersionSpan(0, 41, 42),)),))
    mask = make_trajectory(segments=(make_segment(2, loss_mask=np.array([7, 9], "u1")),))
    cases = [
        (_replaced(one, half, nan), r"behavior_logprobs\[0\] must be finite: got nan"),
        (_replaced(one, np.float64(3).tobytes(), np.float64("inf").tobytes()), "raw_outcome must"),
        (_replaced(one, b"\x04t1", b"\0"), "trajectory_id must not be empty"),
        (
            _replaced(span, b"\2\0\x52\x54\0", b"\2\0\x52\x53\0"),
            "number must be at least 0: got -42",
        ),
        (_replaced(span, b"\2\0\x52\x54\0", b"\2\2\x52\x54\0"), "stay below the 1 tokens: got 1"),
        (_replaced(mask, b"\x04\x07\x09", b"\x02\x07"), "loss_mask must have 2 entries: got 1"),
    ]
    for data, message in cases:
        with pytest.raises(RecordError, match=message):
            CODEC.decode(data)


def test_a_batch_whose_arrays_do_not_fill_its_rows_is_refused():
    empty = np.zeros((1, 1), "<i4")
    batch = BatchSlice(
        batch_id="main/0",
        policy="main",
        index=0,
        count=1,
        trains_version=0,
        num_rows=1,
        row_tokens=1,
        tokens=empty,
        positions=empty,
        sample_ids=empty - 1,
        loss_mask=np.zeros((1, 1), "u1"),
        behavior_logprobs=np.zeros((1, 1), "<f4"),
        versions=empty - 1,
        samples=(),
    )
    data = CODEC.encode(batch)
    rows = data.index(b"\2\2\x08")
    with pytest.raises(RecordError, match=r"tokens must have \(2, 1\) entries: got 1"):
        CODEC.decode(data[:rows] + b"\4" + data[rows + 1 :])
    with pytest.raises(RecordError, match=r"tokens must have \(-1, 1\) entries: got 1"):
        CODEC.decode(data[:rows] + b"\1" + data[rows + 1 :])


def make_outcome(rewards: np.ndarray) -> Outcome:
    return Outcome(
        group_id="g", prompt_id="", policy="main", event="trained", stage="", rewards=rewards
    )


def test_an_array_of_another_dtype_is_refused():
    with pytest.raises(SchemaError, match="got an array of float64 in place of float32"):
        CODEC.encode(make_outcome(np.zeros(2)))


def test_an_array_of_half_an_item_is_refused():
    outcome = make_outcome(_array(0, 2, "<f4"))
    data = CODEC.encode(outcome)
    place = data.index(outcome.rewards.tobytes())
    with pytest.raises(SchemaError, match="a multiple of 4 bytes: got 7"):
        CODEC.decode(data[: place - 1] + b"\x0e" + data[place + 1 :])


def test_threads_may_share_a_codec():
    def law(name: str) -> bool:
        value = make_trajectory(policy=name, worker=name * 3, status="done")
        return all(same_record(CODEC.decode(CODEC.encode(value)), value) for _ in range(200))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(law, ["a", "bb", "ccc", "dddd"]))
