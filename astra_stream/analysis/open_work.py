"""What of a run's work is under way: groups that are open, and whether a batch waits.

Read from the topics when somebody asks, from about where the oldest open group was requested, so
that it costs little however long the run is.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from astra_stream.analysis.run_state import RunState
from astra_stream.clock import Clock
from astra_stream.errors import RecordError
from astra_stream.log.codec import Codec
from astra_stream.log.interface import Committed, Log, Message, Partition
from astra_stream.log.names import TopicNames
from astra_stream.log.progress import PartitionProgress
from astra_stream.log.reading import read_to_end
from astra_stream.records import Outcome, PolicyVersion, RolloutRequest, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenGroup:
    """A group that was requested and of which no outcome says that it is complete."""

    group_id: str
    purpose: str
    """train or evaluate."""
    group_size: int
    min_version: PolicyVersion
    """Oldest version that may play it."""
    asked_at_s: float
    """Unix time of its request, seconds."""
    where: str
    """Coordinates of its request."""
    num_starts: int = 0
    """How often workers began it and neither finished nor gave it back."""
    num_samples: int = 0
    """Samples that are in the log."""
    worker: str = ""
    """Who played the newest of them; empty where nobody did."""

    @property
    def is_played(self) -> bool:
        """Whether every sample is there."""
        return self.num_samples >= self.group_size


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenWork:
    """What of a run's work is under way."""

    groups: Sequence[OpenGroup] = ()
    """To train on, oldest first."""
    evaluated: Sequence[OpenGroup] = ()
    """Of the evaluation of the newest version, complete ones too, oldest first."""
    has_batch: bool = False
    """Whether there is a batch that the trainer has not trained."""
    newest_played: PolicyVersion | None = None
    """Newest version that played lately; None where nothing was played."""


@dataclass(frozen=True, kw_only=True)
class OpenWorkReader:
    """Reads the topics of one policy; joins no group and writes nothing."""

    log: Log
    codec: Codec
    topics: TopicNames
    policy: str
    max_staleness: int
    """Versions that a group is open for, at most, where nothing is slow."""
    clock: Clock

    def read(self, state: RunState) -> OpenWork:
        """Say what is under way; effects are read first, so that what they end is not open.

        Args:
            state: What the topics say of versions.

        Raises:
            TransientError: The log cannot be read to its end in time; names topic and position.
        """
        topics, since_ms = self.topics, self._since_ms(state)
        has_batch = self._has_batch()
        ended: set[str] = set()
        played: dict[str, list[tuple[Message, Trajectory]]] = defaultdict(list)
        for topic in (
            topics.outcomes,
            topics.trajectories(self.policy),
            topics.evaluation_trajectories(self.policy),
        ):
            for message, record in self._records(topic, self._offsets_at(topic, since_ms)):
                if isinstance(record, Outcome):
                    ended.add(record.group_id)
                else:
                    played[record.group_id].append((message, record))
        asked = {one.group_id: one for one in self._asked(since_ms, played)}
        groups = [one for one in asked.values() if one.group_id not in ended]
        groups.sort(key=lambda one: (one.min_version, one.asked_at_s))
        newest = state.newest.version if state.newest else None
        ranges = [one.version_range for found in played.values() for _, one in found]
        return OpenWork(
            groups=[one for one in groups if one.purpose == "train"],
            evaluated=[
                one for one in groups if one.purpose == "evaluate" and one.min_version == newest
            ],
            has_batch=has_batch,
            newest_played=max((found[1] for found in ranges if found), default=None),
        )

    def _since_ms(self, state: RunState) -> int:
        """When the oldest open group was requested at the latest, as far as versions tell."""
        number = state.newest.version.number if state.newest else 0
        before = state.versions.get(number - self.max_staleness - 2)
        return int(before.at_s * 1000) if before else 0

    def _has_batch(self) -> bool:
        topic = self.topics.batches(self.policy)
        trained = self._committed(topic, self.topics.group("trainer", self.policy))
        starts = {place: position.offset for place, position in trained.items()}
        with closing(read_to_end(self.log, topic, clock=self.clock, starts=starts)) as messages:
            return next(messages, None) is not None

    def _asked(
        self, since_ms: int, played: Mapping[str, Sequence[tuple[Message, Trajectory]]]
    ) -> Iterator[OpenGroup]:
        """Requests that are not old, and old ones that no worker has finished."""
        topic = self.topics.requests()
        committed = self._committed(topic, self.topics.group("rollout", "main"))
        recent = self._offsets_at(topic, since_ms)
        positions = {place: committed.get(place, Committed(0)) for place in recent}
        starts = {place: min(recent[place], positions[place].offset) for place in recent}
        progress = {p: PartitionProgress.from_committed(c) for p, c in positions.items()}
        for message, request in self._records(topic, starts):
            held = progress[message.source]
            if message.offset >= recent[message.source] or not held.is_done(message.offset):
                found = played.get(request.group_id, ())
                num_starts = held.num_starts(message.offset)
                yield _open_group(request, message, found, num_starts=num_starts)

    def _committed(self, topic: str, group: str) -> dict[Partition, Committed]:
        with closing(self.log.assign([topic], group=group)) as reader:
            return reader.committed(reader.assignment())

    def _offsets_at(self, topic: str, time_ms: int) -> dict[Partition, int]:
        with closing(self.log.assign([topic])) as reader:
            return reader.offsets_at(reader.assignment(), time_ms)

    def _records(
        self, topic: str, starts: Mapping[Partition, int]
    ) -> Iterator[tuple[Message, Any]]:
        """Records that decode; what does not is a dead letter and ends its group elsewhere."""
        for message in read_to_end(self.log, topic, clock=self.clock, starts=starts):
            try:
                yield message, self.codec.decode(message.value or b"")
            except RecordError:
                continue


def _open_group(
    request: RolloutRequest,
    message: Message,
    played: Sequence[tuple[Message, Trajectory]],
    *,
    num_starts: int,
) -> OpenGroup:
    # The samples of an earlier request of this group, for an evaluation that is made again.
    after = [one for at, one in played if at.timestamp_ms >= message.timestamp_ms]
    return OpenGroup(
        group_id=request.group_id,
        purpose=request.purpose,
        group_size=request.group_size,
        min_version=request.policies[0].min_version,
        asked_at_s=message.timestamp_ms / 1000,
        where=message.coordinates,
        num_starts=num_starts,
        num_samples=len({one.sample_index for one in after}),
        worker=after[-1].worker if after else "",
    )
