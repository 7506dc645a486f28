"""What the end of a child means, in words: it was started again, or its disk is full."""

import shutil
from typing import TYPE_CHECKING

from astra_stream.errors import TransientError

if TYPE_CHECKING:
    from astra_stream.local.supervisor import ChildExited

LEAST_FREE_BYTES = 32 * 2**20
"""Two of the largest messages that the embedded broker takes: with less, it may have found no room
for the next one."""


def last_words(event: "ChildExited") -> str:
    """The last line that a child wrote."""
    said = event.log_tail.strip().splitlines()
    return said[-1].removeprefix("astra: ") if said else "nothing"


def restarted_text(event: "ChildExited") -> str:
    """Says that a child ended and was started again, and why, as far as it said so."""
    how = f"signal {-event.code}" if event.code < 0 else f"exit {event.code}"
    return f"{event.name} was started again after {how}; last it said: {last_words(event)}"


def refuse_full_disk(event: "ChildExited") -> None:
    """Name the disk that a child failed on: that of its log, and of an embedded server's data.

    Raises:
        TransientError: The disk has no room.
    """
    directory = event.log_path.parent
    free_bytes = shutil.disk_usage(directory).free
    if event.code and free_bytes < LEAST_FREE_BYTES:
        raise TransientError(
            f"the disk of {directory} must have room for {event.name}: got "
            f"{free_bytes / 2**20:.0f} MiB free, and exit {event.code}. Make room, then go on with "
            f"astra run --resume {directory.parent}; what was acknowledged is there."
        )
