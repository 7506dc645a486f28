"""What a trainer checks of a batch before it trains it, and what it says of it afterwards."""

from collections.abc import Iterator
from itertools import groupby

import numpy as np

from astra_stream.algorithms.packing import Batch
from astra_stream.errors import RecordError
from astra_stream.records import Outcome, PolicyVersion, Sample


def require_trainable(batch: Batch, version: PolicyVersion, *, max_staleness: int) -> None:
    """Refuse a batch that is not the next one or holds a sample that is too old.

    The assembler decides what is fresh: a violation is its bug, so nothing is dropped here.

    Raises:
        RecordError: Names the batch and the first violation.
    """
    require_next(batch, version)
    for sample in batch.samples:
        if not 0 <= sample.staleness <= max_staleness:
            raise RecordError(
                f"batch {batch.batch_id!r}: staleness of {sample.trajectory_id!r} must be 0 to "
                f"{max_staleness}: got {sample.staleness}. The assembler let it pass."
            )


def require_next(batch: Batch, version: PolicyVersion) -> None:
    """Refuse a batch that does not train ``version``.

    Raises:
        RecordError: Names the batch.
    """
    if batch.trains_version != version.number:
        raise RecordError(
            f"batch {batch.batch_id!r} must train version {version.number}: got "
            f"{batch.trains_version}. The batches topic skips or repeats a batch."
        )


def trained_outcomes(batch: Batch, *, at_s: float) -> Iterator[Outcome]:
    """One outcome for each group of the batch, in order of the group's id."""
    by_group = sorted(batch.samples, key=lambda sample: sample.group_id)
    for group_id, found in groupby(by_group, key=lambda sample: sample.group_id):
        yield _trained(group_id, list(found), batch, at_s)


def _trained(group_id: str, samples: list[Sample], batch: Batch, at_s: float) -> Outcome:
    oldest = batch.trains_version - max(sample.staleness for sample in samples)
    newest = batch.trains_version - min(sample.staleness for sample in samples)
    return Outcome(
        group_id=group_id,
        prompt_id=samples[0].prompt_id,
        policy=batch.policy,
        event="trained",
        stage="trainer",
        rewards=np.array([sample.raw_outcome for sample in samples], dtype="<f4"),
        lengths=np.array([sample.length_tokens for sample in samples], dtype="<i4"),
        min_version=oldest,
        max_version=newest,
        trained_version=batch.trains_version,
        staleness=batch.trains_version - oldest,
        at_s=at_s,
    )
