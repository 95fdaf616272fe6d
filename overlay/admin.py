"""Questions and orders to Kafka's admin side, through confluent-kafka, off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from overlay.connection import Properties, for_confluent
from overlay.errors import OverlayError, SourceUnavailable

DEADLINE_S = 15.0


class TopicRefused(OverlayError):
    """Kafka would not create a topic."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as it stands. `identity` is Kafka's topic id, which a recreated topic does not keep."""

    name: str
    identity: str
    partitions: int
    config: Mapping[str, str]


class Admin:
    """Admin calls. Each raises SourceUnavailable when Kafka does not answer in time."""

    def __init__(self, kafka: Properties) -> None:
        self._client = AdminClient({**for_confluent(kafka), "log_level": "0"})

    async def find_topics(self, names: Iterable[str], *, with_config: bool = True) -> dict[str, TopicFacts]:
        """What there is of the named topics; missing ones are left out."""
        return await asyncio.to_thread(self._find_topics, sorted(set(names)), with_config)

    def _find_topics(self, names: list[str], with_config: bool) -> dict[str, TopicFacts]:
        if not names:
            return {}
        found: dict[str, tuple[str, int]] = {}
        futures = self._client.describe_topics(TopicCollection(names), request_timeout=DEADLINE_S)
        for name, future in futures.items():
            try:
                topic = future.result(DEADLINE_S)
                found[name] = (str(topic.topic_id), len(topic.partitions))
            except KafkaException as error:
                if error.args[0].code() != RdKafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise SourceUnavailable(f"{name}: {error.args[0].str()}") from error
        configs = self._read_configs(list(found)) if with_config else {}
        return {name: TopicFacts(name, *facts, configs.get(name, {})) for name, facts in found.items()}

    def _read_configs(self, names: list[str]) -> dict[str, dict[str, str]]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        if not resources:
            return {}
        try:
            answers = self._client.describe_configs(resources, request_timeout=DEADLINE_S)
            return {
                resource.name: {key: entry.value for key, entry in future.result(DEADLINE_S).items()}
                for resource, future in answers.items()
            }
        except KafkaException as error:
            raise SourceUnavailable(error.args[0].str()) from error

    async def create_topic(self, name: str, partitions: int, replication: int, config: Mapping[str, str]) -> None:
        """Create a topic; one that is there already is left as it is. Raises TopicRefused."""
        await asyncio.to_thread(self._create_topic, NewTopic(name, partitions, replication, config=dict(config)))

    def _create_topic(self, topic: NewTopic) -> None:
        future = self._client.create_topics([topic], operation_timeout=DEADLINE_S, request_timeout=DEADLINE_S)[topic.topic]
        try:
            future.result(DEADLINE_S)
        except KafkaException as error:
            if error.args[0].code() != RdKafkaError.TOPIC_ALREADY_EXISTS:
                raise TopicRefused(f"topic {topic.topic} cannot be created: {error.args[0].str()}") from error

    async def find_offsets(self, sources: Iterable[tuple[str, int]], spec: OffsetSpec) -> dict[tuple[str, int], int]:
        """An offset of each partition: OffsetSpec.earliest(), latest() (committed), or for_timestamp(ms); -1 for none."""
        return await asyncio.to_thread(self._find_offsets, list(sources), spec)

    def _find_offsets(self, sources: list[tuple[str, int]], spec: OffsetSpec) -> dict[tuple[str, int], int]:
        asked = {TopicPartition(topic, partition): spec for topic, partition in sources}
        if not asked:
            return {}
        try:
            answers = self._client.list_offsets(
                asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=DEADLINE_S
            )
            return {(tp.topic, tp.partition): future.result(DEADLINE_S).offset for tp, future in answers.items()}
        except KafkaException as error:
            raise SourceUnavailable(error.args[0].str()) from error

    async def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete what lies below an offset."""
        await asyncio.to_thread(self._delete_records, TopicPartition(topic, partition, before))

    def _delete_records(self, tp: TopicPartition) -> None:
        try:
            for future in self._client.delete_records([tp], request_timeout=DEADLINE_S).values():
                future.result(DEADLINE_S)
        except KafkaException as error:
            raise SourceUnavailable(error.args[0].str()) from error
