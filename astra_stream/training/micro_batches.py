"""A batch as tensors, cut into runs of whole rows.

What depends on the whole batch (denominators, tokens per trajectory) is computed before the cut, so
that the cut changes nothing. Rows are laid out anew before it: attention costs the square of a row,
and the rows of a batch are as wide as its longest possible sample, not as the longest it has.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from astra_stream.algorithms.losses import Denominators
from astra_stream.algorithms.packing import Batch, place_samples
from astra_stream.errors import RecordError
from astra_stream.records.batch import PADDING

ADVANTAGES = "advantages"
NARROWEST_ROW_TOKENS = 64
"""Below this, attention is little of the work and short rows waste more places than they save."""
PADDING_VALUES = {"sample_ids": PADDING, "sequence_ids": PADDING, "temperatures": 1}


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
    arrays = _narrow_rows(batch, _token_arrays(batch))
    total_rows, row_tokens = arrays["tokens"].shape
    num_rows = max(1, tokens_per_micro_batch // row_tokens)
    cuts = [slice(first, first + num_rows) for first in range(0, total_rows, num_rows)]
    return [_micro_batch({n: a[cut] for n, a in arrays.items()}) for cut in cuts]


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


def _token_arrays(batch: Batch) -> dict[str, np.ndarray]:
    """[B, T] of all that a micro-batch holds by token; what stands at padding means nothing."""
    sequences: dict[str, int] = {}
    sequence_ids = np.array(
        [sequences.setdefault(one.trajectory_id, len(sequences)) for one in batch.samples],
        dtype=np.int64,
    )
    trained = np.bincount(batch.sample_ids[batch.loss_mask != 0], minlength=len(batch.samples))
    sequence_trained = np.bincount(sequence_ids, weights=trained, minlength=1)

    def by_token(values: np.ndarray) -> np.ndarray:
        return values[batch.sample_ids]

    def by_sample(name: str) -> np.ndarray:
        return np.array([getattr(one, name) for one in batch.samples], dtype=np.float32)

    return {
        "tokens": batch.tokens.astype(np.int64),
        "positions": batch.positions.astype(np.int64),
        "sample_ids": batch.sample_ids.astype(np.int64),
        "sequence_ids": by_token(sequence_ids),
        "sequence_tokens": by_token(sequence_trained[sequence_ids].astype(np.float32)),
        "loss_mask": batch.loss_mask != 0,
        "behavior_logprobs": batch.behavior_logprobs,
        "advantages": by_token(batch.sample_columns[ADVANTAGES]),
        "weights": by_token(by_sample("weight")),
        "temperatures": by_token(by_sample("temperature")),
    }


def _narrow_rows(batch: Batch, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    lengths = [sample.length_tokens for sample in batch.samples]
    row_tokens = min(batch.row_tokens, max(*lengths, NARROWEST_ROW_TOKENS))
    places = place_samples(lengths, row_tokens)
    shape = (max(place.row for place in places) + 1, row_tokens)
    shifts = np.array(
        [
            place.row * row_tokens + place.start - (sample.row * batch.row_tokens + sample.start)
            for place, sample in zip(places, batch.samples, strict=True)
        ]
    )
    flat_ids = batch.sample_ids.reshape(-1)
    source = np.flatnonzero(flat_ids != PADDING)
    target = source + shifts[flat_ids[source]]
    narrow = {}
    for name, array in arrays.items():
        narrow[name] = np.full(shape, PADDING_VALUES.get(name, 0), array.dtype)
        narrow[name].reshape(-1)[target] = array.reshape(-1)[source]
    return narrow


def _micro_batch(arrays: dict[str, np.ndarray]) -> MicroBatch:
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    places = tensors["loss_mask"].flatten().nonzero().squeeze(1)
    return MicroBatch(trained_places=places, **tensors)
