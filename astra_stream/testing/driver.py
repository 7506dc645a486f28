"""Runs a processor by hand: records in, what it writes out, restarts at any point; no log.

What it keeps goes through the changelog's own encoding, and a restart sees nothing else.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

from astra_stream.log.headers import pack, unpack
from astra_stream.log.interface import Message
from astra_stream.log.processor import (
    GROUP_HEADER,
    Effect,
    Finish,
    Forget,
    Incoming,
    Keep,
    Processor,
    Write,
)

SINGLETON = 0
"""Changelog partition of a processor that shares nothing."""
_OFFSETS = count()


class Driver:
    """One processor, and the entries that its changelog would hold.

    Args:
        make: Makes the processor, at the start and at every restart.
        partition: Changelog partition that it restores.
    """

    def __init__(self, make: Callable[[], Processor], *, partition: int = SINGLETON) -> None:
        self._make = make
        self._partition = partition
        self._kept: dict[str, bytes] = {}
        self._processor = make()
        self._processor.restore(partition, {})
        self.is_finished = False

    @property
    def kept(self) -> dict[str, Any]:
        """What a restart would be given, by key."""
        return {key: unpack(value) for key, value in self._kept.items()}

    def turn(self, records: Iterable[Incoming | Message], *, now_s: float = 0.0) -> list[Write]:
        """Hand over the records of one poll, let time pass, and commit.

        Args:
            records: In order; a bare message is one that does not decode.
            now_s: Time of the poll, seconds.

        Returns:
            What was written, in order.
        """
        effects = self._effects(records, now_s)
        for effect in effects:
            match effect:
                case Keep(key=key, value=value):
                    self._kept[key] = pack(value)
                case Forget(key=key):
                    self._kept.pop(key, None)
                case Finish():
                    self.is_finished = True
                case Write():
                    pass
        return [effect for effect in effects if isinstance(effect, Write)]

    def crash(self, records: Iterable[Incoming | Message], *, now_s: float = 0.0) -> None:
        """Do a turn whose commit never comes, and restart: nothing of it stands."""
        self._effects(records, now_s)
        self.restart()

    def restart(self) -> None:
        """Put a new processor in its place, restored from what was kept."""
        self._processor = self._make()
        self._processor.restore(self._partition, self.kept)

    def _effects(self, records: Iterable[Incoming | Message], now_s: float) -> Sequence[Effect]:
        effects: list[Effect] = []
        for record in records:
            if isinstance(record, Incoming):
                effects += self._processor.handle(record, now_s)
            else:
                effects += self._processor.unreadable(record, now_s)
        return [*effects, *self._processor.tick(now_s)]


def incoming(record: Any, *, value: bytes = b"", topic: str = "topic") -> Incoming:
    """A record as a processor is handed it; each stands at an offset of its own."""
    return Incoming(Message(topic, 0, next(_OFFSETS), None, value, 0), record)


def torn(*, key: bytes = b"", group_id: str = "", topic: str = "topic") -> Message:
    """A message that does not decode, with the group that its header names."""
    headers = ((GROUP_HEADER, group_id.encode()),) if group_id else ()
    return Message(topic, 0, next(_OFFSETS), key, b"\x00torn", 0, headers)
