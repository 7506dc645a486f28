"""Reading a topic to its end, once; for state that is rebuilt at a start."""

from collections.abc import Collection, Iterator

from astra_stream.clock import Clock
from astra_stream.errors import TransientError
from astra_stream.log.interface import Log, Message, Partition

POLL_S = 0.2
DEADLINE_S = 60.0


def read_to_end(
    log: Log, topic: str, partitions: Collection[Partition] | None = None, *, clock: Clock
) -> Iterator[Message]:
    """Yield the records of a topic up to the high watermarks that it had when this began.

    The high watermark counts the pending records of a dying writer, which the last stable offset
    would hide: reading up to it waits until they are settled.

    Args:
        log: Where the topic is.
        topic: Its name.
        partitions: Which of its partitions; None for all.
        clock: For the deadline.

    Raises:
        TransientError: The end was not reached within a minute; names topic and position.
    """
    reader = log.assign([topic])
    try:
        wanted = set(reader.assignment() if partitions is None else partitions)
        reader.pause(reader.assignment() - wanted)
        left = {p: end for p, end in reader.end_offsets(wanted).items() if end > 0}
        deadline_s = clock.monotonic_s() + DEADLINE_S
        while left:
            yield from (m for m in reader.poll(POLL_S) if m.source in wanted)
            positions = reader.positions(left)
            left = {p: end for p, end in left.items() if positions[p] < end}
            if left and clock.monotonic_s() > deadline_s:
                raise TransientError(
                    f"{topic} must be readable to its end within {DEADLINE_S:.0f} s: got stuck at "
                    f"{positions}. A transaction may be pending; start again."
                )
    finally:
        reader.close()
