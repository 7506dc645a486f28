"""Reading a topic to its end, once; for state that is rebuilt at a start."""

from collections.abc import Collection, Generator, Mapping

from astra_stream.clock import Clock
from astra_stream.errors import AstraStreamError, TransientError
from astra_stream.log.interface import Log, Message, Partition, missing_offset

POLL_S = 0.2
DEADLINE_S = 60.0


def read_to_end(
    log: Log,
    topic: str,
    partitions: Collection[Partition] | None = None,
    *,
    clock: Clock,
    starts: Mapping[Partition, int] | None = None,
    is_whole: bool = False,
) -> Generator[Message]:
    """Yield the records of a topic up to the high watermarks that it had when this began.

    The high watermark counts the pending records of a dying writer, which the last stable offset
    would hide: reading up to it waits until they are settled.

    Args:
        log: Where the topic is.
        topic: Its name.
        partitions: Which of its partitions; None for all.
        clock: For the deadline.
        starts: Offsets to begin at; without one, a partition is read from its beginning.
        is_whole: Whether it must begin at its first record, of which compaction alone may take.

    Raises:
        TransientError: Nothing came for a minute before the end; names topic and position.
        AstraStreamError: It must be whole, and its beginning was deleted.
    """
    reader = log.assign([topic])
    try:
        wanted = set(reader.assignment() if partitions is None else partitions)
        if is_whole:
            _require_beginning(reader.positions(wanted))
        reader.pause(reader.assignment() - wanted)
        for partition, offset in (starts or {}).items():
            reader.seek(partition, offset)
        positions = reader.positions(wanted)
        ends = reader.end_offsets(wanted)
        left = {p: end for p, end in ends.items() if positions[p] < end}
        deadline_s = clock.monotonic_s() + DEADLINE_S
        while left:
            messages = reader.poll(POLL_S)
            if messages:
                deadline_s = clock.monotonic_s() + DEADLINE_S
            yield from (m for m in messages if m.source in wanted)
            positions = reader.positions(left)
            left = {p: end for p, end in left.items() if positions[p] < end}
            if left and clock.monotonic_s() > deadline_s:
                raise TransientError(
                    f"{topic} must be readable to its end: got stuck for {DEADLINE_S:.0f} s at "
                    f"{positions}. A transaction may be pending; start again."
                )
    finally:
        reader.close()


def read_one(log: Log, place: Partition, offset: int) -> Message:
    """The record at an offset.

    Raises:
        AstraStreamError: It is no longer in the log, or no record.
        TransientError: Nothing came within a minute.
    """
    reader = log.assign([place.topic])
    try:
        reader.pause(reader.assignment() - {place})
        reader.seek(place, offset)
        for message in reader.poll(DEADLINE_S, max_messages=1):
            if message.offset == offset:
                return message
            raise missing_offset(place, offset)
    finally:
        reader.close()
    raise TransientError(f"{place}@{offset} must be readable: got nothing. Start again.")


def _require_beginning(begins: Mapping[Partition, int]) -> None:
    for partition, offset in begins.items():
        if offset:
            raise AstraStreamError(
                f"{partition} must be kept from its first record on: got a beginning at {offset}. "
                "Records were deleted, which only compaction may do here: restore the topic, and "
                "run astra topics apply RUN.toml."
            )
