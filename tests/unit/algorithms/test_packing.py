import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_stream.algorithms.packing import (
    join_slices,
    pack_batch,
    place_samples,
    trainable_samples,
    unpack,
)
from astra_stream.errors import RecordError
from astra_stream.records import Group, same_record
from astra_stream.records.batch import PADDING, TOKEN_ARRAYS
from astra_stream.testing.builders import make_group, make_segment, make_trajectory

ROW_TOKENS = 24
FACTS = {"batch_id": "main/3", "policy": "main", "trains_version": 3, "row_tokens": ROW_TOKENS}
LENGTHS = st.lists(st.integers(1, ROW_TOKENS - 4), min_size=1, max_size=6)


@st.composite
def groups(draw: st.DrawFn) -> list[Group]:
    lengths = draw(st.lists(LENGTHS, max_size=5))
    return [
        make_group(*range(len(one)), group_id=f"g{i}", reply_tokens=one, versions=(i % 4,))
        for i, one in enumerate(lengths)
    ]


@settings(max_examples=25)
@given(groups(), st.integers(1_500, 6_000))
def test_what_is_unpacked_is_what_was_packed(groups, max_slice_bytes):
    names = Counter(one.trajectory.trajectory_id for one in trainable_samples(groups))
    column = np.arange(names.total(), dtype=np.float32)
    slices = pack_batch(
        groups, **FACTS, sample_columns={"order": column}, max_slice_bytes=max_slice_bytes
    )

    batch = join_slices(slices[::-1])

    expected = list(trainable_samples(groups))
    assert len(batch.samples) == len(expected)
    for index, sample in enumerate(batch.samples):
        one = expected[int(batch.sample_columns["order"][index])]
        assert sample.trajectory_id == one.trajectory.trajectory_id
        arrays = unpack(batch, index)
        assert arrays["positions"].tolist() == list(range(len(one.segment.tokens)))
        assert np.array_equal(arrays["versions"], one.segment.token_versions())
        for name in ("tokens", "loss_mask", "behavior_logprobs"):
            assert same_record(np.ascontiguousarray(arrays[name]), getattr(one.segment, name))


@settings(max_examples=25)
@given(groups())
def test_every_place_holds_one_token_or_padding(groups):
    batch = join_slices(pack_batch(groups, **FACTS))

    covered = np.zeros((batch.num_rows, ROW_TOKENS), np.int64)
    for index, sample in enumerate(batch.samples):
        inside = (sample.row, slice(sample.start, sample.start + sample.length_tokens))
        covered[inside] += 1
        assert (batch.sample_ids[inside] == index).all()
    assert np.array_equal(covered, batch.sample_ids != PADDING)
    assert not batch.loss_mask[covered == 0].any()


@given(st.lists(st.integers(1, 10), max_size=30))
def test_no_row_is_less_than_half_full_but_one(lengths):
    places = place_samples(lengths, 10)

    used = Counter()
    for place, length in zip(places, lengths, strict=True):
        used[place.row] += length
    assert sorted(used) == list(range(len(used)))
    assert all(tokens <= 10 for tokens in used.values())
    assert sum(tokens < 5 for tokens in used.values()) <= 1


def test_samples_are_placed_first_fit_longest_first():
    assert place_samples([2, 7, 5, 3, 4, 2], 10) == [(2, 0), (0, 0), (1, 0), (0, 7), (1, 5), (2, 2)]


def test_packing_twice_gives_the_same_bytes():
    groups = [make_group(1, 0, group_id=f"g{i}", reply_tokens=i + 1) for i in range(5)]
    first, second = (pack_batch(groups, **FACTS) for _ in range(2))
    assert same_record(first, second)


def test_slices_are_cut_at_rows_and_stay_below_the_limit():
    groups = [make_group(1, 0, group_id=f"g{i}", reply_tokens=18) for i in range(4)]
    slices = pack_batch(groups, **FACTS, max_slice_bytes=1_700)

    assert [one.index for one in slices] == [0, 1, 2, 3]
    assert {one.count for one in slices} == {4}
    assert [one.num_rows for one in slices] == [2, 2, 2, 2]
    for one in slices:
        assert sum(getattr(one, name).nbytes for name in TOKEN_ARRAYS) < 1_700
        assert set(np.unique(one.sample_ids)) == {PADDING, 0, 1}


def test_a_row_that_no_slice_can_hold_is_refused():
    with pytest.raises(RecordError, match="a packed row must have at most 100 bytes"):
        pack_batch([make_group(1, 0)], **FACTS, max_slice_bytes=100)


def test_an_empty_batch_is_one_slice_without_rows():
    (only,) = pack_batch([], **FACTS, last=True)
    assert (only.num_rows, only.samples, only.last) == (0, (), True)
    assert join_slices([only]).trained_tokens == 0


def test_only_valid_trajectories_and_segments_that_train_are_packed():
    group = make_group(
        trajectories=[
            make_trajectory(1, sample_index=0),
            make_trajectory(0, sample_index=1, reward_valid=False),
            make_trajectory(
                0,
                sample_index=2,
                segments=[
                    make_segment(segment_id=0),
                    make_segment(segment_id=1, reply_tokens=0),
                    make_segment(segment_id=2, reply_tokens=5),
                ],
            ),
        ]
    )
    batch = join_slices(pack_batch([group], **FACTS))
    names = [sample.trajectory_id for sample in batch.samples]
    assert sorted(names) == ["g0/0/main", "g0/2/main", "g0/2/main"]


def test_staleness_counts_from_the_oldest_trained_token():
    group = make_group(1, 0, versions=(1, 2))
    batch = join_slices(pack_batch([group], **FACTS))
    assert {sample.staleness for sample in batch.samples} == {2}


def test_a_sample_longer_than_a_row_is_refused_by_name():
    group = make_group(1, 0, reply_tokens=[3, ROW_TOKENS])
    with pytest.raises(RecordError, match=r"'g0/1/main' must have at most row_tokens = 24 .* 28"):
        pack_batch([group], **FACTS)


def test_a_sample_that_trains_its_first_token_is_refused():
    group = make_group(trajectories=[make_trajectory(prompt_tokens=0)])
    with pytest.raises(RecordError, match="must not train its first token"):
        pack_batch([group], **FACTS)


def test_tokens_newer_than_the_trained_version_are_refused():
    with pytest.raises(RecordError, match="at most the trained version 3: got 4"):
        pack_batch([make_group(1, 0, versions=(4,))], **FACTS)


def test_a_column_of_another_length_is_refused():
    with pytest.raises(RecordError, match=r"sample_columns\['advantages'\] must have 2 entries"):
        pack_batch([make_group(1, 0)], **FACTS, sample_columns={"advantages": np.zeros(3)})


def slices_of_three() -> list:
    groups = [make_group(1, 0, group_id=f"g{i}", reply_tokens=18) for i in range(3)]
    return list(pack_batch(groups, **FACTS, max_slice_bytes=1_700))


@pytest.mark.parametrize("kept", [[0, 1], [1, 2], [0, 2], [0, 1, 1, 2]])
def test_a_batch_with_a_slice_missing_or_doubled_is_refused(kept):
    slices = slices_of_three()
    with pytest.raises(RecordError, match=r"'main/3' must have slices 0 to 2, each once"):
        join_slices([slices[i] for i in kept])


def test_slices_of_two_batches_are_not_joined():
    slices = slices_of_three()
    slices[1] = dataclasses.replace(slices[1], batch_id="main/4")
    with pytest.raises(RecordError, match="must agree on batch_id"):
        join_slices(slices)


def test_slices_with_other_columns_are_not_joined():
    slices = slices_of_three()
    column = np.zeros(len(slices[0].samples), np.float32)
    slices[0] = dataclasses.replace(slices[0], sample_columns={"advantages": column})
    with pytest.raises(RecordError, match="must have the same columns"):
        join_slices(slices)


def test_no_slices_are_no_batch():
    with pytest.raises(RecordError, match="must be at least one: got 0"):
        join_slices([])


def test_a_joined_batch_can_be_written_to():
    batch = join_slices(pack_batch([make_group(1, 0)], **FACTS))
    assert all(getattr(batch, name).flags.writeable for name in TOKEN_ARRAYS)
