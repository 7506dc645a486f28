"""A record that cannot be processed, kept whole with what went wrong."""

import traceback

from astra_stream.errors import RecordError
from astra_stream.log.interface import Message
from astra_stream.records import DeadLetter


def make_dead_letter(
    message: Message, error: Exception, *, service: str, stage: str, now_s: float
) -> DeadLetter:
    """A dead letter for ``message``; with a stack where the error is not the record's own."""
    expected = isinstance(error, RecordError)
    return DeadLetter(
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        service=service,
        stage=stage,
        error_kind=type(error).__name__,
        error=str(error),
        stack="" if expected else "".join(traceback.format_exception(error)),
        key=message.key or b"",
        value=message.value or b"",
        headers=dict(message.headers),
        at_s=now_s,
    )
