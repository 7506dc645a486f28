"""BatchSlice: part of what one version is trained on, packed into rows.

A batch is all slices of one ``batch_id``; they stand one after another in one partition.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from astra_stream.errors import RecordError
from astra_stream.records.checks import (
    require_array,
    require_at_least,
    require_finite,
    require_text,
)

PADDING = -1
"""Sample id of a place in a row that holds no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One trainable sequence in a batch: where it lies, and what is known of it."""

    trajectory_id: str
    """Trajectory that it came from."""
    group_id: str
    """Group of that trajectory."""
    prompt_id: str
    """Prompt of that group."""
    agent: str = ""
    """Agent that speaks; empty where there is one."""
    row: int
    """Row of the slice that holds it."""
    start: int
    """First place in that row."""
    length_tokens: int
    """Places that it takes."""
    reward: float
    """Reward after shaping."""
    raw_outcome: float
    """Reward before shaping."""
    group_mean: float
    """Mean raw outcome of its group."""
    group_std: float
    """Standard deviation of the raw outcomes of its group."""
    truncated: bool
    """Whether it ended at the token limit."""
    temperature: float
    """Temperature that it was sampled at."""
    propensity: float = 1.0
    """Probability with which its prompt was chosen."""
    staleness: int
    """Version that the batch trains minus the oldest version among its trained tokens."""
    replay_use: int = 0
    """Earlier batches that trained it; 0 for a fresh sample."""
    weight: float = 1.0
    """Factor of its loss."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchSlice:
    """Packed rows and the table of the samples in them."""

    batch_id: str
    """Identity: <policy>/<number of the version that it trains>."""
    policy: str
    """The policy."""
    index: int
    """Index of this slice in the batch, from 0."""
    count: int
    """Slices in the batch."""
    trains_version: int
    """Number of the version that is trained; the step makes the next one."""
    last: bool = False
    """True on the final batch of the run, which may be short or empty."""
    num_rows: int
    """B."""
    row_tokens: int
    """T, the length of every row."""
    tokens: np.ndarray
    """[B, T] int32 token ids; 0 at padding."""
    positions: np.ndarray
    """[B, T] int32 position within the sample, from 0."""
    sample_ids: np.ndarray
    """[B, T] int32 index into samples of this slice; -1 at padding."""
    loss_mask: np.ndarray
    """[B, T] uint8, 1 on tokens that train."""
    behavior_logprobs: np.ndarray
    """[B, T] float32 natural log-probability of each token when sampled; 0 where the mask is 0."""
    versions: np.ndarray
    """[B, T] int32 version number that made each token; -1 where none did."""
    samples: tuple[Sample, ...]
    """The samples, in packing order."""
    token_columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    """name to [B, T] float32."""
    sample_columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    """name to [number of samples] float32, such as advantages."""

    def __post_init__(self) -> None:
        require_text("batch_slice.batch_id", self.batch_id)
        require_at_least("batch_slice.trains_version", self.trains_version, 0)
        require_at_least("batch_slice.count", self.count, self.index + 1)
        shape = (self.num_rows, self.row_tokens)
        for name, dtype in TOKEN_ARRAYS.items():
            require_array(f"batch_slice.{name}", getattr(self, name), dtype, shape)
        for name, column in self.token_columns.items():
            require_array(f"batch_slice.token_columns[{name!r}]", column, "<f4", shape)
            require_finite(f"batch_slice.token_columns[{name!r}]", column)
        for name, column in self.sample_columns.items():
            wanted = (len(self.samples),)
            require_array(f"batch_slice.sample_columns[{name!r}]", column, "<f4", wanted)
            require_finite(f"batch_slice.sample_columns[{name!r}]", column)
        require_finite("batch_slice.behavior_logprobs", self.behavior_logprobs)
        for sample in self.samples:
            end = sample.start + sample.length_tokens
            is_inside = 0 <= sample.row < self.num_rows and 0 <= sample.start <= end
            if not is_inside or end > self.row_tokens:
                raise RecordError(
                    f"batch_slice.samples must lie inside the {shape} rows: got "
                    f"{sample.trajectory_id!r} at row {sample.row}, {sample.start} + "
                    f"{sample.length_tokens}. Pack it again."
                )


TOKEN_ARRAYS = {
    "tokens": "<i4",
    "positions": "<i4",
    "sample_ids": "<i4",
    "loss_mask": "u1",
    "behavior_logprobs": "<f4",
    "versions": "<i4",
}
"""Arrays of shape [B, T] and their dtypes."""
