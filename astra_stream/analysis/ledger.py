"""Everything that an audit compares: one entry for each record of a run, with its coordinates.

A ledger takes records in any order and decides nothing. Of a run that still goes on, effects must
be read before their causes (``reading_order``): what is then missing has not happened yet.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from astra_stream.clock import Clock
from astra_stream.errors import AstraStreamError
from astra_stream.log.codec import Codec
from astra_stream.log.interface import Log
from astra_stream.log.names import TopicNames
from astra_stream.log.reading import read_to_end
from astra_stream.records import (
    BatchSlice,
    DeadLetter,
    Outcome,
    PolicyVersion,
    RolloutRequest,
    Sample,
    Trajectory,
    WeightAnnouncement,
)

ENDINGS = ("trained", "dropped")


def read_ledger(
    log: Log, codec: Codec, *, topics: TopicNames, policy: str, max_staleness: int, clock: Clock
) -> "Ledger":
    """Enter every committed record of a run, to where its topics ended.

    Raises:
        ConfigError: A topic is missing.
        TransientError: The log cannot be read to its end in time.
    """
    ledger = Ledger(policy=policy, max_staleness=max_staleness)
    for topic in reading_order(topics, policy):
        for message in read_to_end(log, topic, clock=clock):
            try:
                record = codec.decode(message.value or b"")
            except AstraStreamError as error:
                ledger.unreadable[message.coordinates] = str(error)
            else:
                ledger.take(record, message.coordinates)
    return ledger


def reading_order(names: TopicNames, policy: str) -> tuple[str, ...]:
    """The topics of an audit, effects before causes."""
    return (
        names.weights(policy),
        names.outcomes,
        names.dead_letters,
        names.batches(policy),
        names.evaluation_trajectories(policy),
        names.trajectories(policy),
        names.requests(),
    )


@dataclass(frozen=True, slots=True)
class Issued:
    """What a request said of its group."""

    group_size: int
    where: str


@dataclass(frozen=True, slots=True)
class Played:
    """What a trajectory said of its sample."""

    group_id: str
    sample_index: int
    oldest: PolicyVersion | None
    """Oldest version among its trained tokens; None where none trains."""
    error_kind: str
    where: str


@dataclass(frozen=True, slots=True)
class Ended:
    """What an outcome said of its group."""

    event: str
    reason: str
    trained_version: int
    where: str


@dataclass(slots=True)
class Batched:
    """Slices of one batch, as far as they were seen."""

    count: int
    where: str
    indices: list[int] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Announced:
    """An announcement and where it stands."""

    record: WeightAnnouncement
    where: str


@dataclass(slots=True, kw_only=True)
class Ledger:
    """Entries of one policy, by the id of what they speak of, in the order they were taken."""

    policy: str
    max_staleness: int
    issued: dict[str, list[Issued]] = field(default_factory=lambda: defaultdict(list))
    """By group."""
    ended: dict[str, list[Ended]] = field(default_factory=lambda: defaultdict(list))
    """By group."""
    played: dict[str, list[Played]] = field(default_factory=lambda: defaultdict(list))
    """By trajectory."""
    evaluated: dict[str, list[Played]] = field(default_factory=lambda: defaultdict(list))
    """By trajectory."""
    batches: dict[int, Batched] = field(default_factory=dict)
    """By the version that they train."""
    announced: list[Announced] = field(default_factory=list)
    num_dead_letters: int = 0
    retrained: dict[int, str] = field(default_factory=dict)
    """Root hash of each version's number, where its batches were trained again."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Coordinates of records, and keys of checkpoints, that cannot be decoded, and why."""
    present: Mapping[str, int] | None = None
    """Objects in the store, key to bytes; None where nobody looked."""
    checkpoints: dict[str, Mapping[str, int]] = field(default_factory=dict)
    """Key of a checkpoint's index to the objects that it names, key to bytes."""

    def take(self, record: Any, where: str) -> None:
        """Enter a record that was found at ``where``; those of other policies are left out."""
        match record:
            case DeadLetter():
                self.num_dead_letters += 1
            case RolloutRequest():
                if record.purpose == "train":
                    self.issued[record.group_id].append(Issued(record.group_size, where))
            case Trajectory(policy=self.policy):
                self._take_trajectory(record, where)
            case Outcome(policy=self.policy):
                ended = Ended(record.event, record.reason, record.trained_version, where)
                self.ended[record.group_id].append(ended)
            case BatchSlice(policy=self.policy):
                empty = Batched(record.count, where)
                batch = self.batches.setdefault(record.trains_version, empty)
                batch.indices.append(record.index)
                batch.samples += record.samples
            case WeightAnnouncement(policy=self.policy):
                self.announced.append(Announced(record, where))

    def _take_trajectory(self, record: Trajectory, where: str) -> None:
        oldest = record.version_range[0] if record.version_range else None
        played = Played(record.group_id, record.sample_index, oldest, record.error_kind, where)
        topic = self.evaluated if record.purpose == "evaluate" else self.played
        topic[record.trajectory_id].append(played)

    @property
    def is_finished(self) -> bool:
        """Whether the last version is announced as final."""
        return any(one.record.kind == "final" for one in self.announced)

    @property
    def newest(self) -> int:
        """Number of the newest version: the batches below it are trained."""
        return max((one.record.version.number for one in self.announced), default=0)

    def endings(self) -> dict[str, list[Ended]]:
        """What ended each group that has ended, by group.

        An outcome of a version that is not announced yet was read too early to count.
        """
        newest = self.newest
        found: dict[str, list[Ended]] = {}
        for group, entries in self.ended.items():
            ends = [e for e in entries if e.event in ENDINGS and e.trained_version < newest]
            if group and ends:
                found[group] = ends
        return found
