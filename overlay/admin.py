"""Questions and orders to Kafka's admin side, through confluent-kafka, off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType
from tenacity import AsyncRetrying, retry_if_result, stop_after_delay, wait_fixed

from overlay.connection import Properties, for_confluent
from overlay.errors import CredentialsRefused, OverlayError, SourceUnavailable

DEADLINE_S = 15.0


def new_topic(name: str, partitions: int, replication: int, config: Mapping[str, str]) -> NewTopic:
    return NewTopic(name, partitions, replication, config=dict(config))


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

    async def find_topics(
        self, names: Iterable[str], *, with_config: bool = True, denied: dict[str, str] | None = None
    ) -> dict[str, TopicFacts]:
        """What there is of the named topics; missing ones are left out.

        `denied` takes the topics that we may not look at, and why; without it CredentialsRefused is raised for the first.
        """
        return await asyncio.to_thread(self._find_topics, sorted(set(names)), with_config, denied)

    def _find_topics(self, names: list[str], with_config: bool, denied: dict[str, str] | None) -> dict[str, TopicFacts]:
        if not names:
            return {}
        found: dict[str, tuple[str, int]] = {}
        futures = self._client.describe_topics(TopicCollection(names), request_timeout=DEADLINE_S)
        for name, future in futures.items():
            try:
                topic = future.result(DEADLINE_S)
                found[name] = (str(topic.topic_id), len(topic.partitions))
            except KafkaException as error:
                if error.args[0].code() == RdKafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                judged = _judge(f"topic {name}", "Describe", error)
                if denied is None or not isinstance(judged, CredentialsRefused):
                    raise judged from error
                denied[name] = str(judged)
        configs = self._read_configs(list(found)) if with_config else {}
        return {name: TopicFacts(name, *facts, configs.get(name, {})) for name, facts in found.items()}

    def _read_configs(self, names: list[str]) -> dict[str, dict[str, str]]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        if not resources:
            return {}
        configs: dict[str, dict[str, str]] = {}
        for resource, future in self._client.describe_configs(resources, request_timeout=DEADLINE_S).items():
            try:
                configs[resource.name] = {key: entry.value for key, entry in future.result(DEADLINE_S).items()}
            except KafkaException as error:
                if error.args[0].code() != RdKafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise _judge(f"topic {resource.name}", "DescribeConfigs", error) from error
                configs[resource.name] = {}  # what it would say has defaults
        return configs

    async def create_topics(self, topics: Iterable[NewTopic]) -> dict[str, str]:
        """Create topics, and wait until every one can be described. Those that are there already are left as they are.

        Returns why for each that Kafka refused. Topics come from `new_topic`.
        """
        wanted = {topic.topic: topic for topic in topics}
        refused = await asyncio.to_thread(self._create_topics, wanted) if wanted else {}
        await self._await_topics(set(wanted) - set(refused))
        return refused

    def _create_topics(self, wanted: Mapping[str, NewTopic]) -> dict[str, str]:
        refused: dict[str, str] = {}
        options = {"operation_timeout": DEADLINE_S, "request_timeout": DEADLINE_S}
        for name, future in self._client.create_topics(list(wanted.values()), **options).items():
            try:
                future.result(DEADLINE_S)
            except KafkaException as error:
                if error.args[0].code() != RdKafkaError.TOPIC_ALREADY_EXISTS:
                    refused[name] = f"topic {name} cannot be created: {error.args[0].str()}"
        return refused

    async def _await_topics(self, names: set[str]) -> None:
        # a broker answers for a new topic a moment after the controller has created it
        found = retry_if_result(lambda topics: bool(names - set(topics)))
        await AsyncRetrying(retry=found, wait=wait_fixed(0.05), stop=stop_after_delay(DEADLINE_S))(
            self.find_topics, names, with_config=False
        )

    async def find_offsets(
        self, sources: Iterable[tuple[str, int]], spec: OffsetSpec, *, committed: bool = True
    ) -> dict[tuple[str, int], int]:
        """An offset of each partition: OffsetSpec.earliest(), latest(), or for_timestamp(ms), which gives -1 for none.

        The latest is the last stable offset, or with `committed=False` the high watermark.
        """
        return await asyncio.to_thread(self._find_offsets, list(sources), spec, committed)

    def _find_offsets(
        self, sources: list[tuple[str, int]], spec: OffsetSpec, committed: bool
    ) -> dict[tuple[str, int], int]:
        asked = {TopicPartition(topic, partition): spec for topic, partition in sources}
        if not asked:
            return {}
        isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        offsets: dict[tuple[str, int], int] = {}
        answers = self._client.list_offsets(asked, isolation_level=isolation, request_timeout=DEADLINE_S)
        for tp, future in answers.items():
            try:
                offsets[tp.topic, tp.partition] = future.result(DEADLINE_S).offset
            except KafkaException as error:
                raise _judge(f"{tp.topic}-{tp.partition}", "Describe", error) from error
        return offsets

    async def find_bounds(
        self, sources: Iterable[tuple[str, int]], *, committed: bool = True
    ) -> dict[tuple[str, int], tuple[int, int]]:
        """Log start and end of each partition."""
        wanted = list(sources)
        first = await self.find_offsets(wanted, OffsetSpec.earliest())
        last = await self.find_offsets(wanted, OffsetSpec.latest(), committed=committed)
        return {source: (first[source], last[source]) for source in wanted}

    async def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete what lies below an offset."""
        await asyncio.to_thread(self._delete_records, TopicPartition(topic, partition, before))

    def _delete_records(self, tp: TopicPartition) -> None:
        try:
            for future in self._client.delete_records([tp], request_timeout=DEADLINE_S).values():
                future.result(DEADLINE_S)
        except KafkaException as error:
            raise _judge(f"{tp.topic}-{tp.partition}", "Delete", error) from error


def _judge(what: str, operation: str, error: KafkaException) -> OverlayError:
    """The error to raise: one that an operator has to act on, or one that passes."""
    cause = error.args[0]
    if cause.code() in (RdKafkaError.TOPIC_AUTHORIZATION_FAILED, RdKafkaError.CLUSTER_AUTHORIZATION_FAILED):
        return CredentialsRefused(
            f"{what}: Kafka does not allow {operation}. Grant it, or see `overlay validate --kafka`"
        )
    return SourceUnavailable(f"{what}: {cause.str()}")
