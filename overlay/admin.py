"""Questions and orders to Kafka's admin side, through confluent-kafka, off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka.admin import ConfigResource, NewTopic, OffsetSpec, ResourceType
from tenacity import AsyncRetrying, RetryError, retry_if_exception_type, retry_if_result, stop_after_delay, wait_fixed

from overlay.connection import Properties, make_admin_client
from overlay.errors import CredentialsRefused, OverlayError, SourceUnavailable

DEADLINE_S = 15.0
# most questions go to the broker that was the controller when the client last looked; where that one has died they would
# wait for it until the next look, by default five minutes later
REFRESH_MS = "3000"

# creations that Kafka had no say in yet
_PASSING = (
    RdKafkaError._TIMED_OUT,
    RdKafkaError._TRANSPORT,
    RdKafkaError._ALL_BROKERS_DOWN,
    RdKafkaError.REQUEST_TIMED_OUT,
    RdKafkaError.NOT_CONTROLLER,
)
_REFUSED = (
    RdKafkaError.TOPIC_AUTHORIZATION_FAILED,
    RdKafkaError.CLUSTER_AUTHORIZATION_FAILED,
    RdKafkaError.GROUP_AUTHORIZATION_FAILED,
)
_UNLED = (
    RdKafkaError.NOT_LEADER_FOR_PARTITION,
    RdKafkaError.LEADER_NOT_AVAILABLE,
    # the client has heard of the last election, and the broker that it asks has not
    RdKafkaError.UNKNOWN_LEADER_EPOCH,
    # groups live in partitions as well, and the first question for one makes their topic
    RdKafkaError.COORDINATOR_NOT_AVAILABLE,
    RdKafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    RdKafkaError.NOT_COORDINATOR,
)
LEADER_S = 5.0


def new_topic(name: str, partitions: int, replication: int, config: Mapping[str, str]) -> NewTopic:
    return NewTopic(name, partitions, replication, config=dict(config))


@dataclass(frozen=True, slots=True)
class Replicas:
    """The copies of one partition: how many there should be, how many are in sync, and whether one of them leads."""

    assigned: int
    in_sync: int
    has_leader: bool = True


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as it stands. `identity` is Kafka's topic id, which a recreated topic does not keep."""

    name: str
    identity: str
    partitions: int
    config: Mapping[str, str]
    replicas: tuple[Replicas, ...] = ()
    """By partition."""


def count_replicas(partitions: Iterable[Any]) -> tuple[Replicas, ...]:
    """The copies of each partition, from confluent-kafka's description of a topic."""

    def is_led(found: Any) -> bool:
        return found.leader is not None and found.leader.id >= 0

    return tuple(Replicas(len(found.replicas), len(found.isr), is_led(found)) for found in partitions)


def get_answer(future: Future[Any]) -> Any:
    """What came of an admin call. Raises KafkaException, also when nothing came in time.

    The client gives up by itself after DEADLINE_S, but not while it waits for a broker that has died.
    """
    try:
        return future.result(DEADLINE_S)
    except TimeoutError as error:
        raise KafkaException(RdKafkaError(RdKafkaError._TIMED_OUT)) from error


class Admin:
    """Admin calls. Each raises SourceUnavailable when Kafka does not answer in time."""

    def __init__(self, kafka: Properties) -> None:
        self._client = make_admin_client(kafka, **{"topic.metadata.refresh.interval.ms": REFRESH_MS})

    async def find_cluster(self) -> str:
        """The id that Kafka gave the cluster when it was made."""
        return await asyncio.to_thread(self._find_cluster)

    def _find_cluster(self) -> str:
        try:
            return str(get_answer(self._client.describe_cluster(request_timeout=DEADLINE_S)).cluster_id)
        except KafkaException as error:
            raise _judge("the cluster", "Describe", error) from error

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
        found: dict[str, tuple[str, tuple[Replicas, ...]]] = {}
        futures = self._client.describe_topics(TopicCollection(names), request_timeout=DEADLINE_S)
        for name, future in futures.items():
            try:
                topic = get_answer(future)
                found[name] = (str(topic.topic_id), count_replicas(topic.partitions))
            except KafkaException as error:
                if error.args[0].code() == RdKafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                judged = _judge(f"topic {name}", "Describe", error)
                if denied is None or not isinstance(judged, CredentialsRefused):
                    raise judged from error
                denied[name] = str(judged)
        configs = self._read_configs(list(found)) if with_config else {}
        return {
            name: TopicFacts(name, identity, len(replicas), configs.get(name, {}), replicas)
            for name, (identity, replicas) in found.items()
        }

    def _read_configs(self, names: list[str]) -> dict[str, dict[str, str]]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        if not resources:
            return {}
        configs: dict[str, dict[str, str]] = {}
        for resource, future in self._client.describe_configs(resources, request_timeout=DEADLINE_S).items():
            try:
                configs[resource.name] = {key: entry.value for key, entry in get_answer(future).items()}
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
        await self.await_topics(wanted.keys() - refused.keys())
        return refused

    def _create_topics(self, wanted: Mapping[str, NewTopic]) -> dict[str, str]:
        refused: dict[str, str] = {}
        options = {"operation_timeout": DEADLINE_S, "request_timeout": DEADLINE_S}
        for name, future in self._client.create_topics(list(wanted.values()), **options).items():
            try:
                get_answer(future)
            except KafkaException as error:
                if error.args[0].code() in _PASSING:
                    raise _judge(f"topic {name}", "Create", error) from error
                if error.args[0].code() != RdKafkaError.TOPIC_ALREADY_EXISTS:
                    refused[name] = f"topic {name} cannot be created: {error.args[0].str()}"
        return refused

    async def await_topics(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        """Topics that are known to exist: brokers learn of a new one at different moments, a little after its creation."""
        wanted = set(names)
        incomplete = retry_if_result(lambda topics: bool(wanted - topics.keys()))
        asking = AsyncRetrying(retry=incomplete, wait=wait_fixed(0.05), stop=stop_after_delay(DEADLINE_S))
        try:
            found: dict[str, TopicFacts] = await asking(self.find_topics, wanted)
        except RetryError as error:
            raise SourceUnavailable(
                f"topics {', '.join(sorted(wanted))}: created, but not all brokers know of them after {DEADLINE_S:.0f} s"
            ) from error
        return found

    async def find_offsets(
        self, sources: Iterable[tuple[str, int]], spec: OffsetSpec, *, committed: bool = True
    ) -> dict[tuple[str, int], int]:
        """An offset of each partition: OffsetSpec.earliest(), latest(), or for_timestamp(ms), which gives -1 for none.

        The latest is the last stable offset, or with `committed=False` the high watermark.
        """
        found: dict[tuple[str, int], int] = await _await_leaders()(
            asyncio.to_thread, self._find_offsets, list(sources), spec, committed
        )
        return found

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
                offsets[tp.topic, tp.partition] = get_answer(future).offset
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

    async def count_members(self, group: str) -> int:
        """How many members a consumer group has now; none when Kafka knows of no such group."""
        return (await self.count_members_of([group]))[group]

    async def count_members_of(self, groups: Iterable[str], *, denied: dict[str, str] | None = None) -> dict[str, int]:
        """The same of several groups, in one request. `denied`: as with `find_topics`."""
        found: dict[str, int] = await _await_leaders()(asyncio.to_thread, self._count_members, list(groups), denied)
        return found

    def _count_members(self, groups: list[str], denied: dict[str, str] | None) -> dict[str, int]:
        if not groups:
            return {}
        found: dict[str, int] = {}
        for group, future in self._client.describe_consumer_groups(groups, request_timeout=DEADLINE_S).items():
            try:
                found[group] = len(get_answer(future).members)
            except KafkaException as error:
                judged = _judge(f"group {group}", "Describe", error)
                if error.args[0].code() == RdKafkaError.GROUP_ID_NOT_FOUND:
                    found[group] = 0
                elif denied is not None and isinstance(judged, CredentialsRefused):
                    denied[group] = str(judged)
                else:
                    raise judged from error
        return found

    async def find_committed(
        self, groups: Iterable[str], *, denied: dict[str, str] | None = None
    ) -> dict[str, dict[str, dict[int, int]]]:
        """The offsets that consumer groups have committed, by topic and partition; none where Kafka knows of no such group.

        Kafka is asked for all groups at once. `denied` takes those that we may not look at, as with `find_topics`.
        """
        found: dict[str, dict[str, dict[int, int]]] = {}
        wanted = sorted(set(groups))

        def ask() -> None:
            self._find_committed([group for group in wanted if group not in found], found, denied)

        await _await_leaders()(asyncio.to_thread, ask)
        return found

    def _find_committed(
        self, groups: list[str], found: dict[str, dict[str, dict[int, int]]], denied: dict[str, str] | None
    ) -> None:
        # the client takes one group a call; all calls are under way before the first answer is waited for
        asked = [(group, [ConsumerGroupTopicPartitions(group)]) for group in groups]
        calls = [
            (group, self._client.list_consumer_group_offsets(request, request_timeout=DEADLINE_S)[group])
            for group, request in asked
        ]
        first: OverlayError | None = None
        for group, future in calls:
            try:
                by_topic: dict[str, dict[int, int]] = {}
                for tp in get_answer(future).topic_partitions:
                    if tp.offset >= 0:
                        by_topic.setdefault(tp.topic, {})[tp.partition] = tp.offset
                found[group] = by_topic
            except KafkaException as error:
                judged = _judge(f"group {group}", "Describe", error)
                if error.args[0].code() == RdKafkaError.GROUP_ID_NOT_FOUND:
                    found[group] = {}
                elif denied is not None and isinstance(judged, CredentialsRefused):
                    denied[group] = str(judged)
                else:
                    first = first or judged
        if first is not None:
            raise first

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic; one that is not there is left alone."""
        await asyncio.to_thread(self._delete_topic, topic)

    def _delete_topic(self, topic: str) -> None:
        try:
            get_answer(self._client.delete_topics([topic], request_timeout=DEADLINE_S)[topic])
        except KafkaException as error:
            if error.args[0].code() != RdKafkaError.UNKNOWN_TOPIC_OR_PART:
                raise _judge(f"topic {topic}", "Delete", error) from error

    async def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete what lies below an offset."""
        await asyncio.to_thread(self._delete_records, TopicPartition(topic, partition, before))

    def _delete_records(self, tp: TopicPartition) -> None:
        try:
            for future in self._client.delete_records([tp], request_timeout=DEADLINE_S).values():
                get_answer(future)
        except KafkaException as error:
            raise _judge(f"{tp.topic}-{tp.partition}", "Delete", error) from error


class _Unled(SourceUnavailable):
    """A partition whose leader is being chosen, as all are for a moment after their topic was created."""


def _await_leaders() -> AsyncRetrying:
    return AsyncRetrying(
        retry=retry_if_exception_type(_Unled), wait=wait_fixed(0.05), stop=stop_after_delay(LEADER_S), reraise=True
    )


def _judge(what: str, operation: str, error: KafkaException) -> OverlayError:
    """The error to raise: one that an operator has to act on, or one that passes."""
    cause = error.args[0]
    if cause.code() in _REFUSED:
        return CredentialsRefused(
            f"{what}: Kafka does not allow {operation}. Grant it, or see `overlay validate --kafka`"
        )
    kind = _Unled if cause.code() in _UNLED else SourceUnavailable
    return kind(f"{what}: {cause.str() or cause.name()}")
