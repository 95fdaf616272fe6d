"""The Kafka resources that a config needs, and the operations that must be allowed on each. Pure.

The operations are those of Kafka's security page ("Operations and Protocols on Resources") for the
requests that the overlay sends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from overlay.config import ConsumerConfig, Loaded, ServiceConfig, StreamConfig
from overlay.config.consumer import Engine
from overlay.index.retention import index_config
from overlay.kafka.own_topics import (
    ACKS_CONFIG,
    FLEET_CONFIG,
    STATE_CONFIG,
    acks_topic,
    control_topic,
    events_topic,
    fleet_topic,
    index_topic,
    job_id,
    job_topic,
    journal_id,
    lease_group,
    list_shared_topics,
    reply_topic,
    requests_topic,
    shard_id,
    state_topic,
    workers_group,
)


class ResourceKind(Enum):
    """Kinds of resources, by the names that users see."""

    SOURCE = "source topic"
    OUTPUT = "output topic"
    INDEX = "index topic"
    STATE = "state topic"
    CONTROL = "control topic"
    REQUESTS = "requests topic"
    REPLIES = "reply topic"
    EVENTS = "events topic"
    FLEET = "fleet topic"
    ACKS = "ack topic"
    JOB = "state topic of a Spark job"
    LETTERS = "dead-letter topic"
    TRANSACTION = "transactional id"
    GROUP = "group"
    CLUSTER = "cluster"

    @property
    def is_topic(self) -> bool:
        return self not in (ResourceKind.TRANSACTION, ResourceKind.GROUP, ResourceKind.CLUSTER)

    @property
    def is_own(self) -> bool:
        """Whether the topic is the overlay's own, so that no config file can name another one."""
        return self.is_topic and self not in (ResourceKind.SOURCE, ResourceKind.OUTPUT, ResourceKind.LETTERS)


@dataclass(frozen=True, slots=True)
class Need:
    """One Kafka resource that a config needs. `operations` are Kafka's words for ACLs. Create
    counts only while the topic is missing, and AlterConfigs only while its cleanup.policy has
    `delete`.
    """

    kind: ResourceKind
    name: str
    operations: tuple[str, ...]
    users: tuple[str, ...]
    """The streams and consumers that need it."""
    partitions: tuple[int, ...] = ()
    """For a source: the partitions that a file names. For the state topic: one for each shard."""
    consumers: tuple[ConsumerConfig, ...] = ()
    """For an output: the consumers that write to it."""


@dataclass(frozen=True, slots=True)
class NewTopicPlan:
    """The settings with which the service would create a topic."""

    partitions: int
    replication: int
    config: Mapping[str, str]


def find_needs(loaded: Loaded) -> tuple[Need, ...]:
    """Return every resource that the config needs to run, in the order of the data flow. Kafka is not asked."""
    return (
        *_need_sources(loaded.streams.values()),
        *_need_outputs(loaded.consumers.values()),
        *_need_sides(loaded),
        *_need_readers(loaded.consumers.values()),
        *_need_indexes(loaded),
        *_need_jobs(loaded),
        *_need_service(loaded),
    )


def plan_topic(need: Need, service: ServiceConfig) -> NewTopicPlan | None:
    """Return the settings with which the overlay would create the topic of this need; None if it never creates
    resources of that kind. For an output topic the last of its consumers decides. For an index topic they lack the
    retention, which follows from the source topics.

    The service's own modules decide. `overlay.output` is imported late, because it loads a Kafka client and compiled
    kernels.
    """
    replication = service.topics.replication
    if need.kind is ResourceKind.STATE:
        return NewTopicPlan(service.shards, replication, STATE_CONFIG)
    if need.kind in (ResourceKind.CONTROL, ResourceKind.REQUESTS, ResourceKind.REPLIES, ResourceKind.EVENTS):
        return NewTopicPlan(1, replication, list_shared_topics(service.topics.prefix, requests=True)[need.name])
    if need.kind is ResourceKind.FLEET:
        return NewTopicPlan(1, replication, FLEET_CONFIG)
    if need.kind is ResourceKind.INDEX:
        # the service adds the retention of the source topics, which is not known here yet
        return NewTopicPlan(1, replication, index_config(()))
    if need.kind is ResourceKind.OUTPUT:
        from overlay.output.topics import topic_config

        consumer = need.consumers[-1]
        return NewTopicPlan(consumer.output.partitions, replication, topic_config(consumer))
    if need.kind is ResourceKind.JOB:
        from overlay.state.job_log import FIRST_PARTITIONS

        return NewTopicPlan(FIRST_PARTITIONS, replication, STATE_CONFIG)
    if need.kind in (ResourceKind.ACKS, ResourceKind.LETTERS):
        return NewTopicPlan(1, replication, ACKS_CONFIG if need.kind is ResourceKind.ACKS else {})
    return None


def _need_sources(streams: Iterable[StreamConfig]) -> Iterator[Need]:
    users: dict[str, list[str]] = {}
    partitions: dict[str, set[int]] = {}
    for stream in streams:
        for source in stream.topics:
            users.setdefault(source.topic, []).append(f"stream {stream.name}")
            partitions.setdefault(source.topic, set()).update(source.partitions or ())
    for topic, who in users.items():
        # DescribeConfigs: the cleanup policy tells whether a gap may mean a truncated log
        operations = ("Describe", "DescribeConfigs", "Read")
        yield Need(ResourceKind.SOURCE, topic, operations, tuple(who), tuple(sorted(partitions[topic])))


def _need_outputs(consumers: Iterable[ConsumerConfig]) -> Iterator[Need]:
    writers: dict[str, list[ConsumerConfig]] = {}
    for consumer in consumers:
        if consumer.is_push:
            writers.setdefault(consumer.deliver_subject, []).append(consumer)
    operations = ("Describe", "DescribeConfigs", "Write", "Create")
    for topic, who in writers.items():
        users = tuple(f"consumer {name} of {stream}" for stream, name in (consumer.id for consumer in who))
        more = ("Delete",) if any(consumer.output.temporary for consumer in who) else ()
        yield Need(ResourceKind.OUTPUT, topic, operations + more, users, consumers=tuple(who))


def _need_sides(loaded: Loaded) -> Iterator[Need]:
    """Yield the ack topic of each stream and the dead-letter topics, as far as consumers use them."""
    users: dict[tuple[ResourceKind, str], list[str]] = {}
    for config in loaded.consumers.values():
        stream, name = config.id
        if config.needs_machine:
            acks = acks_topic(loaded.service.topics.prefix, stream)
            users.setdefault((ResourceKind.ACKS, acks), []).append(f"consumer {name} of {stream}")
        if letters := config.dead_letter_topic:
            users.setdefault((ResourceKind.LETTERS, letters), []).append(f"consumer {name} of {stream}")
    for (kind, topic), who in users.items():
        operation = "Read" if kind is ResourceKind.ACKS else "Write"
        yield Need(kind, topic, ("Describe", "DescribeConfigs", operation, "Create"), tuple(who))


def _need_readers(consumers: Iterable[ConsumerConfig]) -> Iterator[Need]:
    """Yield the groups of output readers whose committed offsets the service reads."""
    users: dict[str, list[str]] = {}
    for config in consumers:
        if config.follows_readers:
            users.setdefault(config.reader_group, []).append(f"consumer {config.id[1]} of {config.stream}")
    for group, who in users.items():
        yield Need(ResourceKind.GROUP, group, ("Describe",), tuple(who))


def _need_indexes(loaded: Loaded) -> Iterator[Need]:
    # its retention is raised with that of the sources
    operations = ("Describe", "DescribeConfigs", "AlterConfigs", "Read", "Write", "Create")
    jobs = _list_jobs(loaded)
    for name in loaded.streams:
        # while no service runs, the stream's job writes the ledger and the chunk index
        users = (f"stream {name}", *((_name_job(name),) if name in jobs else ()))
        yield Need(ResourceKind.INDEX, index_topic(loaded.service.topics.prefix, name), operations, users)


def _list_jobs(loaded: Loaded) -> dict[str, list[str]]:
    """Return the names of the consumers with `engine: spark`, by stream. Streams without such a consumer are left
    out. One job delivers all of a stream.
    """
    names: dict[str, list[str]] = {}
    for config in loaded.consumers.values():
        if config.engine is Engine.SPARK:
            names.setdefault(config.stream, []).append(config.id[1])
    return names


def _name_job(stream: str) -> str:
    return f"Spark job {stream}"


def _need_jobs(loaded: Loaded) -> Iterator[Need]:
    """Yield what the Spark jobs need and the service would not: for each stream that has a job, the job's state
    topic, the transactional ids of its driver and of its writers, and a lease for each of its consumers.
    """
    prefix = loaded.service.topics.prefix
    for stream, consumers in _list_jobs(loaded).items():
        users = (_name_job(stream),)
        # Alter: a partition is added for each output partition. Delete: what does not count any more is deleted
        operations = ("Describe", "Read", "Write", "Alter", "Delete", "Create")
        yield Need(ResourceKind.JOB, job_topic(prefix, stream), operations, users)
        for name in (job_id(prefix, stream), f"{job_id(prefix, stream)}.*"):
            yield Need(ResourceKind.TRANSACTION, name, ("Describe", "Write"), users)
        for consumer in consumers:
            group = lease_group(prefix, (stream, consumer))
            yield Need(ResourceKind.GROUP, group, ("Describe", "Read"), (f"consumer {consumer} of {stream}",))


def _need_service(loaded: Loaded) -> Iterator[Need]:
    service = loaded.service
    prefix, users = service.topics.prefix, ("the service",)
    # a job takes consumers over from the shards, and keeps its stream's ledger and index as the owner of one
    owners = (*users, *map(_name_job, _list_jobs(loaded)))
    # DeleteRecords needs Delete: the log is truncated below its last checkpoint
    operations = ("Describe", "Read", "Write", "Delete", "Create")
    yield Need(ResourceKind.STATE, state_topic(prefix), operations, owners, tuple(range(service.shards)))
    yield Need(ResourceKind.CONTROL, control_topic(prefix), ("Describe", "Read", "Write", "Create"), users)
    if service.topics.requests:
        yield Need(ResourceKind.REQUESTS, requests_topic(prefix), ("Describe", "Read", "Create"), users)
    yield Need(ResourceKind.REPLIES, reply_topic(prefix), ("Describe", "Write", "Create"), users)
    # Read: a journal asks what a former owner has left open there
    operations = ("Describe", "DescribeConfigs", "Read", "Write", "Create")
    yield Need(ResourceKind.EVENTS, events_topic(prefix), operations, users)
    if service.fleet.publish:
        yield Need(ResourceKind.FLEET, fleet_topic(prefix), ("Describe", "Write", "Create"), users)
    for shard in range(service.shards):
        yield Need(ResourceKind.TRANSACTION, shard_id(prefix, shard), ("Describe", "Write"), owners)
        yield Need(ResourceKind.TRANSACTION, journal_id(prefix, shard), ("Describe", "Write"), users)
    yield Need(ResourceKind.GROUP, workers_group(prefix), ("Describe", "Read"), owners)
    yield Need(ResourceKind.CLUSTER, "kafka-cluster", ("IdempotentWrite",), users)
