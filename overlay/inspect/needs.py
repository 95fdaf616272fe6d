"""What a config needs of Kafka: topics, groups and transactional ids, and what must be allowed on each. Pure.

Source of the operations: Kafka's table of which request asks for which operation on which resource (its security page,
"Operations and Protocols on Resources"), read for the requests that the overlay sends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from overlay.config import ConsumerConfig, Loaded, ServiceConfig, StreamConfig


class Kind(Enum):
    """The words are those that people see."""

    SOURCE = "source topic"
    OUTPUT = "output topic"
    INDEX = "index topic"
    STATE = "state topic"
    CONTROL = "control topic"
    REPLIES = "reply topic"
    EVENTS = "events topic"
    ACKS = "ack topic"
    LETTERS = "dead-letter topic"
    TRANSACTION = "transactional id"
    GROUP = "group"
    CLUSTER = "cluster"

    @property
    def is_topic(self) -> bool:
        return self not in (Kind.TRANSACTION, Kind.GROUP, Kind.CLUSTER)

    @property
    def is_own(self) -> bool:
        """Whether the overlay keeps it for itself, so that a file cannot name another."""
        return self.is_topic and self not in (Kind.SOURCE, Kind.OUTPUT, Kind.LETTERS)


@dataclass(frozen=True, slots=True)
class Need:
    """One resource. `operations` are Kafka's words for ACLs. Create counts only while the topic is missing, and AlterConfigs
    only while it lets records expire."""

    kind: Kind
    name: str
    operations: tuple[str, ...]
    users: tuple[str, ...]
    """Which streams and consumers need it."""
    partitions: tuple[int, ...] = ()
    """Of a source: the partitions that a file names. Of the state topic: one for each shard."""
    consumers: tuple[ConsumerConfig, ...] = ()
    """Of an output: who writes to it."""


@dataclass(frozen=True, slots=True)
class NewTopicPlan:
    """How the service would create a topic."""

    partitions: int
    replication: int
    config: Mapping[str, str]


def find_needs(loaded: Loaded) -> tuple[Need, ...]:
    """Everything that running this folder needs, in the order of the data's way."""
    return (
        *_need_sources(loaded.streams.values()),
        *_need_outputs(loaded.consumers.values()),
        *_need_sides(loaded),
        *_need_readers(loaded.consumers.values()),
        *_need_indexes(loaded),
        *_need_service(loaded.service),
    )


def plan_topic(need: Need, service: ServiceConfig) -> NewTopicPlan | None:
    """How a missing topic would be created; None for what the service never creates.

    The service's own rules are asked. They are imported here, because they bring Kafka clients and kernels with them.
    """
    replication = service.topics.replication
    if need.kind is Kind.STATE:
        from overlay.state.takeover import STATE_CONFIG

        return NewTopicPlan(service.shards, replication, STATE_CONFIG)
    if need.kind in (Kind.CONTROL, Kind.REPLIES, Kind.EVENTS):
        from overlay.control.topics import list_topics

        return NewTopicPlan(1, replication, list_topics(service.topics.prefix)[need.name])
    if need.kind is Kind.INDEX:
        from overlay.worker.kept.retention import index_config

        # with the retention of its sources, which nobody has asked for yet
        return NewTopicPlan(1, replication, index_config(()))
    if need.kind is Kind.OUTPUT:
        from overlay.output.topics import topic_config

        consumer = need.consumers[-1]
        return NewTopicPlan(consumer.output.partitions, replication, topic_config(consumer))
    if need.kind in (Kind.ACKS, Kind.LETTERS):
        return NewTopicPlan(1, replication, {})
    return None


def _need_sources(streams: Iterable[StreamConfig]) -> Iterator[Need]:
    users: dict[str, list[str]] = {}
    partitions: dict[str, set[int]] = {}
    for stream in streams:
        for source in stream.topics:
            users.setdefault(source.topic, []).append(f"stream {stream.name}")
            partitions.setdefault(source.topic, set()).update(source.partitions or ())
    for topic, who in users.items():
        # its cleanup policy is read: where a topic is compacted, a gap is no sign of a log that was cut
        operations = ("Describe", "DescribeConfigs", "Read")
        yield Need(Kind.SOURCE, topic, operations, tuple(who), tuple(sorted(partitions[topic])))


def _need_outputs(consumers: Iterable[ConsumerConfig]) -> Iterator[Need]:
    writers: dict[str, list[ConsumerConfig]] = {}
    for consumer in consumers:
        if consumer.is_push:
            writers.setdefault(consumer.deliver_subject, []).append(consumer)
    operations = ("Describe", "DescribeConfigs", "Write", "Create")
    for topic, who in writers.items():
        users = tuple(f"consumer {name} of {stream}" for stream, name in (consumer.id for consumer in who))
        more = ("Delete",) if any(consumer.output.temporary for consumer in who) else ()
        yield Need(Kind.OUTPUT, topic, operations + more, users, consumers=tuple(who))


def _need_sides(loaded: Loaded) -> Iterator[Need]:
    """Topics for acks and dead letters, by the service's own rules: imported here as plan_topic does."""
    from overlay.consumer.acks import acks_topic
    from overlay.worker.consumer_topics import find_letters, list_topics

    users: dict[tuple[Kind, str], list[str]] = {}
    for config in loaded.consumers.values():
        stream, name = config.id
        acks, letters = acks_topic(loaded.service.topics.prefix, stream), find_letters(config)
        if acks in list_topics(loaded.service.topics.prefix, config):
            users.setdefault((Kind.ACKS, acks), []).append(f"consumer {name} of {stream}")
        if letters:
            users.setdefault((Kind.LETTERS, letters), []).append(f"consumer {name} of {stream}")
    for (kind, topic), who in users.items():
        operation = "Read" if kind is Kind.ACKS else "Write"
        yield Need(kind, topic, ("Describe", "DescribeConfigs", operation, "Create"), tuple(who))


def _need_readers(consumers: Iterable[ConsumerConfig]) -> Iterator[Need]:
    """The groups that read outputs, where the service asks them how far they are."""
    from overlay.worker.acks.interest import follows_readers, reader_group

    users: dict[str, list[str]] = {}
    for config in filter(follows_readers, consumers):
        users.setdefault(reader_group(config), []).append(f"consumer {config.id[1]} of {config.stream}")
    for group, who in users.items():
        yield Need(Kind.GROUP, group, ("Describe",), tuple(who))


def _need_indexes(loaded: Loaded) -> Iterator[Need]:
    # spelled as overlay/index/topic.py does, which brings a Kafka client with it; a test compares the two
    # its retention is raised with that of the sources
    operations = ("Describe", "DescribeConfigs", "AlterConfigs", "Read", "Write", "Create")
    for name in loaded.streams:
        yield Need(Kind.INDEX, f"{loaded.service.topics.prefix}.{name}.index", operations, (f"stream {name}",))


def _need_service(service: ServiceConfig) -> Iterator[Need]:
    prefix, users = service.topics.prefix, ("the service",)
    # Delete is what DeleteRecords asks for: the log is cut below its last checkpoint
    operations = ("Describe", "Read", "Write", "Delete", "Create")
    yield Need(Kind.STATE, f"{prefix}.state", operations, users, tuple(range(service.shards)))
    # spelled as overlay/control does; a test compares them
    yield Need(Kind.CONTROL, f"{prefix}.control", ("Describe", "Read", "Write", "Create"), users)
    yield Need(Kind.REPLIES, f"{prefix}.replies", ("Describe", "Write", "Create"), users)
    yield Need(Kind.EVENTS, f"{prefix}.events", ("Describe", "DescribeConfigs", "Write", "Create"), users)
    for shard in range(service.shards):
        yield Need(Kind.TRANSACTION, f"{prefix}.shard.{shard}", ("Describe", "Write"), users)
        yield Need(Kind.TRANSACTION, f"{prefix}.control.{shard}", ("Describe", "Write"), users)
    yield Need(Kind.GROUP, f"{prefix}.workers", ("Describe", "Read"), users)
    yield Need(Kind.CLUSTER, "kafka-cluster", ("IdempotentWrite",), users)
