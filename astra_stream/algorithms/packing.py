"""Samples into rows of one length and back; a batch into slices that fit a message and back.

Places go by first fit, longest first, and samples are then listed by place. So the order of
``batch.samples`` is not that of the groups; ``pack_batch`` moves the columns along.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from astra_stream.algorithms.staleness import oldest_trained_version, staleness
from astra_stream.errors import RecordError
from astra_stream.records import BatchSlice, Group, Sample, Segment, Trajectory
from astra_stream.records.batch import PADDING, TOKEN_ARRAYS

BYTES_PER_PLACE = sum(np.dtype(dtype).itemsize for dtype in TOKEN_ARRAYS.values())
SAMPLE_BYTES = 160
"""At most what a sample takes on the wire beside its names."""
SEGMENT_ARRAYS = ("tokens", "loss_mask", "behavior_logprobs")
FILL = {"sample_ids": PADDING, "versions": -1}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """What one version is trained on, whole: the slices of a batch joined."""

    batch_id: str
    """Identity: <policy>/<number of the version that it trains>."""
    policy: str
    """The policy."""
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
    """[B, T] int32 index into samples; -1 at padding."""
    loss_mask: np.ndarray
    """[B, T] uint8, 1 on tokens that train."""
    behavior_logprobs: np.ndarray
    """[B, T] float32 natural log-probability of each token when sampled; 0 where the mask is 0."""
    versions: np.ndarray
    """[B, T] int32 version number that made each token; -1 where none did."""
    samples: tuple[Sample, ...]
    """The samples, by row and place; their rows count through the whole batch."""
    token_columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    """name to [B, T] float32."""
    sample_columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    """name to [number of samples] float32, such as advantages."""

    @property
    def trained_tokens(self) -> int:
        """Tokens with a loss mask of 1."""
        return int(self.loss_mask.sum(dtype=np.int64))


class TrainableSample(NamedTuple):
    """A segment that trains, with the trajectory and the group that it came from."""

    group: Group
    trajectory: Trajectory
    segment: Segment


class Place(NamedTuple):
    """Where a sample begins."""

    row: int
    start: int


def trainable_samples(groups: Sequence[Group]) -> Iterator[TrainableSample]:
    """Every segment with trained tokens of every valid trajectory, by group, trajectory, segment.

    This is the order in which ``pack_batch`` expects its columns.
    """
    for group in groups:
        for trajectory in group.trajectories:
            if trajectory.reward_valid:
                for segment in trajectory.segments:
                    if segment.loss_mask.any():
                        yield TrainableSample(group, trajectory, segment)


def place_samples(lengths: Sequence[int], row_tokens: int) -> list[Place]:
    """First fit, longest first; equal lengths keep their order.

    Args:
        lengths: Tokens of each sample, each at most ``row_tokens``.
        row_tokens: Places in a row.

    Returns:
        Where each sample begins, in the order given.
    """
    used = np.zeros(len(lengths), dtype=np.int64)
    places = [Place(0, 0)] * len(lengths)
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        row = int(np.argmax(used + lengths[index] <= row_tokens))
        places[index] = Place(row, int(used[row]))
        used[row] += lengths[index]
    return places


def pack_batch(
    groups: Sequence[Group],
    *,
    batch_id: str,
    policy: str,
    trains_version: int,
    row_tokens: int,
    sample_columns: Mapping[str, np.ndarray] | None = None,
    last: bool = False,
    max_slice_bytes: int = 4_000_000,
) -> tuple[BatchSlice, ...]:
    """Pack the trainable samples of some groups.

    Args:
        groups: Whose samples; none makes one slice without rows.
        batch_id: <policy>/<trains_version>.
        policy: Name of the policy.
        trains_version: Number of the version to be trained.
        row_tokens: Length of every row.
        sample_columns: name to [N] float32 in the order of ``trainable_samples(groups)``.
        last: Whether this is the final batch of the run.
        max_slice_bytes: Most bytes that a slice may take before compression.

    Returns:
        Slices of whole rows, at least one.

    Raises:
        RecordError: A sample does not fit a row, trains its first token, or has tokens of no
            version or of a later one; a column has another length; a row is too large for a slice.
    """
    unplaced = list(trainable_samples(groups))
    require_packable(unplaced, row_tokens)
    places = place_samples([len(one.segment.tokens) for one in unplaced], row_tokens)
    order = sorted(range(len(unplaced)), key=places.__getitem__)
    samples = [_sample(unplaced[i], places[i], trains_version) for i in order]
    arrays = _fill_rows([unplaced[i].segment for i in order], samples, row_tokens)
    columns = _reorder(sample_columns or {}, order)

    cuts = _cut_rows(samples, row_tokens, len(columns), max_slice_bytes)
    whole = Batch(
        batch_id=batch_id,
        policy=policy,
        trains_version=trains_version,
        last=last,
        num_rows=cuts[-1][1],
        row_tokens=row_tokens,
        samples=tuple(samples),
        sample_columns=columns,
        **arrays,
    )
    return tuple(
        _slice_rows(whole, slice(*cut), index=index, count=len(cuts))
        for index, cut in enumerate(cuts)
    )


def join_slices(slices: Sequence[BatchSlice]) -> Batch:
    """Make a batch of all its slices, given in any order; the arrays are copied and writable.

    Raises:
        RecordError: A slice is missing, there twice, or of another batch.
    """
    if not slices:
        raise RecordError("batch slices must be at least one: got 0. Read the batch again.")
    ordered = sorted(slices, key=lambda one: one.index)
    head = ordered[0]
    _require_whole(ordered)
    row_offsets = np.cumsum([0, *(one.num_rows for one in ordered)])
    sample_offsets = np.cumsum([0, *(len(one.samples) for one in ordered)])
    rows: dict[str, Any] = {
        n: np.concatenate([getattr(one, n) for one in ordered]) for n in TOKEN_ARRAYS
    }
    rows["sample_ids"] = np.concatenate(
        [
            np.where(one.sample_ids == PADDING, PADDING, one.sample_ids + np.int32(offset))
            for one, offset in zip(ordered, sample_offsets, strict=False)
        ]
    )
    return Batch(
        batch_id=head.batch_id,
        policy=head.policy,
        trains_version=head.trains_version,
        last=head.last,
        num_rows=int(row_offsets[-1]),
        row_tokens=head.row_tokens,
        samples=tuple(
            replace(sample, row=sample.row + int(offset)) if offset else sample
            for one, offset in zip(ordered, row_offsets, strict=False)
            for sample in one.samples
        ),
        token_columns=_join_columns([one.token_columns for one in ordered]),
        sample_columns=_join_columns([one.sample_columns for one in ordered]),
        **rows,
    )


def unpack(batch: Batch, index: int) -> dict[str, np.ndarray]:
    """The arrays of one sample, by name, without its neighbours and without padding.

    Args:
        batch: A whole batch.
        index: Index into ``batch.samples``.

    Returns:
        Views of [T]: every token array but ``sample_ids``, and every token column.
    """
    sample = batch.samples[index]
    inside = slice(sample.start, sample.start + sample.length_tokens)
    arrays = {name: getattr(batch, name) for name in TOKEN_ARRAYS if name != "sample_ids"}
    return {n: a[sample.row, inside] for n, a in (arrays | dict(batch.token_columns)).items()}


def require_packable(samples: Iterable[TrainableSample], row_tokens: int) -> None:
    """Refuse samples that no batch can hold.

    Raises:
        RecordError: One does not fit a row, trains its first token, or has tokens of no version.
    """
    for one in samples:
        _require_trainable(one, row_tokens)
        oldest_trained_version(one.segment)


def _require_trainable(one: TrainableSample, row_tokens: int) -> None:
    subject = f"sample of trajectory {one.trajectory.trajectory_id!r}"
    num_tokens = len(one.segment.tokens)
    if num_tokens > row_tokens:
        raise RecordError(
            f"{subject} must have at most row_tokens = {row_tokens} tokens: got {num_tokens}. "
            "Raise batch.row_tokens or lower max_new_tokens."
        )
    if one.segment.loss_mask[0]:
        raise RecordError(
            f"{subject} must not train its first token: got loss_mask[0] = 1. "
            "Nothing predicts it; begin with a prompt."
        )


def _sample(one: TrainableSample, place: Place, trains_version: int) -> Sample:
    group, trajectory, segment = one
    oldest = oldest_trained_version(segment)
    return Sample(
        trajectory_id=trajectory.trajectory_id,
        group_id=group.group_id,
        prompt_id=group.prompt_id,
        agent=segment.agent,
        row=place.row,
        start=place.start,
        length_tokens=len(segment.tokens),
        reward=trajectory.reward,
        raw_outcome=trajectory.raw_outcome,
        group_mean=group.statistics.mean,
        group_std=group.statistics.std,
        truncated=trajectory.status == "truncated",
        temperature=trajectory.sampling.temperature,
        propensity=trajectory.propensity,
        staleness=staleness(oldest, trains_version=trains_version),
    )


def _fill_rows(
    segments: Sequence[Segment], samples: Sequence[Sample], row_tokens: int
) -> dict[str, Any]:
    shape = (samples[-1].row + 1 if samples else 0, row_tokens)
    rows = {n: np.full(shape, FILL.get(n, 0), np.dtype(d)) for n, d in TOKEN_ARRAYS.items()}
    for index, (segment, sample) in enumerate(zip(segments, samples, strict=True)):
        inside = (sample.row, slice(sample.start, sample.start + sample.length_tokens))
        for name in SEGMENT_ARRAYS:
            rows[name][inside] = getattr(segment, name)
        rows["positions"][inside] = np.arange(sample.length_tokens)
        rows["sample_ids"][inside] = index
        rows["versions"][inside] = segment.token_versions()
    return rows


def _reorder(columns: Mapping[str, np.ndarray], order: Sequence[int]) -> dict[str, np.ndarray]:
    for name, column in columns.items():
        if column.shape != (len(order),):
            raise RecordError(
                f"sample_columns[{name!r}] must have {len(order)} entries: got {column.shape}. "
                "Give one per trainable sample."
            )
    indices = np.asarray(order, dtype=np.int64)
    return {name: column[indices].astype("<f4") for name, column in columns.items()}


def _cut_rows(
    samples: Sequence[Sample], row_tokens: int, num_columns: int, max_slice_bytes: int
) -> list[tuple[int, int]]:
    row_bytes = np.full(
        samples[-1].row + 1 if samples else 0, row_tokens * BYTES_PER_PLACE, dtype=np.int64
    )
    for sample in samples:
        names = sample.trajectory_id + sample.group_id + sample.prompt_id + sample.agent
        row_bytes[sample.row] += SAMPLE_BYTES + 4 * num_columns + len(names.encode())
    if len(row_bytes) and row_bytes.max() > max_slice_bytes:
        raise RecordError(
            f"a packed row must have at most {max_slice_bytes} bytes: got {row_bytes.max()}. "
            "Lower batch.row_tokens."
        )
    cuts: list[tuple[int, int]] = []
    first = size = 0
    for row, more in enumerate(row_bytes):
        if size + more > max_slice_bytes:
            cuts.append((first, row))
            first, size = row, 0
        size += int(more)
    return [*cuts, (first, len(row_bytes))]


def _slice_rows(whole: Batch, rows: slice, *, index: int, count: int) -> BatchSlice:
    inside = [i for i, one in enumerate(whole.samples) if rows.start <= one.row < rows.stop]
    first = inside[0] if inside else 0
    samples = whole.samples[first : first + len(inside)]
    arrays: dict[str, Any] = {name: getattr(whole, name)[rows] for name in TOKEN_ARRAYS}
    ids = arrays["sample_ids"]
    arrays["sample_ids"] = np.where(ids == PADDING, PADDING, ids - first).astype(np.int32)
    return BatchSlice(
        batch_id=whole.batch_id,
        policy=whole.policy,
        index=index,
        count=count,
        trains_version=whole.trains_version,
        last=whole.last,
        num_rows=rows.stop - rows.start,
        row_tokens=whole.row_tokens,
        samples=tuple(replace(sample, row=sample.row - rows.start) for sample in samples),
        sample_columns={
            name: column[first : first + len(inside)]
            for name, column in whole.sample_columns.items()
        },
        **arrays,
    )


def _require_whole(ordered: Sequence[BatchSlice]) -> None:
    head = ordered[0]
    for one in ordered:
        for name in ("batch_id", "count", "trains_version", "row_tokens"):
            if getattr(one, name) != getattr(head, name):
                raise RecordError(
                    f"batch slices must agree on {name}: got {getattr(head, name)!r} and "
                    f"{getattr(one, name)!r}. Join the slices of one batch."
                )
    got = [one.index for one in ordered]
    if got != list(range(head.count)):
        raise RecordError(
            f"batch {head.batch_id!r} must have slices 0 to {head.count - 1}, each once: got "
            f"{got}. Read the batch again from its first slice."
        )


def _join_columns(columns: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    names = {frozenset(one) for one in columns}
    if len(names) > 1:
        raise RecordError(
            f"batch slices must have the same columns: got {[sorted(n) for n in names]}. "
            "Pack the batch again."
        )
    return {name: np.concatenate([one[name] for one in columns]) for name in columns[0]}
