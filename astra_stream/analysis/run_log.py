"""Follows a run through its topics, from the beginning and for as long as it is asked.

It joins no group and writes nothing: any number of people may watch.
"""

from types import TracebackType
from typing import Self

from astra_stream.analysis.run_state import RunState
from astra_stream.clock import Clock
from astra_stream.errors import RecordError, TransientError
from astra_stream.log.codec import Codec
from astra_stream.log.interface import Log
from astra_stream.log.names import TopicNames
from astra_stream.log.reading import DEADLINE_S, POLL_S
from astra_stream.records import Evaluation, Outcome, WeightAnnouncement

MAX_MESSAGES = 5000
FOLDED = (WeightAnnouncement, Outcome, Evaluation)
"""What stands in the topics that are read."""


class RunTail:
    """Reads announcements, outcomes and evaluations of one policy into ``state``.

    A step's metrics stand in the announcement of what it made. One thread uses it at a time.
    """

    def __init__(
        self, log: Log, codec: Codec, *, topics: TopicNames, policy: str, clock: Clock
    ) -> None:
        """Start at the beginning of the topics.

        Raises:
            ConfigError: A topic is missing.
        """
        self.state = RunState()
        self._codec = codec
        self._policy = policy
        self._clock = clock
        names = [topics.weights(policy), topics.outcomes, topics.evaluations]
        self._reader = log.assign(names)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def poll(self, timeout_s: float) -> bool:
        """Wait for records, at most ``timeout_s`` seconds, and fold what there is.

        Returns:
            Whether there was any record, of whichever policy.

        Raises:
            TransientError: The log cannot be reached within the deadline.
        """
        messages = self._reader.poll(timeout_s, max_messages=MAX_MESSAGES)
        for message in messages:
            try:
                record = self._codec.decode(message.value or b"")
            except RecordError:
                continue  # Who needs it says so; who looks on goes on looking.
            if isinstance(record, FOLDED) and record.policy == self._policy:
                self.state.fold(record, at_s=message.timestamp_ms / 1000)
        return bool(messages)

    def catch_up(self) -> RunState:
        """Fold everything that stood in the log when this began.

        Raises:
            TransientError: The end was not reached within a minute; names where it stands.
        """
        ends = self._reader.end_offsets(self._reader.assignment())
        left = {p: end for p, end in ends.items() if end > 0}
        deadline_s = self._clock.monotonic_s() + DEADLINE_S
        while left:
            self.poll(POLL_S)
            positions = self._reader.positions(left)
            left = {p: end for p, end in left.items() if positions[p] < end}
            if left and self._clock.monotonic_s() > deadline_s:
                stuck = ", ".join(f"{p}@{positions[p]}" for p in left)
                raise TransientError(
                    f"the run's topics must be readable to their end within {DEADLINE_S:.0f} s: "
                    f"got stuck at {stuck}. A transaction may be pending; try again."
                )
        return self.state

    def close(self) -> None:
        """Stop reading."""
        self._reader.close()
