"""Whether a processor may go on: its state, its positions and its inputs belong together.

The group's positions and the changelog's copy of them are written in one transaction, so that
either shows what was lost of the other.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from astra_stream.errors import AstraStreamError, ConfigError
from astra_stream.log.interface import Committed, Partition, require_same_topics


class Position(NamedTuple):
    """Where reading stands in a partition."""

    topic_id: str
    """Of the topic, which has another one when it is deleted and made anew."""
    offset: int
    """Next offset to read."""


def expired_positions(
    kept: Mapping[Partition, Position],
    committed: Mapping[Partition, Committed],
    topic_ids: Mapping[str, str],
    *,
    assigned: Collection[Partition],
    changelog: str,
) -> dict[Partition, int]:
    """Positions that the group has lost and the changelog still has: reading goes on there.

    Args:
        kept: What the changelog says of the assigned partitions.
        committed: What the group says of them, with the changelog's id as its metadata.
        topic_ids: The ids that the inputs, and the changelog, have now.
        assigned: Partitions that are to be read.
        changelog: Name of the changelog.

    Raises:
        AstraStreamError: An input or the changelog was deleted or made anew, or the group's
            positions were moved by hand: the state does not belong to what would be read.
        ConfigError: An input has other partitions than it had.
    """
    require_same_topics({p.topic: position.topic_id for p, position in kept.items()}, topic_ids)
    for found in committed.values():
        require_same_topics({changelog: found.metadata}, topic_ids)
    expired = {}
    for partition in sorted(assigned):
        position, found = kept.get(partition), committed.get(partition)
        if position is None:
            _require_new(partition, kept, found, changelog)
        elif found is None:
            expired[partition] = position.offset
        elif found.offset != position.offset:
            raise AstraStreamError(
                f"the group's position in {partition} must be the one in {changelog}, "
                f"{position.offset}: got {found.offset}. Set it back; the state belongs there."
            )
    return expired


def _require_new(
    partition: Partition,
    kept: Mapping[Partition, Position],
    found: Committed | None,
    changelog: str,
) -> None:
    """A partition that the changelog does not know was never read."""
    if found is not None:
        raise AstraStreamError(
            f"{changelog} must hold the state of {partition}@{found.offset}: got nothing of it. "
            "It was emptied: restore it, or start a run of another name."
        )
    known = [p.index for p in kept if p.topic == partition.topic]
    if known:
        raise ConfigError(
            f"topic {partition.topic!r} must keep its {len(known)} partitions, since keys would "
            f"move: got {partition}. Start a run of another name."
        )
