"""A batch as tensors, cut into runs of whole rows.

What depends on the whole batch (denominators, tokens per trajectory) is computed before the cut, so
that the cut changes nothing. Rows are laid out anew before it: attention costs the square of a row,
and the rows of a batch are as wide as its longest possible sample, not as the longest it has.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from astra_stream.algorithms.losses import Denominators
from astra_stream.algorithms.packing import Batch, Place, place_samples
from astra_stream.errors import RecordError
from astra_stream.records.batch import PADDING

ADVANTAGES = "advantages"
NARROWEST_ROW_TOKENS = 64
"""Below this, attention is little of the work and short rows waste more places than they save."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatch:
    """Some rows of a batch, laid out anew."""

    tokens: Tensor
    """[B, T] int64."""
    positions: Tensor
    """[B, T] int64 position within the sample."""
    sample_ids: Tensor
    """[B, T] int64 index of the sample in the batch; -1 at padding."""
    sequence_ids: Tensor
    """[B, T] int64 index of the trajectory in the batch; -1 at padding."""
    sequence_tokens: Tensor
    """[B, T] float32 trained tokens of the token's trajectory in the whole batch."""
    loss_mask: Tensor
    """[B, T] bool."""
    behavior_logprobs: Tensor
    """[B, T] float32."""
    advantages: Tensor
    """[B, T] float32."""
    weights: Tensor
    """[B, T] float32."""
    temperatures: Tensor
    """[B, T] float32; 1 at padding."""
    trained_places: Tensor
    """[N] int64 index into the flattened rows of every trained token, in order."""


def count_denominators(batch: Batch) -> Denominators:
    """Trained tokens and trajectories of the whole batch."""
    return Denominators(
        tokens=batch.trained_tokens,
        sequences=len({sample.trajectory_id for sample in batch.samples}),
    )


def cut_micro_batches(batch: Batch, *, tokens_per_micro_batch: int) -> list[MicroBatch]:
    """Lay a batch out in rows as narrow as its samples allow and cut it into runs of whole rows.

    Args:
        batch: With a sample column ``advantages``; at least one sample.
        tokens_per_micro_batch: Most places in one; a row longer than this stands alone.

    Returns:
        In the order of the rows; together they hold every sample once.

    Raises:
        RecordError: It has no advantages, a temperature of 0, or trains a sample's first token.
    """
    _require_trainable(batch)
    lengths = [sample.length_tokens for sample in batch.samples]
    row_tokens = min(batch.row_tokens, max(*lengths, NARROWEST_ROW_TOKENS))
    num_rows = max(1, tokens_per_micro_batch // row_tokens)
    columns = _sample_columns(batch)
    by_row = sorted(enumerate(place_samples(lengths, row_tokens)), key=lambda pair: pair[1])
    micro_batches = []
    for cut, found in groupby(by_row, key=lambda pair: pair[1].row // num_rows):
        places = {index: place._replace(row=place.row - cut * num_rows) for index, place in found}
        rows = _lay_out(batch, places, row_tokens)
        micro_batches.append(_micro_batch(rows, columns))
    return micro_batches


def _require_trainable(batch: Batch) -> None:
    if ADVANTAGES not in batch.sample_columns:
        raise RecordError(
            f"batch {batch.batch_id!r} must have a sample column {ADVANTAGES!r}: got "
            f"{sorted(batch.sample_columns)}. Name an advantage in the run file."
        )
    trains_first = (batch.positions == 0) & (batch.loss_mask != 0)
    if trains_first.any():
        row, start = np.argwhere(trains_first)[0]
        raise RecordError(
            f"batch {batch.batch_id!r} must not train the first token of a sample: got one at row "
            f"{row}, place {start}. Nothing predicts it; begin with a prompt."
        )
    for sample in batch.samples:
        if not sample.temperature > 0:
            raise RecordError(
                f"temperature must be above 0 while training: got {sample.temperature} in "
                f"{sample.trajectory_id!r}. Use temperature = 1.0; greedy is for evaluation."
            )


def _sample_columns(batch: Batch) -> dict[str, np.ndarray]:
    """Name to [number of samples + 1] of what all tokens of a sample share; last for padding."""
    sequences: dict[str, int] = {}
    sequence_ids = np.array(
        [sequences.setdefault(one.trajectory_id, len(sequences)) for one in batch.samples]
    )
    trained = np.bincount(batch.sample_ids[batch.loss_mask != 0], minlength=len(batch.samples))
    sequence_trained = np.bincount(sequence_ids, weights=trained)[sequence_ids]
    weights = [sample.weight for sample in batch.samples]
    temperatures = [sample.temperature for sample in batch.samples]
    return {
        "sequence_ids": np.array([*sequence_ids, PADDING], np.int64),
        "sequence_tokens": np.array([*sequence_trained, 0], np.float32),
        "advantages": np.array([*batch.sample_columns[ADVANTAGES], 0], np.float32),
        "weights": np.array([*weights, 0], np.float32),
        "temperatures": np.array([*temperatures, 1], np.float32),
    }


def _lay_out(batch: Batch, places: Mapping[int, Place], row_tokens: int) -> dict[str, np.ndarray]:
    """Copy samples, by index, to their places in rows of their own."""
    shape = (max(place.row for place in places.values()) + 1, row_tokens)
    rows = {
        "tokens": np.zeros(shape, np.int64),
        "positions": np.zeros(shape, np.int64),
        "loss_mask": np.zeros(shape, np.bool_),
        "behavior_logprobs": np.zeros(shape, np.float32),
    }
    sample_ids = np.full(shape, PADDING, np.int64)
    for index, place in places.items():
        sample = batch.samples[index]
        target = place.row, slice(place.start, place.start + sample.length_tokens)
        source = sample.row, slice(sample.start, sample.start + sample.length_tokens)
        sample_ids[target] = index
        for name, array in rows.items():
            array[target] = getattr(batch, name)[source]
    return {"sample_ids": sample_ids, **rows}


def _micro_batch(rows: Mapping[str, np.ndarray], columns: Mapping[str, np.ndarray]) -> MicroBatch:
    # At padding the index is -1, which is a column's last entry.
    spread = {name: column[rows["sample_ids"]] for name, column in columns.items()}
    tensors = {name: torch.from_numpy(array) for name, array in {**rows, **spread}.items()}
    places = tensors["loss_mask"].flatten().nonzero().squeeze(1)
    return MicroBatch(trained_places=places, **tensors)
