"""Creates and configures topics on Kafka; only ``astra topics`` does so."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
)

from astra_stream.log.interface import Partition, TopicSettings, existing_topic
from astra_stream.log.kafka_client import Connection, NotYetError, error_of, refused
from astra_stream.log.watchdog import Watchdog, exit_to_be_restarted

Result = TypeVar("Result")


class KafkaAdmin:
    """Topics of a Kafka cluster, to be made and configured.

    Args:
        bootstrap: ``host:port`` of one or more brokers, with commas.
        security: librdkafka settings such as ``security.protocol``.
        deadline_s: How long a call may take, retries included, before ``TransientError``.
        on_stuck: Told which client call overran even that; by default the process ends with 75.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        security: Mapping[str, str] | None = None,
        deadline_s: float = 30.0,
        on_stuck: Callable[[str], None] = exit_to_be_restarted,
    ) -> None:
        self._connection = Connection(
            bootstrap,
            security=security or {},
            deadline_s=deadline_s,
            watchdog=Watchdog(on_stuck),
        )
        self._client = AdminClient(self._connection.settings())

    def topics(self, prefix: str) -> dict[str, TopicSettings]:
        """Topics whose name starts with ``prefix``, with the settings made on them."""
        found = self._call("list of topics", lambda s: self._client.list_topics(timeout=s).topics)
        counts = {n: len(t.partitions) for n, t in sorted(found.items()) if n.startswith(prefix)}
        settings = self._settings_of(list(counts))
        return {
            name: TopicSettings(name=name, partitions=count, settings=settings[name])
            for name, count in counts.items()
        }

    def create(self, topics: Sequence[TopicSettings]) -> None:
        """Create topics; one that exists is an error. Replication is the broker's default."""
        if not topics:
            return
        wanted = [
            NewTopic(topic.name, topic.partitions, -1, config=dict(topic.settings))
            for topic in topics
        ]

        def create(timeout_s: float) -> None:
            for answer in self._client.create_topics(wanted, request_timeout=timeout_s).values():
                answer.result(timeout_s)

        names = [topic.name for topic in topics]
        what = f"creation of {', '.join(names)}"
        try:
            self._connection.call(what, create, serve=self._client.poll)
        except KafkaException as exception:
            error = error_of(exception)
            if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                raise existing_topic(error.str()) from exception
            raise refused(what, error) from exception
        self._call(what, lambda s: self._require_listed(names, s))

    def configure(self, topic: TopicSettings) -> None:
        """Set the topic's configuration to what is given; what is not named is unset."""
        stale = self._settings_of([topic.name])[topic.name].keys() - topic.settings.keys()
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in topic.settings.items()
        ] + [
            ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE)
            for name in sorted(stale)
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic.name, incremental_configs=entries)

        def alter(timeout_s: float) -> None:
            asked = self._client.incremental_alter_configs([resource], request_timeout=timeout_s)
            for answer in asked.values():
                answer.result(timeout_s)

        self._call(f"configuration of {topic.name}", alter)
        self._call(f"configuration of {topic.name}", lambda s: self._require_set(topic, s))

    def trim(self, partition: Partition, offset: int) -> None:
        """Delete the records below ``offset``."""
        place = KafkaPartition(partition.topic, partition.index, offset)

        def delete(timeout_s: float) -> None:
            asked = self._client.delete_records([place], request_timeout=timeout_s)
            for answer in asked.values():
                answer.result(timeout_s)

        self._call(f"trim of {partition}", delete)

    def close(self) -> None:
        """End waits."""
        self._connection.close()

    def _require_listed(self, topics: Sequence[str], timeout_s: float) -> None:
        if not self._client.list_topics(timeout=timeout_s).topics.keys() >= set(topics):
            raise NotYetError

    def _require_set(self, topic: TopicSettings, timeout_s: float) -> None:
        if self._describe([topic.name], timeout_s)[topic.name] != topic.settings:
            raise NotYetError

    def _settings_of(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        return self._call("settings of topics", lambda s: self._describe(topics, s))

    def _describe(self, topics: Sequence[str], timeout_s: float) -> dict[str, dict[str, str]]:
        if not topics:
            return {}
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        asked = self._client.describe_configs(resources, request_timeout=timeout_s)
        return {
            resource.name: {
                entry.name: entry.value
                for entry in answer.result(timeout_s).values()
                if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
            }
            for resource, answer in asked.items()
        }

    def _call(self, what: str, action: Callable[[float], Result]) -> Result:
        try:
            return self._connection.call(what, action, serve=self._client.poll)
        except KafkaException as exception:
            raise refused(what, error_of(exception)) from exception
