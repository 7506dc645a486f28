"""The log on Apache Kafka: readers, transactional writers, and where topics end.

Clients are synchronous; one thread uses a reader or writer at a time. Services make no topics.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from astra_stream.log.interface import (
    MAX_MESSAGE_BYTES,
    Partition,
    PartitionsChanged,
    missing_topic,
)
from astra_stream.log.kafka_client import (
    Connection,
    NotYetError,
    Settings,
    error_of,
    refused,
)
from astra_stream.log.kafka_reader import KafkaReader, Lookups
from astra_stream.log.kafka_writer import KafkaWriter
from astra_stream.log.watchdog import Watchdog, exit_to_be_restarted

NO_GROUP = "astra-no-group"
"""The client wants a group id even where none is joined and nothing is committed."""


class KafkaLog:
    """Topics of a Kafka cluster.

    Args:
        bootstrap: ``host:port`` of one or more brokers, with commas.
        security: librdkafka settings such as ``security.protocol`` and ``sasl.password``.
        deadline_s: How long a call may take, retries included, before ``TransientError``.
        on_stuck: Told which client call overran even that; by default the process ends with 75.
        group_protocol: ``consumer`` (KIP-848), or ``classic`` for brokers before 4.0.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        security: Mapping[str, str] | None = None,
        deadline_s: float = 30.0,
        on_stuck: Callable[[str], None] = exit_to_be_restarted,
        group_protocol: str = "consumer",
    ) -> None:
        self._connection = Connection(
            bootstrap,
            security=security or {},
            deadline_s=deadline_s,
            watchdog=Watchdog(on_stuck),
        )
        self._group_protocol = group_protocol
        self._admin = AdminClient(self._connection.settings())

    def subscribe(
        self,
        topics: Sequence[str],
        *,
        group: str,
        on_assigned: PartitionsChanged | None = None,
        on_revoked: PartitionsChanged | None = None,
    ) -> KafkaReader:
        """Join a consumer group; partitions come and go."""
        for topic in topics:
            self.num_partitions(topic)
        reader = KafkaReader(
            self._connection,
            topics,
            group=group,
            settings=_reader_settings(self._connection, group) | self._group_settings(),
            lookups=self._lookups(),
            on_assigned=on_assigned,
            on_revoked=on_revoked,
        )
        reader.join()
        return reader

    def assign(self, topics: Sequence[str], *, group: str = "") -> KafkaReader:
        """Read every partition of ``topics``, alone."""
        partitions = [
            Partition(topic, index)
            for topic in topics
            for index in range(self.num_partitions(topic))
        ]
        reader = KafkaReader(
            self._connection,
            topics,
            group=group,
            settings=_reader_settings(self._connection, group or NO_GROUP),
            lookups=self._lookups(),
        )
        reader.take_all(partitions)
        return reader

    def writer(self, transactional_id: str) -> KafkaWriter:
        """Make a transactional writer, fencing the earlier one of this id."""
        return KafkaWriter(
            self._connection, transactional_id, max_message_bytes=self.max_message_bytes
        )

    def num_partitions(self, topic: str) -> int:
        """Partitions of a topic."""
        found = self._describe([topic])
        if topic not in found:
            raise missing_topic(topic, f"kafka at {self._connection.bootstrap}")
        return len(found[topic].partitions)

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Topic to its id; a missing one is left out."""
        return {topic: str(found.topic_id) for topic, found in self._describe(topics).items()}

    def max_message_bytes(self, topic: str) -> int:
        """Largest record that a topic takes; what clients admit where that may not be asked."""
        self.num_partitions(topic)
        resource = ConfigResource(ResourceType.TOPIC, topic)

        def describe(timeout_s: float) -> int:
            asked = self._admin.describe_configs([resource], request_timeout=timeout_s)
            return int(asked[resource].result(timeout_s)["max.message.bytes"].value)

        what = f"limits of {topic}"
        try:
            declared = self._connection.call(what, describe, serve=self._admin.poll)
        except KafkaException as exception:
            error = error_of(exception)
            if error.code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise refused(what, error) from exception
            return MAX_MESSAGE_BYTES
        return min(declared, MAX_MESSAGE_BYTES)

    def start_offsets(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """First offsets that have not been deleted."""
        return self._offsets(partitions, OffsetSpec.earliest())

    def end_offsets(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """High watermarks, pending transactions included."""
        return self._offsets(partitions, OffsetSpec.latest())

    def offsets_at(self, partitions: Collection[Partition], time_ms: int) -> dict[Partition, int]:
        """First offset at or after a time, per partition; the end where all is older."""
        found = self._offsets(partitions, OffsetSpec.for_timestamp(time_ms))
        older = [partition for partition, offset in found.items() if offset < 0]
        return found | self.end_offsets(older)

    def close(self) -> None:
        """End waits; readers and writers are closed by their owners."""
        self._connection.close()

    def _lookups(self) -> Lookups:
        return Lookups(self.start_offsets, self.end_offsets, self.offsets_at, self.topic_ids)

    def _describe(self, topics: Collection[str]) -> dict[str, Any]:
        """What the broker says of topics; one that is missing is left out."""
        what = f"description of {', '.join(topics)}"

        def describe(timeout_s: float) -> dict[str, Any]:
            wanted = TopicCollection(list(topics))
            asked = self._admin.describe_topics(wanted, request_timeout=timeout_s)
            found = {topic: _unless_missing(answer, timeout_s) for topic, answer in asked.items()}
            return {topic: answer for topic, answer in found.items() if answer is not None}

        if not topics:
            return {}
        try:
            return self._connection.call(what, describe, serve=self._admin.poll)
        except KafkaException as exception:
            raise refused(what, error_of(exception)) from exception

    def _offsets(self, partitions: Collection[Partition], spec: Any) -> dict[Partition, int]:
        if not partitions:
            return {}

        def look_up(timeout_s: float) -> dict[Partition, int]:
            asked = self._admin.list_offsets(
                {KafkaPartition(p.topic, p.index): spec for p in partitions},
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=timeout_s,
            )
            try:
                return {
                    Partition(p.topic, p.partition): answer.result(timeout_s).offset
                    for p, answer in asked.items()
                }
            except KafkaException as exception:
                if error_of(exception).code() != KafkaError._NOENT:
                    raise
                # A broker that has just started leads nothing yet, and the client would remember
                # that for minutes: ask anew who leads.
                for topic in {p.topic for p in partitions}:
                    self._admin.list_topics(topic, timeout_s)
                raise NotYetError from exception

        try:
            return self._connection.call("offsets", look_up, serve=self._admin.poll)
        except KafkaException as exception:
            raise refused("offsets", error_of(exception)) from exception

    def _group_settings(self) -> Settings:
        if self._group_protocol == "consumer":
            return {"group.protocol": "consumer"}
        return {
            "group.protocol": "classic",
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 1_000,
        }


def _unless_missing(answer: Any, timeout_s: float) -> Any:
    try:
        return answer.result(timeout_s)
    except KafkaException as exception:
        if error_of(exception).code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise
        return None


def _reader_settings(connection: Connection, group: str) -> Settings:
    return {
        **connection.settings(),
        "group.id": group,
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "check.crcs": True,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 100,
        "fetch.queue.backoff.ms": 10,
        "fetch.error.backoff.ms": 100,
        "fetch.message.max.bytes": MAX_MESSAGE_BYTES,
        "fetch.max.bytes": 4 * MAX_MESSAGE_BYTES,
        "queued.max.messages.kbytes": 64 * 1024,
    }
