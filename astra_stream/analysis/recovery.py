"""How long a struck process takes until its work reaches the log again, and what it did twice.

Work is a record of the topic that its role writes; the broker stamps each when it is appended.
"""

import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from astra_stream.clock import Clock
from astra_stream.errors import RecordError
from astra_stream.log.codec import Codec
from astra_stream.log.interface import Log
from astra_stream.log.names import TopicNames
from astra_stream.log.reading import read_to_end
from astra_stream.records import RolloutRequest, Trajectory, WeightAnnouncement
from astra_stream.training.service import REPEATED_BATCHES

ROLLOUT = "rollout"
TRAINER = "train"


@dataclass(slots=True)
class Work:
    """What reached the log of each service."""

    times_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Service, as the supervisor names it, to rising Unix times of its records, seconds."""
    num_played: int = 0
    """Episodes that left a trajectory."""
    num_played_again: int = 0
    """Earlier starts of those, which ended with their process."""
    num_trained: int = 0
    """Batches that made a version."""
    num_trained_again: int = 0
    """Batches that a trainer trained again after a start."""


def read_work(log: Log, codec: Codec, *, topics: TopicNames, policy: str, clock: Clock) -> Work:
    """Read when each service of a run wrote, to where its topics end.

    Records that do not decode are left out.

    Raises:
        ConfigError: A topic is missing.
        TransientError: The log cannot be read to its end in time.
    """
    work = Work()
    for topic in (
        topics.requests(),
        topics.trajectories(policy),
        topics.evaluation_trajectories(policy),
        topics.groups(policy),
        topics.batches(policy),
        topics.weights(policy),
    ):
        for message in read_to_end(log, topic, clock=clock):
            try:
                record = codec.decode(message.value or b"")
            except RecordError:
                continue
            _count(work, record)
            for service in _writers(topic, record, topics, policy):
                work.times_s[service].append(message.timestamp_ms / 1000)
    for times_s in work.times_s.values():
        times_s.sort()
    return work


def times_to_work(
    strikes: Iterable[tuple[float, str]], times_s: Mapping[str, Sequence[float]]
) -> dict[str, list[float]]:
    """Seconds from each strike to the next work of the process that was struck.

    Args:
        strikes: Unix time and service of each.
        times_s: Service to rising Unix times of its work. A server has no topic of its own: any
            work shows that the broker is back, any announcement that the store is.

    Returns:
        Service to one value for each strike that some work followed.
    """
    everything = sorted(at_s for times in times_s.values() for at_s in times)
    found: dict[str, list[float]] = defaultdict(list)
    for at_s, name in strikes:
        times = times_s.get(name) or (everything if name == "kafka" else times_s.get(TRAINER, ()))
        place = bisect.bisect_right(times, at_s)
        if place < len(times):
            found[name].append(times[place] - at_s)
    return dict(found)


def _count(work: Work, record: object) -> None:
    if isinstance(record, Trajectory):
        work.num_played += 1
        work.num_played_again += record.attempt
    elif isinstance(record, WeightAnnouncement) and REPEATED_BATCHES in record.train_metrics:
        work.num_trained += 1
        work.num_trained_again += int(record.train_metrics[REPEATED_BATCHES])


def _writers(topic: str, record: object, topics: TopicNames, policy: str) -> Iterator[str]:
    """Services, as the supervisor names them, whose work a record is."""
    if isinstance(record, Trajectory):
        yield f"{ROLLOUT}-{record.worker.rpartition('/')[2]}"
    elif isinstance(record, RolloutRequest):
        yield "evaluator" if record.purpose == "evaluate" else "scheduler"
    elif topic == topics.groups(policy):
        yield "pipeline"
    elif topic == topics.batches(policy):
        yield "assembler"
    elif topic == topics.weights(policy):
        yield TRAINER
