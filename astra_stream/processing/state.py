"""A processor's changelog: what to write for the effects of a poll, and how to read it back.

Entries are sealed msgpack under the state's key. Two kinds are not state. ``reads`` entries say
which ranges a transaction consumed, in order, and the clock that its decisions saw; replay goes by
them. ``position`` entries are where reading stands in each input, and in which topic of that name.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from astra_stream.clock import Clock
from astra_stream.errors import ConfigError, SchemaError
from astra_stream.log.headers import seal, unseal
from astra_stream.log.interface import Log, Message, Partition
from astra_stream.log.processor import Effect, Forget, Keep
from astra_stream.log.reading import read_to_end
from astra_stream.processing.positions import Position

READS = b"reads/"
POSITION = b"position/"


class Changelog:
    """Knows which keys of each partition stand in the topic, so that it writes no empty news."""

    def __init__(self, topic: str, *, writer: str) -> None:
        self.topic = topic
        self.newest_s = 0.0
        """The latest clock that a decision saw."""
        self._reads = READS + writer.encode() + b"/"
        self._keys: dict[int, set[str]] = {}
        self._positions: dict[int, dict[Partition, Position]] = {}
        self._transactions = 0

    def restore(
        self, log: Log, partitions: Collection[int], *, clock: Clock
    ) -> dict[int, dict[str, Any]]:
        """Read partitions to their high watermark.

        The high watermark counts a dying predecessor's pending records, which the last stable
        offset would hide: reading up to it waits until they are settled.

        Raises:
            TransientError: It took longer than a minute.
            ConfigError: The topic has fewer partitions than the input that it follows.
            AstraStreamError: The topic's beginning was deleted.
            SchemaError: An entry is not as it was written.
        """
        self._require_partitions(log, partitions)
        entries: dict[int, dict[str, Any]] = {index: {} for index in partitions}
        self._positions |= {index: {} for index in partitions}
        wanted = {Partition(self.topic, index) for index in partitions}
        for message in read_to_end(log, self.topic, wanted, clock=clock, is_whole=True):
            self._take(message, entries[message.partition])
        for index, found in entries.items():
            self._keys[index] = set(found)
        return entries

    def release(self, partition: int) -> None:
        """Forget what stands in a partition that another process has now."""
        self._keys.pop(partition, None)
        self._positions.pop(partition, None)

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
                rows.append((key.encode(), seal(key.encode(), effect.value)))
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
        self.newest_s = now_s
        return key, seal(key, {"ranges": ranges, "now_s": now_s})

    @property
    def positions(self) -> Mapping[Partition, Position]:
        """Where reading stands in each input, as far as it is written."""
        return {p: position for found in self._positions.values() for p, position in found.items()}

    def position(self, place: int, source: Partition, position: Position) -> tuple[bytes, bytes]:
        """The entry, for the changelog's partition ``place``, that reading stands there now."""
        self._positions.setdefault(place, {})[source] = position
        key = POSITION + f"{source.topic}/{source.index}".encode()
        return key, seal(key, list(position))

    def _take(self, message: Message, entries: dict[str, Any]) -> None:
        key = message.key or b""
        if message.value is None:
            entries.pop(key.decode(), None)
            return
        try:
            value = unseal(key, message.value)
        except SchemaError as error:
            raise SchemaError(f"{message.coordinates}: {error}") from error
        if key.startswith(READS):
            self.newest_s = max(self.newest_s, value["now_s"])
            if key.startswith(self._reads):
                number = int(key.removeprefix(self._reads))
                self._transactions = max(self._transactions, number + 1)
        elif key.startswith(POSITION):
            topic, _, index = key.removeprefix(POSITION).decode().rpartition("/")
            place = self._positions[message.partition]
            place[Partition(topic, int(index))] = Position(*value)
        else:
            entries[key.decode()] = value

    def _require_partitions(self, log: Log, partitions: Collection[int]) -> None:
        count = log.num_partitions(self.topic)
        if max(partitions, default=0) >= count:
            raise ConfigError(
                f"topic {self.topic!r} must have a partition for each of the input that it "
                f"follows: got {count}, and input of partition {max(partitions)}. Partitions may "
                "not be added to a topic of a run; start a run of another name."
            )
