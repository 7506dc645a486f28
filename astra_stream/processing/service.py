"""The loop of every processor: read, process, and write all of it in one transaction.

Effects, in order, and what a crash after each leaves:

1. Records are read: nothing is left; they are read again.
2. Outputs, changelog and positions are written in one transaction: a crash before its commit
   leaves an aborted transaction, and the records are read again by a processor restored to the
   state before them. A crash after it leaves nothing undone.
3. Files of the state, where there are any, take in what was committed, some seconds late: a crash
   leaves them older, and the changelog from there on makes up for it.

State in memory runs ahead of the log while a transaction is open. A transaction that fails ends the
process, so that this state is never used: the next process is restored from the changelog, after a
look whether state, positions and inputs still belong together (``positions``).
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from astra_stream.clock import Clock
from astra_stream.log.codec import Codec
from astra_stream.log.interface import (
    Committed,
    Log,
    Message,
    Partition,
    Reader,
    Transaction,
    Writer,
)
from astra_stream.log.processor import Effect, Finish, Processor, Write
from astra_stream.processing.pipeline import DeadLetters, process_message
from astra_stream.processing.positions import Position, expired_positions
from astra_stream.processing.state import Changelog
from astra_stream.records import WeightAnnouncement

logger = logging.getLogger(__name__)

POLL_S = 0.5
"""Longest wait for records before time is looked at again, seconds."""

SINGLETON = 0
"""Changelog partition of a processor that reads every partition of its inputs."""


@dataclass(frozen=True, kw_only=True)
class ProcessorService:
    """What a processor needs to run; ``run`` blocks until it finishes or is stopped."""

    log: Log
    codec: Codec
    clock: Clock
    group: str
    """Consumer group, and start of the transactional id."""
    inputs: Sequence[str]
    """Topics to read."""
    changelog_topic: str
    letters: DeadLetters
    is_singleton: bool
    """Whether it reads every partition alone, or its share as a member of the group."""
    slot: int = 0
    """Number of this process among those of the group; part of the transactional id."""
    max_messages: int = 500
    """Most records in one transaction."""
    closes_on_topic: str = ""
    """Weights topic whose final announcement ends a processor that never says ``Finish``."""
    state_directory: Path | None = None
    """Where the state has files, one for each partition; None keeps it in memory."""

    def run(self, processor: Processor, stop: threading.Event) -> None:
        """Process until the work is done or ``stop`` is set.

        Raises:
            FencedError: A newer process owns the work.
            TransientError: The log cannot be reached.
            StageError: A stage fails on every record.
        """
        with self.started(processor) as running:
            while not stop.is_set() and running.turn(POLL_S):
                pass
        logger.info("stopped", extra={"processor": processor.name})

    @contextmanager
    def started(self, processor: Processor) -> Generator["RunningProcessor"]:
        """Restore the processor and fence its predecessor; leave the group at the end."""
        changelog = Changelog(
            self.log,
            self.changelog_topic,
            writer=str(self.slot),
            clock=self.clock,
            directory=self.state_directory,
        )
        writer = self.log.writer(f"{self.group}.{self.slot}")
        reader = self._reader(processor, changelog)
        news = self.log.assign([self.closes_on_topic]) if self.closes_on_topic else None
        try:
            yield RunningProcessor(
                self, processor, reader=reader, writer=writer, changelog=changelog, news=news
            )
        finally:
            if news is not None:
                news.close()
            reader.close()
            writer.close()
            changelog.close()

    def _reader(self, processor: Processor, changelog: Changelog) -> Reader:
        def restore(
            reader: Reader, assigned: Collection[Partition], places: Collection[int]
        ) -> None:
            found = changelog.restore(places)
            self._resume(reader, assigned, changelog)
            for index, entries in found.items():
                processor.restore(index, entries)

        def gained(partitions: Collection[Partition]) -> None:
            restore(reader, partitions, {partition.index for partition in partitions})

        def lost(partitions: Collection[Partition]) -> None:
            for partition in partitions:
                processor.release(partition.index)
                changelog.release(partition.index)

        if not self.is_singleton:
            reader = self.log.subscribe(
                self.inputs, group=self.group, on_assigned=gained, on_revoked=lost
            )
            return reader
        reader = self.log.assign(self.inputs, group=self.group)
        restore(reader, reader.assignment(), [SINGLETON])
        return reader

    def _resume(
        self, reader: Reader, assigned: Collection[Partition], changelog: Changelog
    ) -> None:
        """Check that the state belongs to what is read; go on where only the changelog knows."""
        kept = changelog.positions
        expired = expired_positions(
            {p: kept[p] for p in kept if p in assigned},
            reader.committed(assigned),
            self.log.topic_ids([*self.inputs, self.changelog_topic]),
            assigned=assigned,
            changelog=self.changelog_topic,
        )
        for partition, offset in expired.items():
            logger.warning("position restored", extra={"partition": str(partition), "at": offset})
            reader.seek(partition, offset)


class RunningProcessor:
    """A restored processor with its reader and writer, turned by hand or by ``run``."""

    def __init__(
        self,
        service: ProcessorService,
        processor: Processor,
        *,
        reader: Reader,
        writer: Writer,
        changelog: Changelog,
        news: Reader | None,
    ) -> None:
        self._service = service
        self._processor = processor
        self._reader = reader
        self._writer = writer
        self._changelog = changelog
        self._news = news
        self._ids = service.log.topic_ids([*service.inputs, service.changelog_topic])

    def turn(self, timeout_s: float) -> bool:
        """Read what there is, process it, write it; say whether there is more to do."""
        if self._news is not None and self._is_over(self._news):
            return False
        messages = self._reader.poll(timeout_s, max_messages=self._service.max_messages)
        now_s = max(self._service.clock.now_s(), self._changelog.newest_s)
        effects = self._process(messages, now_s)
        if messages or effects:
            with self._writer.transaction() as txn:
                self._write(txn, effects)
                self._record_reads(txn, messages, now_s)
                self._move(txn, messages)
            self._changelog.committed()
        return not any(isinstance(e, Finish) for found in effects.values() for e in found)

    def _is_over(self, news: Reader) -> bool:
        codec = self._service.codec
        announcements = (codec.read(WeightAnnouncement, message) for message in news.poll(0.0))
        return any(announcement.kind == "final" for announcement in announcements)

    def _process(self, messages: Sequence[Message], now_s: float) -> dict[int, list[Effect]]:
        """Effects by changelog partition, in order."""
        service, effects = self._service, defaultdict(list)
        for message in messages:
            effects[self._place(message)] += process_message(
                message,
                self._processor,
                codec=service.codec,
                letters=service.letters,
                now_s=now_s,
            )
        if ticked := list(self._processor.tick(now_s)):
            effects[SINGLETON] += ticked
        return effects

    def _write(self, txn: Transaction, effects: Mapping[int, Sequence[Effect]]) -> None:
        for place, found in effects.items():
            for effect in found:
                if isinstance(effect, Write):
                    value = effect.value or self._service.codec.encode(effect.record)
                    txn.write(
                        effect.topic,
                        effect.key.encode(),
                        value,
                        partition=effect.partition,
                        headers=effect.headers,
                    )
            for key, entry in self._changelog.entries(place, found):
                txn.write(self._changelog.topic, key, entry, partition=place)

    def _record_reads(self, txn: Transaction, messages: Sequence[Message], now_s: float) -> None:
        place = self._place(messages[0]) if messages else SINGLETON
        key, entry = self._changelog.reads(place, messages, now_s)
        txn.write(self._changelog.topic, key, entry, partition=place)

    def _move(self, txn: Transaction, messages: Sequence[Message]) -> None:
        """Move past these records, for the group and in the changelog.

        The first time every assigned partition is said: one that is not in the changelog is new.
        """
        unsaid = self._reader.assignment() - self._changelog.positions.keys()
        after = self._reader.positions(unsaid) | {m.source: m.offset + 1 for m in messages}
        changelog = self._changelog.topic
        for source, offset in after.items():
            place = SINGLETON if self._service.is_singleton else source.index
            position = Position(self._ids[source.topic], offset)
            key, entry = self._changelog.position(place, source, position)
            txn.write(changelog, key, entry, partition=place)
        made = {p: Committed(offset, self._ids[changelog]) for p, offset in after.items()}
        txn.commit_offsets(self._reader, made)

    def _place(self, message: Message) -> int:
        return SINGLETON if self._service.is_singleton else message.partition
