"""Transactions on Kafka.

A transaction that cannot go on is aborted and its block raises: the process that ran it ends with
75 and its successor starts from the committed positions. A commit whose answer is missing is asked
for again and never aborted; past the deadline the writer is of no more use, and the next writer of
the id settles what was pending.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from astra_stream.errors import (
    AstraStreamError,
    FencedError,
    RebalancedError,
    RecordError,
    TransientError,
)
from astra_stream.log.interface import (
    MAX_MESSAGE_BYTES,
    Committed,
    Partition,
    Reader,
    require_size,
)
from astra_stream.log.kafka_client import (
    FENCED,
    REBALANCED,
    Connection,
    Settings,
    error_of,
    fenced,
    refused,
)
from astra_stream.log.kafka_reader import KafkaReader

TRANSACTION_TIMEOUT_MS = 15_000
ABORT_S = 5.0
"""How long an abort may take; past it the broker aborts at the transaction's timeout."""
QUEUE_KBYTES = 512 * 1024


class KafkaWriter:
    """A transactional producer.

    Args:
        connection: Where, and how long to try.
        transactional_id: The role that this process has; making a writer fences the earlier one.
        max_message_bytes: Largest record of a topic; raises ConfigError where there is none.
    """

    def __init__(
        self,
        connection: Connection,
        transactional_id: str,
        *,
        max_message_bytes: Callable[[str], int],
    ) -> None:
        self._connection = connection
        self._name = f"writer {transactional_id!r}"
        self._max_message_bytes = max_message_bytes
        self._producer = Producer(_settings(connection, transactional_id))
        self._limits: dict[str, int] = {}
        self._open: KafkaTransaction | None = None
        self._failure: AstraStreamError | None = None
        self.call("start", self._producer.init_transactions)

    @contextmanager
    def transaction(self) -> Generator["KafkaTransaction"]:
        """One transaction: committed when the block ends, aborted when it raises.

        An empty one asks nothing of the broker.

        Raises:
            FencedError: A newer writer holds the id.
            RebalancedError: The group has moved on; write again what is still owned.
            TransientError: The broker cannot be reached within the deadline, or it aborted the
                transaction; nothing of an aborted one is visible.
            RecordError: The topic refuses the size of a record.
        """
        if self._failure is not None:
            raise self._failure
        if self._open is not None:
            raise ValueError("transaction must be the only open one: got a second. End the first.")
        self._producer.poll(0)
        self._open = KafkaTransaction(self, self._producer)
        try:
            yield self._open
            self._open.commit()
        except BaseException:
            self._open.abort()
            raise
        finally:
            self._open = None

    def close(self) -> None:
        """Abort what is open and free the client."""
        if self._open is not None:
            self._open.abort()
        if self._failure is None:
            self._connection.call(f"{self._name}: close", lambda _: self._producer.close())

    def limit_bytes(self, topic: str) -> int:
        """Largest record of a topic; asked once."""
        if topic not in self._limits:
            self._limits[topic] = self._max_message_bytes(topic)
        return self._limits[topic]

    def call(
        self, verb: str, action: Callable[[float], object], *, deadline_s: float | None = None
    ) -> None:
        """Run a client call to the deadline, by default the connection's; name it in errors."""
        what = f"{self._name}: {verb}"
        self._connection.call(what, action, serve=self._producer.poll, deadline_s=deadline_s)

    def abort(self) -> None:
        """Abort at the broker; where it cannot be reached it does so itself after a while."""
        with self._connection.watchdog.guard(ABORT_S, f"{self._name}: abort"):
            try:
                self._producer.abort_transaction(ABORT_S)
            except KafkaException:
                # What made the caller abort is what must be seen, not this.
                self.give_up()

    def give_up(self, cause: AstraStreamError | None = None) -> None:
        """Refuse all further transactions: nobody knows how the last one ended."""
        self._failure = (
            self._failure
            or cause
            or TransientError(
                f"{self._name} must know how its last transaction ended: got no answer. "
                "Make another writer of this id."
            )
        )

    def unsent(self) -> TransientError:
        """The error for records that cannot be queued within the deadline."""
        return self._connection.unreachable(f"{self._name}: write")

    def refusal(self, verb: str, error: KafkaError) -> AstraStreamError:
        """What an error that no retry changes means to the caller."""
        what = f"{self._name}: {verb}"
        if error.code() in REBALANCED:
            return RebalancedError(
                f"{what} must come from a current member of the group: got {error.name()}. "
                "Write again what is still owned."
            )
        if error.fatal() or error.code() in FENCED:
            failure = fenced(what, error)
            if not error.txn_requires_abort():
                self.give_up(failure)
            return failure
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return RecordError(
                f"{what} must stay below the topic's max.message.bytes: got {error.str()}. "
                "Put large fields into the store, or apply the topic's declaration."
            )
        if error.txn_requires_abort() or error.code() == KafkaError._MSG_TIMED_OUT:
            return TransientError(
                f"{what} must be acknowledged: got {error.name()} ({error.str()}). "
                "The transaction is aborted; start again from the committed positions."
            )
        return refused(what, error)

    @property
    def deadline_s(self) -> float:
        """How long a call may take in all, seconds."""
        return self._connection.deadline_s


class KafkaTransaction:
    """Writes and positions that become visible together; begun by the first of them."""

    def __init__(self, writer: KafkaWriter, producer: Producer) -> None:
        self._writer = writer
        self._producer = producer
        self._is_open = False

    def write(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Add a record. Without ``partition`` the key decides it (murmur2).

        Raises:
            ConfigError: The topic is missing.
            RecordError: The record is larger than the topic takes.
        """
        limit_bytes = self._writer.limit_bytes(topic)
        require_size(topic, key, value, headers=headers, limit_bytes=limit_bytes)
        self._begin()
        ends_s = time.monotonic() + self._writer.deadline_s
        while True:
            try:
                self._producer.produce(
                    topic,
                    value,
                    key,
                    -1 if partition is None else partition,
                    headers=list(headers),
                )
                return
            except BufferError:
                self._producer.poll(0.1)
                if time.monotonic() > ends_s:
                    raise self._writer.unsent() from None
            except KafkaException as exception:
                raise self._writer.refusal("write", error_of(exception)) from exception

    def commit_offsets(self, reader: Reader, positions: Mapping[Partition, Committed]) -> None:
        """Move the reader's group to these positions with this transaction.

        Raises:
            RebalancedError: The group has given these partitions to another member.
        """
        if not isinstance(reader, KafkaReader) or not reader.group:
            raise ValueError(
                f"reader must be of this log and have a group: got {reader!r}. Name a group."
            )
        reader.require_owned(positions.keys())
        if not positions:
            return
        self._begin()
        offsets = [
            TopicPartition(partition.topic, partition.index, position.offset, position.metadata)
            for partition, position in positions.items()
        ]
        self._call(
            "positions",
            lambda timeout_s: self._producer.send_offsets_to_transaction(
                offsets, reader.group_metadata(), timeout_s
            ),
        )

    def commit(self) -> None:
        """Make everything visible at once; nothing to do where nothing was written."""
        if self._is_open:
            self._call("commit", self._producer.commit_transaction)
            self._is_open = False

    def abort(self) -> None:
        """Undo everything, as far as the broker can be reached; harmless after the end."""
        if not self._is_open:
            return
        self._is_open = False
        self._writer.abort()

    def _begin(self) -> None:
        if self._is_open:
            return
        try:
            self._producer.begin_transaction()
        except KafkaException as exception:
            raise self._writer.refusal("begin", error_of(exception)) from exception
        self._is_open = True

    def _call(self, verb: str, action: Callable[[float], object]) -> None:
        try:
            self._writer.call(verb, action)
        except (TransientError, FencedError) as failure:
            self._is_open = False
            self._writer.give_up(failure)
            raise
        except KafkaException as exception:
            raise self._writer.refusal(verb, error_of(exception)) from exception


def _settings(connection: Connection, transactional_id: str) -> Settings:
    return {
        **connection.settings(),
        "transactional.id": transactional_id,
        # After a re-bootstrap an idle producer does not find its coordinator again: its next
        # positions never return. The addresses that it knows are those of the same cluster.
        "metadata.recovery.strategy": "none",
        "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        "enable.idempotence": True,
        "acks": "all",
        "compression.type": "zstd",
        "compression.level": 1,
        "partitioner": "murmur2_random",
        "linger.ms": 0,
        "delivery.report.only.error": True,
        "message.max.bytes": MAX_MESSAGE_BYTES,
        "queue.buffering.max.kbytes": QUEUE_KBYTES,
        "queue.buffering.max.messages": 1_000_000,
    }
