"""A record that cannot be processed, kept with what went wrong: whole, or cut where too large.

A letter must itself fit into a message, whatever is in it; the record stands where it stood.
"""

import traceback

from astra_stream.errors import RecordError
from astra_stream.log.interface import MAX_MESSAGE_BYTES, Message
from astra_stream.records import DeadLetter
from astra_stream.records.dead_letter import size_bytes

MAX_TEXT_CHARACTERS = 64 * 1024
"""Longest error and longest stack."""
MAX_RECORD_BYTES = MAX_MESSAGE_BYTES - 1024 * 1024
"""Most bytes of a record that a letter carries; the rest is for error, stack and names."""
CUT_BYTES = 64 * 1024
"""How much of its key and of its value a larger record leaves, and of headers all or none."""


def make_dead_letter(
    message: Message, error: Exception, *, service: str, stage: str, now_s: float
) -> DeadLetter:
    """A dead letter for ``message``; with a stack where the error is not the record's own."""
    expected = isinstance(error, RecordError)
    stack = "" if expected else "".join(traceback.format_exception(error))
    key, value, headers = message.key or b"", message.value or b"", dict(message.headers)
    num_bytes = size_bytes(key, value, headers)
    if num_bytes > MAX_RECORD_BYTES:
        key, value = key[:CUT_BYTES], value[:CUT_BYTES]
        headers = headers if size_bytes(b"", b"", headers) <= CUT_BYTES else {}
    return DeadLetter(
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        service=service,
        stage=stage,
        error_kind=type(error).__name__,
        error=str(error)[:MAX_TEXT_CHARACTERS],
        stack=stack[-MAX_TEXT_CHARACTERS:],
        key=key,
        value=value,
        headers=headers,
        at_s=now_s,
        num_bytes=num_bytes,
    )
