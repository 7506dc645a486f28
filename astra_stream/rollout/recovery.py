"""What a worker finds out where its group has no position, so that no sample is played twice.

Brokers forget the positions of a group that nobody used for long (``offsets.retention.minutes``).
A request is written whole or not at all, so what was written of it says that it is done.
"""

from astra_stream.clock import Clock
from astra_stream.log.interface import Log
from astra_stream.log.processor import group_of
from astra_stream.log.reading import read_to_end
from astra_stream.rollout.settings import WorkerSettings


def ended_groups(log: Log, settings: WorkerSettings, *, clock: Clock) -> frozenset[str]:
    """The groups of which a worker has written the samples, or that their request was torn.

    Raises:
        TransientError: A topic cannot be read to its end.
    """
    topics = (settings.trajectories_topic, settings.evaluation_trajectories_topic)
    played = {group_of(m) for topic in topics for m in read_to_end(log, topic, clock=clock)}
    # Of a torn request the outcome is keyed by its group, where others are by their prompt.
    outcomes = read_to_end(log, settings.outcomes_topic, clock=clock)
    return frozenset(played | {(m.key or b"").decode(errors="replace") for m in outcomes})
