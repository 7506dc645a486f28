"""A processor's changelog: what to write for the effects of a poll, and how to read it back.

Entries are sealed msgpack under the state's key. Two kinds are not state. ``reads`` entries say
which ranges a transaction consumed, in order, and the clock that its decisions saw; replay goes by
them. ``position`` entries are where reading stands in each input, and in which topic of that name.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from astra_stream.clock import Clock
from astra_stream.errors import ConfigError, SchemaError
from astra_stream.log.headers import seal, unseal
from astra_stream.log.interface import Log, Message, Partition, Reader
from astra_stream.log.processor import Effect, Forget, Keep
from astra_stream.log.reading import read_to_end
from astra_stream.processing.positions import Position
from astra_stream.processing.stores import FileStore, MemoryStore, Row, StateStore

READS = b"reads/"
POSITION = b"position/"
TURN = "turn/"


class Changelog:
    """What a processor's transactions write of its state, and the stores that follow it.

    Args:
        log: Where the topic is.
        topic: Its name.
        writer: Number of the process among those that write the topic.
        clock: For deadlines.
        directory: Where partitions have files; None keeps their state in memory.
    """

    def __init__(
        self, log: Log, topic: str, *, writer: str, clock: Clock, directory: Path | None = None
    ) -> None:
        self.topic = topic
        self.newest_s = 0.0
        """The latest clock that a decision saw."""
        self._log = log
        self._clock = clock
        self._directory = directory
        self._reads = READS + writer.encode() + b"/"
        self._turn = TURN + writer
        self._stores: dict[int, StateStore] = {}
        self._written: dict[int, list[Row]] = defaultdict(list)
        self._positions: dict[int, dict[Partition, Position]] = {}
        self._transactions = 0
        self._ends: Reader | None = None

    def restore(self, partitions: Collection[int]) -> dict[int, MutableMapping[str, Any]]:
        """Read partitions to their high watermark, from where their files end.

        The high watermark counts a dying predecessor's pending records, which the last stable
        offset would hide: reading up to it waits until they are settled.

        Raises:
            TransientError: It took longer than a minute.
            ConfigError: The topic has fewer partitions than the input that it follows.
            AstraStreamError: The topic's beginning was deleted.
            SchemaError: An entry is not as it was written.
        """
        self._require_partitions(partitions)
        starts: dict[Partition, int] = {}
        for index in partitions:
            store = self._stores[index] = self._store(index)
            self._positions[index] = {}
            starts[Partition(self.topic, index)] = store.start
            self._recall(index, store.notes)
        for message in read_to_end(
            self._log, self.topic, starts, clock=self._clock, starts=starts, is_whole=True
        ):
            self._take(message)
        return {index: self._stores[index].restored() for index in partitions}

    def release(self, partition: int) -> None:
        """Forget what stands in a partition that another process has now."""
        if store := self._stores.pop(partition, None):
            store.close()
        self._positions.pop(partition, None)

    def close(self) -> None:
        """Free what the stores hold."""
        for partition in list(self._stores):
            self.release(partition)
        if self._ends is not None:
            self._ends.close()

    def entries(self, partition: int, effects: Iterable[Effect]) -> list[Row]:
        """Key and value to write for a partition's effects: the last word on each key."""
        last: dict[str, Keep | Forget] = {}
        for effect in effects:
            if isinstance(effect, Keep | Forget):
                last[effect.key] = effect
        store = self._stores[partition]
        rows: list[Row] = []
        for key, effect in last.items():
            if isinstance(effect, Keep):
                rows.append((key.encode(), seal(key.encode(), effect.value)))
            elif store.is_kept(key):
                rows.append((key.encode(), None))
        self._written[partition] += rows
        return rows

    def committed(self) -> None:
        """Let the stores take in what the transaction wrote that has just been committed.

        Raises:
            FencedError, TransientError: A file cannot be written.
        """
        for partition, rows in self._written.items():
            self._stores[partition].commit(rows, partial(self._end, partition))
        self._written.clear()

    def reads(self, place: int, messages: Sequence[Message], now_s: float) -> tuple[bytes, bytes]:
        """The entry, for partition ``place``, of what a transaction consumed and its clock."""
        ranges = []
        for source, run in groupby(messages, key=lambda message: message.source):
            offsets = [message.offset for message in run]
            ranges.append([source.topic, source.index, offsets[0], offsets[-1]])
        key = self._reads + str(self._transactions).encode()
        self._transactions += 1
        self.newest_s = now_s
        self._note_turn(self._stores[place])
        return key, seal(key, {"ranges": ranges, "now_s": now_s})

    @property
    def positions(self) -> Mapping[Partition, Position]:
        """Where reading stands in each input, as far as it is written."""
        return {p: position for found in self._positions.values() for p, position in found.items()}

    def position(self, place: int, source: Partition, position: Position) -> tuple[bytes, bytes]:
        """The entry, for the changelog's partition ``place``, that reading stands there now."""
        self._positions.setdefault(place, {})[source] = position
        key = POSITION + f"{source.topic}/{source.index}".encode()
        self._stores[place].note(key.decode(), list(position))
        return key, seal(key, list(position))

    def _store(self, partition: int) -> StateStore:
        if self._directory is None:
            return MemoryStore()
        store = FileStore(
            self._directory / f"{self.topic}.{partition}.sqlite",
            topic_id=self._log.topic_ids([self.topic])[self.topic],
            clock=self._clock,
        )
        if store.start > self._end(partition):
            store.forget_all()
        return store

    def _end(self, partition: int) -> int:
        """Where a partition ends now; nobody else writes to it."""
        if self._ends is None:
            self._ends = self._log.assign([self.topic])
        place = Partition(self.topic, partition)
        return self._ends.end_offsets([place])[place]

    def _take(self, message: Message) -> None:
        key, store = message.key or b"", self._stores[message.partition]
        if message.value is None:
            store.delete(key)
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
            self._note_turn(store)
        elif key.startswith(POSITION):
            self._learn_position(message.partition, key.decode(), value)
            store.note(key.decode(), value)
        else:
            store.take(key, value)

    def _note_turn(self, store: StateStore) -> None:
        """Which transaction is next, and the clock of the last: the topic's ``reads`` in short."""
        store.note(self._turn, [self._transactions, self.newest_s])

    def _recall(self, partition: int, notes: Mapping[str, Any]) -> None:
        for key, value in notes.items():
            if key.startswith(TURN):
                self.newest_s = max(self.newest_s, value[1])
                if key == self._turn:
                    self._transactions = max(self._transactions, value[0])
            else:
                self._learn_position(partition, key, value)

    def _learn_position(self, partition: int, key: str, value: Sequence[Any]) -> None:
        topic, _, index = key.removeprefix(POSITION.decode()).rpartition("/")
        self._positions[partition][Partition(topic, int(index))] = Position(*value)

    def _require_partitions(self, partitions: Collection[int]) -> None:
        count = self._log.num_partitions(self.topic)
        if max(partitions, default=0) >= count:
            raise ConfigError(
                f"topic {self.topic!r} must have a partition for each of the input that it "
                f"follows: got {count}, and input of partition {max(partitions)}. Partitions may "
                "not be added to a topic of a run; start a run of another name."
            )
