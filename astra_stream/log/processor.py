"""What a processor is to the log: a state machine that is handed records and answers with effects.

A processor keeps what it knows in memory and says, with ``Keep`` and ``Forget``, what would rebuild
it. The runtime writes all effects of a poll in one transaction with the positions; a processor
whose transaction failed is thrown away with its process, and the next one is restored.
"""

from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

from astra_stream.log.interface import Message

GROUP_HEADER = "group_id"


def group_of(message: Message) -> str:
    """The group that a message's header names; empty where it names none."""
    return dict(message.headers).get(GROUP_HEADER, b"").decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Incoming:
    """A decoded record and where it stood."""

    message: Message
    record: Any


@dataclass(frozen=True, slots=True)
class Write:
    """Write a record to a topic."""

    topic: str
    key: str
    record: Any
    partition: int | None = None
    """Partition to write to; None lets the key decide."""
    group_id: str = ""
    """Group that the record is part of, as a header: it is to end even if the record is torn."""
    value: bytes | None = None
    """The record encoded, by who had to know its size; None where nobody has."""

    @property
    def headers(self) -> tuple[tuple[str, bytes], ...]:
        """Headers of the message."""
        return ((GROUP_HEADER, self.group_id.encode()),) if self.group_id else ()


@dataclass(frozen=True, slots=True)
class Keep:
    """Remember ``value`` under ``key`` in the changelog."""

    key: str
    value: Any
    """Anything msgpack can carry."""


@dataclass(frozen=True, slots=True)
class Forget:
    """Delete ``key`` from the changelog."""

    key: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The work is done: commit, then leave."""


Effect = Write | Keep | Forget | Finish


class Processor(Protocol):
    """Handles records of its input topics, one after another."""

    @property
    def name(self) -> str:
        """Word for logs, dead letters and the changelog's name."""
        ...

    def restore(self, partition: int, entries: MutableMapping[str, Any]) -> None:
        """Take over a partition's state, by key; called once before its first record.

        It is the processor's from now on. It may be in a file: a change of it lasts beyond the
        transaction only if ``Keep`` or ``Forget`` say so too.
        """
        ...

    def release(self, partition: int) -> None:
        """Forget a partition's state in memory: another process has it now."""
        ...

    def handle(self, incoming: Incoming, now_s: float) -> Iterable[Effect]:
        """Answer a record.

        Raises:
            RecordError: The record is bad: it goes to the dead letters.
        """
        ...

    def unreadable(self, message: Message, now_s: float) -> Iterable[Effect]:
        """Answer a record that does not decode or that ``handle`` refused: its group ends.

        Its dead letter is written beside. ``handle`` refuses a record before it changes anything.
        """
        ...

    def tick(self, now_s: float) -> Iterable[Effect]:
        """Answer the passing of time; called once after each poll."""
        ...
