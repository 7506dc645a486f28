"""A processor's changelog: what to write for the effects of a poll, and how to read it back.

Entries are msgpack under the state's key. ``reads`` entries are not state: each says which ranges a
transaction consumed, in order, and the clock that its decisions saw; replay goes by them.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import Any

from astra_stream.clock import Clock
from astra_stream.log.headers import pack, unpack
from astra_stream.log.interface import Log, Message, Partition
from astra_stream.log.processor import Effect, Forget, Keep
from astra_stream.log.reading import read_to_end

READS = b"reads/"


class Changelog:
    """Knows which keys of each partition stand in the topic, so that it writes no empty news."""

    def __init__(self, topic: str, *, writer: str) -> None:
        self.topic = topic
        self._reads = READS + writer.encode() + b"/"
        self._keys: dict[int, set[str]] = {}
        self._transactions = 0

    def restore(
        self, log: Log, partitions: Collection[int], *, clock: Clock
    ) -> dict[int, dict[str, Any]]:
        """Read partitions to their high watermark.

        The high watermark counts a dying predecessor's pending records, which the last stable
        offset would hide: reading up to it waits until they are settled.

        Raises:
            TransientError: It took longer than a minute.
        """
        entries: dict[int, dict[str, Any]] = {index: {} for index in partitions}
        wanted = {Partition(self.topic, index) for index in partitions}
        for message in read_to_end(log, self.topic, wanted, clock=clock):
            key = message.key or b""
            if key.startswith(self._reads):
                number = int(key.removeprefix(self._reads))
                self._transactions = max(self._transactions, number + 1)
            elif key.startswith(READS):
                continue
            elif message.value is None:
                entries[message.partition].pop(key.decode(), None)
            else:
                entries[message.partition][key.decode()] = unpack(message.value)
        for index, found in entries.items():
            self._keys[index] = set(found)
        return entries

    def release(self, partition: int) -> None:
        """Forget what stands in a partition that another process has now."""
        self._keys.pop(partition, None)

    def entries(
        self, partition: int, effects: Iterable[Effect]
    ) -> list[tuple[bytes, bytes | None]]:
        """Key and value to write for a partition's effects: the last word on each key."""
        last: dict[str, Keep | Forget] = {}
        for effect in effects:
            if isinstance(effect, Keep | Forget):
                last[effect.key] = effect
        known = self._keys.setdefault(partition, set())
        rows: list[tuple[bytes, bytes | None]] = []
        for key, effect in last.items():
            if isinstance(effect, Keep):
                known.add(key)
                rows.append((key.encode(), pack(effect.value)))
            elif key in known:
                known.remove(key)
                rows.append((key.encode(), None))
        return rows

    def reads(self, messages: Sequence[Message], now_s: float) -> tuple[bytes, bytes]:
        """The entry that records what a transaction consumed, in order, and its clock."""
        ranges = []
        for source, run in groupby(messages, key=lambda message: message.source):
            offsets = [message.offset for message in run]
            ranges.append([source.topic, source.index, offsets[0], offsets[-1]])
        key = self._reads + str(self._transactions).encode()
        self._transactions += 1
        return key, pack({"ranges": ranges, "now_s": now_s})
