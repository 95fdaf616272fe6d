"""Questions to Kafka about the resources that a config needs.

No call creates, writes, joins or alters.

Kafka reports a user's own permissions together with the description of a topic, a group or the
cluster. A missing topic has no description, so a creation with validate_only tests whether it could
be created. For transactional ids there is no question that would not fence their owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from overlay.errors import SourceUnavailable
from overlay.kafka.admin import DEADLINE_S, Admin, Replicas, Unled
from overlay.kafka.confluent import check_reachable, get_answer
from overlay.kafka.properties import Properties, for_confluent

from .answers import ClusterAnswers, Operations, TopicAnswer
from .needs import NewTopicPlan

REACH_S = 10.0
OFFSETS_TOPIC = "__consumer_offsets"
_UNDECIDED = frozenset(
    {
        RdKafkaError._TIMED_OUT,
        RdKafkaError._TIMED_OUT_QUEUE,
        RdKafkaError._TRANSPORT,
        RdKafkaError._ALL_BROKERS_DOWN,
        RdKafkaError.REQUEST_TIMED_OUT,
        RdKafkaError.NETWORK_EXCEPTION,
        RdKafkaError.BROKER_NOT_AVAILABLE,
        RdKafkaError.NOT_CONTROLLER,
        RdKafkaError.THROTTLING_QUOTA_EXCEEDED,
    }
)
"""Errors after which it is unknown whether a topic could be created."""


def ask_kafka(
    kafka: Properties, topics: Collection[str], plans: Mapping[str, NewTopicPlan], groups: Iterable[str]
) -> ClusterAnswers:
    """Return Kafka's answers about `topics` and `groups`, and whether the missing topics could be created as `plans`
    (by topic) say. Groups are asked about only if a group was ever used, as far as this user can see. Blocks; nothing
    is created.

    Raises CredentialsRefused or SourceUnavailable.
    """
    check_reachable(kafka, REACH_S)
    asking = _Asking(kafka, AdminClient({**for_confluent(kafka), "log_level": "0"}))
    try:
        brokers, operations = asking.ask_cluster()
        found = asking.ask_topics([*topics, OFFSETS_TOPIC])
        # if no group was ever used, asking about one makes the broker create its topic for groups
        in_use = bool(found[OFFSETS_TOPIC].exists) or asking.sees_groups()
        found = {name: found[name] for name in topics}
        missing = {name: plans[name] for name, topic in found.items() if topic.exists is False and name in plans}
        found |= asking.ask_creation(missing)
        visible = tuple(sorted(name for name in asking.list_topics() if not name.startswith("__")))
        return ClusterAnswers(brokers, operations, found, asking.ask_groups(groups if in_use else ()), visible)
    except KafkaException as error:
        raise asking.explain(error) from error


@dataclass(frozen=True, slots=True)
class _Asking:
    kafka: Properties
    client: AdminClient

    def ask_cluster(self) -> tuple[int, Operations]:
        """Return the number of brokers, and this user's operations on the cluster."""
        future = self.client.describe_cluster(include_authorized_operations=True, request_timeout=DEADLINE_S)
        found = get_answer(future)
        return len(found.nodes), _name_operations(found.authorized_operations)

    def list_topics(self) -> list[str]:
        return list(self.client.list_topics(timeout=DEADLINE_S).topics)

    def ask_topics(self, names: Iterable[str]) -> dict[str, TopicAnswer]:
        """Return an answer for each topic, also for a missing one. `config` is None if this user may not read it, and
        for a topic that is missing or not visible.
        """
        futures = self.client.describe_topics(
            TopicCollection(sorted(set(names))), include_authorized_operations=True, request_timeout=DEADLINE_S
        )
        found = {name: self._describe(future) for name, future in futures.items()}
        configs = self._ask_configs([name for name, topic in found.items() if topic.exists])
        return {name: replace(topic, config=configs.get(name)) for name, topic in found.items()}

    def _describe(self, future: Any) -> TopicAnswer:
        try:
            topic = get_answer(future)
        except KafkaException as error:
            match error.args[0].code():
                case RdKafkaError.UNKNOWN_TOPIC_OR_PART:
                    return TopicAnswer(exists=False)
                case RdKafkaError.TOPIC_AUTHORIZATION_FAILED:
                    return TopicAnswer(exists=None)
            raise
        operations = _name_operations(topic.authorized_operations)
        replicas = _count_replicas(topic.partitions)
        return TopicAnswer(True, len(replicas), str(topic.topic_id), operations, replicas=replicas)

    def _ask_configs(self, names: list[str]) -> dict[str, dict[str, str]]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        if not resources:
            return {}
        found: dict[str, dict[str, str]] = {}
        for resource, future in self.client.describe_configs(resources, request_timeout=DEADLINE_S).items():
            try:
                found[resource.name] = {key: str(entry.value) for key, entry in get_answer(future).items()}
            except KafkaException as error:
                if error.args[0].code() != RdKafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise
        return found

    def ask_creation(self, plans: Mapping[str, NewTopicPlan]) -> dict[str, TopicAnswer]:
        """Return for each of these missing topics, by name, an answer that says whether it could be created as its
        plan says: `refusal` is "" if so. Kafka only checks the request (validate_only).
        """
        topics = [
            NewTopic(
                name, num_partitions=plan.partitions, replication_factor=plan.replication, config=dict(plan.config)
            )
            for name, plan in plans.items()
        ]
        if not topics:
            return {}
        futures = self.client.create_topics(topics, validate_only=True, request_timeout=DEADLINE_S)
        return {name: self._judge_creation(future) for name, future in futures.items()}

    def _judge_creation(self, future: Any) -> TopicAnswer:
        """Return whether Kafka would create a missing topic. Raises KafkaException if that is unknown."""
        try:
            get_answer(future)
        except KafkaException as error:
            code = error.args[0].code()
            if code in _UNDECIDED:
                raise
            denied = code in (RdKafkaError.TOPIC_AUTHORIZATION_FAILED, RdKafkaError.CLUSTER_AUTHORIZATION_FAILED)
            return TopicAnswer(exists=False, refusal=error.args[0].str(), creation_denied=denied)
        return TopicAnswer(exists=False)

    def sees_groups(self) -> bool:
        """Return whether any group is visible to this user.

        Asks every broker, but no group coordinator.
        """
        found = get_answer(self.client.list_consumer_groups(request_timeout=DEADLINE_S))
        return bool(found.valid)

    def ask_groups(self, names: Iterable[str]) -> dict[str, Operations]:
        """Return this user's operations on each of the groups, as `_describe_groups` does; {} if `names` is empty."""
        asked = sorted(set(names))
        if not asked:
            return {}
        return asyncio.run(_describe_groups(self.kafka, asked))

    def explain(self, error: KafkaException) -> SourceUnavailable:
        address, reason = self.kafka["bootstrap.servers"], error.args[0].str()
        return SourceUnavailable(f"{address}: Kafka did not answer a question: {reason}. Try again")


async def _describe_groups(kafka: Properties, names: Iterable[str]) -> dict[str, Operations]:
    """Return the operations that this user may perform on each group: an empty set if it may not
    describe the group, None for all groups if one has no coordinator yet.

    It does not use librdkafka, which such a question can crash (overlay/kafka/admin.py).
    """
    denied: dict[str, str] = {}
    async with Admin(kafka) as admin:
        try:
            found = await admin.describe_groups(names, denied=denied, operations=True)
        except Unled:  # the group has no coordinator yet
            return dict.fromkeys(names)
    return dict.fromkeys(denied, frozenset[str]()) | {name: group.operations for name, group in found.items()}


def _count_replicas(partitions: Iterable[Any]) -> tuple[Replicas, ...]:
    """Return how many replicas each partition has, how many of them are in sync, and whether it has a leader.
    `partitions`: from confluent-kafka's description of a topic; the result is in their order.
    """

    def is_led(found: Any) -> bool:
        return found.leader is not None and found.leader.id >= 0

    return tuple(Replicas(len(found.replicas), len(found.isr), is_led(found)) for found in partitions)


def _name_operations(operations: Iterable[Any] | None) -> Operations:
    """Return operations as ACLs spell them: DescribeConfigs for DESCRIBE_CONFIGS. None for None."""
    if operations is None:
        return None
    return frozenset(operation.name.title().replace("_", "") for operation in operations)
