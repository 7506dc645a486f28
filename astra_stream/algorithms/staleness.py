"""How old samples are in versions, and which groups are taken first or given up.

Batch k trains version k, so a sample made by version k has staleness 0 in it; a sample is dropped
only once its staleness exceeds ``max_staleness``. Ages are counted in numbers: a lineage that
replaces another goes on counting from where the old one stood.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from astra_stream.errors import ConfigError, RecordError
from astra_stream.records import Group, Segment

Order = Literal["edf", "fifo"] | Callable[[Group], float]
"""``edf`` takes the oldest versions first, ``fifo`` as they came, a function its lowest values."""


def oldest_trained_version(segment: Segment) -> int:
    """Number of the oldest version that made a trained token.

    Raises:
        RecordError: No token trains, or one that does was made by no version.
    """
    versions = segment.token_versions()[segment.loss_mask.astype(bool)]
    if not len(versions) or versions.min() < 0:
        raise RecordError(
            f"segment.spans must cover every trained token: got {segment.spans} for "
            f"{len(versions)} trained tokens. Stamp each token with the version that made it."
        )
    return int(versions.min())


def staleness(oldest_version: int, *, trains_version: int) -> int:
    """Versions between sampling and training.

    Args:
        oldest_version: Number of the oldest version among the trained tokens.
        trains_version: Number of the version that the batch trains.

    Raises:
        RecordError: The tokens are newer than the version to be trained.
    """
    if oldest_version > trains_version:
        raise RecordError(
            f"oldest_version must be at most the trained version {trains_version}: got "
            f"{oldest_version}. Train it in a later batch."
        )
    return trains_version - oldest_version


def is_expired(group: Group, *, trains_version: int, max_staleness: int) -> bool:
    """Say whether a batch that trains ``trains_version`` may no longer take the group."""
    return trains_version - group.min_version.number > max_staleness


def order_groups(groups: Sequence[Group], *, order: Order = "edf") -> list[Group]:
    """Groups in the order in which batches should take them; ties keep their order of arrival."""
    if callable(order):
        return sorted(groups, key=order)
    if order == "fifo":
        return list(groups)
    if order == "edf":
        return sorted(groups, key=lambda group: group.min_version.number)
    raise ConfigError(f"order must be 'edf', 'fifo' or a function: got {order!r}. Choose one.")
