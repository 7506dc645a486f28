"""How samples are written: to which topic, and what of one that is larger than a record may be."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from astra_stream.errors import RecordError
from astra_stream.log.codec import Codec
from astra_stream.log.interface import Log, require_size
from astra_stream.log.processor import Write
from astra_stream.records import RolloutRequest, Trajectory
from astra_stream.rollout.episode import Player, given_up_episode
from astra_stream.rollout.settings import WorkerSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SampleWriting:
    """Encodes samples here, where their size can still be answered for."""

    codec: Codec
    player: Player
    topics: Mapping[str, str]
    """Topic of the samples of each purpose."""
    limits_bytes: Mapping[str, int]
    """Largest record that each of these topics takes."""

    @classmethod
    def to(
        cls, log: Log, settings: WorkerSettings, *, codec: Codec, player: Player
    ) -> "SampleWriting":
        """Ask the log for the limits of a worker's topics."""
        topics = {
            "train": settings.trajectories_topic,
            "evaluate": settings.evaluation_trajectories_topic,
        }
        limits_bytes = {topic: log.max_message_bytes(topic) for topic in topics.values()}
        return cls(codec=codec, player=player, topics=topics, limits_bytes=limits_bytes)

    def write(self, request: RolloutRequest, trajectory: Trajectory) -> Write:
        """What is written of a sample: a failed one, without tokens, where it is too large."""
        write = self._encoded(request, trajectory)
        try:
            require_size(
                write.topic,
                trajectory.trajectory_id.encode(),
                write.value,
                headers=write.headers,
                limit_bytes=self.limits_bytes[write.topic],
            )
        except RecordError as error:
            logger.warning("sample too large", extra={"reason": str(error)})
            failed = given_up_episode(request, trajectory.sample_index, self.player, error)
            return self._encoded(request, failed)
        return write

    def _encoded(self, request: RolloutRequest, trajectory: Trajectory) -> Write:
        return Write(
            self.topics[request.purpose],
            trajectory.prompt_id,
            trajectory,
            group_id=request.group_id,
            value=self.codec.encode(trajectory),
        )
