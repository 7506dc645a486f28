import numpy as np
import pytest

from astra_stream.algorithms.packing import unpack
from astra_stream.errors import RecordError
from astra_stream.records.batch import PADDING
from astra_stream.testing.builders import make_batch, make_group, make_segment, make_trajectory
from astra_stream.training.micro_batches import count_denominators, cut_micro_batches


def wide_batch(row_tokens=1000):
    groups = [
        make_group(1, 0, 0, 1, group_id=f"g{i}", reply_tokens=(60, 5, 90, 1 + i)) for i in range(4)
    ]
    return make_batch(groups, row_tokens=row_tokens)


@pytest.mark.parametrize("tokens_per_micro_batch", [1, 300, 100_000])
def test_every_sample_is_in_one_micro_batch_whole(tokens_per_micro_batch):
    batch = wide_batch()
    parts = cut_micro_batches(batch, tokens_per_micro_batch=tokens_per_micro_batch)
    for index, sample in enumerate(batch.samples):
        holders = [part for part in parts if (part.sample_ids == index).any()]
        assert len(holders) == 1
        inside = holders[0].sample_ids == index
        wanted = unpack(batch, index)
        for name in ("tokens", "positions", "loss_mask", "behavior_logprobs"):
            assert np.array_equal(getattr(holders[0], name)[inside].numpy(), wanted[name])
        assert set(holders[0].advantages[inside].tolist()) == {
            batch.sample_columns["advantages"][index]
        }
        assert (holders[0].sequence_tokens[inside] == int(wanted["loss_mask"].sum())).all()
        assert sample.length_tokens == int(inside.sum())


def test_rows_are_no_wider_than_they_need_be():
    def widths(batch):
        parts = cut_micro_batches(batch, tokens_per_micro_batch=100_000)
        return [part.tokens.shape[1] for part in parts]

    assert max(sample.length_tokens for sample in wide_batch().samples) == 94
    assert widths(wide_batch()) == [94]
    assert widths(make_batch(row_tokens=1000)) == [64]
    assert widths(make_batch(row_tokens=32)) == [32]


def test_a_micro_batch_holds_no_more_than_its_budget():
    parts = cut_micro_batches(wide_batch(), tokens_per_micro_batch=300)
    assert len(parts) > 1
    assert all(part.tokens.numel() <= 300 for part in parts)


def test_padding_weighs_nothing():
    (part,) = cut_micro_batches(wide_batch(), tokens_per_micro_batch=100_000)
    padding = part.sample_ids == PADDING
    assert padding.any()
    assert not part.loss_mask[padding].any()
    assert (part.temperatures[padding] == 1).all()
    assert (part.sequence_ids[padding] == PADDING).all()


def test_segments_of_a_trajectory_are_one_sequence():
    segments = [make_segment(segment_id=i, reply_tokens=2 + i) for i in range(2)]
    group = make_group(
        trajectories=[make_trajectory(1, segments=segments), make_trajectory(0, sample_index=1)]
    )
    batch = make_batch([group])
    counts = count_denominators(batch)
    (part,) = cut_micro_batches(batch, tokens_per_micro_batch=1000)
    assert (counts.tokens, counts.sequences) == (8, 2)
    for index, sample in enumerate(batch.samples):
        tokens = 5 if sample.trajectory_id == "g0/0/main" else 3
        assert (part.sequence_tokens[part.sample_ids == index] == tokens).all()


def test_a_trained_first_token_is_refused_with_its_place():
    batch = wide_batch()
    batch.loss_mask[0, 0] = 1
    with pytest.raises(RecordError, match="got one at row 0, place 0"):
        cut_micro_batches(batch, tokens_per_micro_batch=1000)
