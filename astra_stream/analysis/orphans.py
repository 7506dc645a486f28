"""Objects of a run that nothing names, and which of them nothing can name any more.

A trainer that starts again finds an upload of its own, however old, and announces it: age alone
decides nothing. Announced versions only rise, though, so what belongs to a version that is not
above the newest one is named by now, or never. The grace period comes on top.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from astra_stream.clock import Clock
from astra_stream.log.codec import Codec
from astra_stream.log.interface import Log
from astra_stream.log.reading import read_to_end
from astra_stream.records import PolicyVersion, WeightAnnouncement
from astra_stream.store.blobs import Store, StoredObject
from astra_stream.training.checkpoints import checkpoint_objects

YOUNG = "it is younger than the grace period"
PENDING = "its version may still be announced"
UNPLACED = "it belongs to no version, and the run goes on"
FOREIGN = "it is neither weights nor a checkpoint of this policy"

_PLACED = re.compile(r"(?:weights|checkpoints)/([^/]+)/(?:([0-9]+)/([0-9]+)/)?.+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """An object that nothing names."""

    key: str
    size_bytes: int
    age_s: float
    """Seconds since it was written, at most: by the store's clock for the writing."""
    kept: str
    """Why it must stay; empty where it may be deleted."""


def named_keys(announced: Iterable[WeightAnnouncement]) -> set[str]:
    """Keys of the objects, and of the checkpoints' indexes, that announcements name."""
    keys = {entry.key for one in announced for entry in one.objects}
    return keys | checkpoint_keys(announced)


def checkpoint_keys(announced: Iterable[WeightAnnouncement]) -> set[str]:
    """Keys of the checkpoints' indexes that announcements name."""
    return {one.checkpoint for one in announced if one.checkpoint}


def orphans(
    objects: Iterable[StoredObject],
    announced: Sequence[WeightAnnouncement],
    *,
    in_checkpoints: Collection[str],
    policy: str,
    now_s: float,
    grace_s: float,
) -> list[Orphan]:
    """Find the objects that nothing names, and say of each why it must stay.

    Args:
        objects: What the store held, listed before the announcements were read.
        announced: Every announcement of the policy.
        in_checkpoints: Keys of the objects that the announced checkpoints name.
        policy: Whose weights and checkpoints may be deleted.
        now_s: Unix time, no later than that of the list.
        grace_s: Age below which nothing is deleted, seconds.

    Returns:
        One entry an object, in the order of ``objects``.
    """
    named = named_keys(announced) | set(in_checkpoints)
    newest = max((one.version for one in announced), default=None)
    is_over = any(one.kind == "final" for one in announced)
    found = []
    for one in objects:
        if one.key not in named:
            age_s = now_s - one.modified_s
            kept = _foreign(one.key, policy)
            kept = kept or ("" if is_over else _nameable(one.key, newest))
            kept = kept or (YOUNG if age_s < grace_s else "")
            found.append(Orphan(key=one.key, size_bytes=one.size_bytes, age_s=age_s, kept=kept))
    return found


def _foreign(key: str, policy: str) -> str:
    match = _PLACED.fullmatch(key)
    return "" if match is not None and match[1] == policy else FOREIGN


def _nameable(key: str, newest: PolicyVersion | None) -> str:
    """Why a later announcement may name the object; empty where none can."""
    match = _PLACED.fullmatch(key)
    if match is None or match[2] is None:
        return UNPLACED
    version = PolicyVersion(int(match[2]), int(match[3]))
    return PENDING if newest is None or version > newest else ""


def read_orphans(
    log: Log, codec: Codec, store: Store, *, topic: str, policy: str, grace_s: float, clock: Clock
) -> list[Orphan]:
    """The orphans of a run, by what its store and its topic of announcements hold.

    Raises:
        RecordError: An announcement cannot be read, so that nobody knows what it names.
        TransientError: Log or store cannot be reached.
        WeightsError: An announced checkpoint is not there or damaged, so that nobody knows what it
            names.
    """
    now_s = clock.now_s()
    objects = list(store.list(""))
    messages = read_to_end(log, topic, clock=clock)
    announced = [codec.decode(message.value or b"") for message in messages]
    in_checkpoints: set[str] = set()
    for key in sorted(checkpoint_keys(announced)):
        in_checkpoints.update(checkpoint_objects(store, key))
    return orphans(
        objects,
        announced,
        in_checkpoints=in_checkpoints,
        policy=policy,
        now_s=now_s,
        grace_s=grace_s,
    )
