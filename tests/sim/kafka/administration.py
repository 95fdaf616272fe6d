"""Requests about the cluster and its topics: metadata, creation, deletion, partitions, configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from .codes import Code
from .session import Answer
from .settings import TOPIC_DEFAULTS, TopicConfig, refuse_config
from .topics import NO_LEADER, Partition, Topic

if TYPE_CHECKING:
    from .cluster import Cluster

NO_ID = "A" * 22
INTERNAL = ("__consumer_offsets", "__transaction_state")
NOT_ASKED = -2147483648
"""Of authorized operations."""
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
SET = 0
"""The operation of IncrementalAlterConfigs that the simulation knows."""
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_DYNAMIC, _STATIC, _DEFAULT = 1, 4, 5


def describe(cluster: Cluster, answer: Answer) -> None:
    """Metadata of version 0 to 10, by name or by topic id, as the asked broker has it."""
    request = answer.request
    version = request.API_VERSION
    view = cluster.view(answer.session.broker)
    brokers: list[tuple[Any, ...]] = [(broker, *cluster.address(broker), None) for broker in view.brokers]
    topics: list[Any] = []
    names: list[tuple[Any, str]]
    if request.topics is None or (version == 0 and not request.topics):
        names = [(name, NO_ID) for name in view.topics]
    elif version >= 10:
        names = [(name, id) for id, name, *_ in request.topics]
    else:
        names = [(name, NO_ID) for name in request.topics]
    # by id a broker answers from version 12 on
    is_by_id = 10 <= version < 12 and any(name is None for name, _ in names)
    for name, id in names:
        if is_by_id:
            topics.append(_show(version, Code.INVALID_REQUEST, name or "", id, []))
            continue
        topic = view.topics.get(name) if name is not None else view.find_id(id)
        if topic is None and name is not None:
            code = _create_missing(cluster, name, bool(getattr(request, "allow_auto_topic_creation", False)))
            topics.append(_show(version, code, name, NO_ID, []))
        elif topic is None:
            topics.append(_show(version, Code.UNKNOWN_TOPIC_ID, None, id, []))
        else:
            partitions = [_show_partition(version, view, one) for one in topic.partitions if view.knows(one)]
            topics.append(_show(version, Code.NONE, topic.name, topic.id, partitions))
    if version >= 9:
        shown = [(*broker, {}) for broker in brokers]
        answer.give(0, shown, cluster.settings.cluster_id, view.controller, topics, NOT_ASKED, {})
    elif version >= 3:
        answer.give(0, brokers, cluster.settings.cluster_id, view.controller, topics)
    elif version == 2:
        answer.give(brokers, cluster.settings.cluster_id, view.controller, topics)
    elif version == 1:
        answer.give(brokers, view.controller, topics)
    else:
        answer.give([broker[:3] for broker in brokers], topics)


def _create_missing(cluster: Cluster, name: str, is_allowed: bool) -> Code:
    if not _NAME.fullmatch(name) or name in (".", ".."):
        return Code.INVALID_TOPIC
    if not (is_allowed and cluster.settings.auto_create_topics):
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    cluster.create_topic(name, cluster.settings.default_partitions)
    return Code.LEADER_NOT_AVAILABLE


def _show(version: int, code: Code, name: str | None, id: str, partitions: list[Any]) -> tuple[Any, ...]:
    is_internal = name in INTERNAL
    if version >= 10:
        return int(code), name, id, is_internal, partitions, NOT_ASKED, {}
    return (int(code), name, partitions) if version == 0 else (int(code), name, is_internal, partitions)


def _show_partition(version: int, view: View, partition: Partition) -> tuple[Any, ...]:
    leader, epoch, isr = view.leadership(partition)
    code = int(Code.LEADER_NOT_AVAILABLE if leader == NO_LEADER else Code.NONE)
    offline = [broker for broker in partition.replicas if broker not in view.brokers]
    entry: tuple[Any, ...] = (code, partition.index, leader)
    if version >= 7:
        entry = (*entry, epoch)
    entry = (*entry, list(partition.replicas), list(isr))
    if version >= 5:
        entry = (*entry, offline)
    return (*entry, {}) if version >= 9 else entry


class View:
    """What one broker knows of the cluster. A stale one keeps what it knew."""

    def __init__(self, cluster: Cluster, *, is_kept: bool = False) -> None:
        self._cluster = cluster
        self.brokers = [broker for broker in cluster.brokers if broker in cluster.alive]
        self.controller = self.brokers[0] if self.brokers else NO_LEADER
        self.topics = dict(cluster.topics) if is_kept else cluster.topics
        self.deposed: list[Callable[[bool], None]] = []
        """What to call when the broker hears that it leads no more."""
        self._kept: dict[Partition, tuple[int, int, list[int]]] | None = None
        self._ends: dict[Partition, tuple[int, int]] = {}
        if is_kept:
            self._ends = {
                partition: (partition.cuts, partition.log.high_watermark)
                for topic in self.topics.values()
                for partition in topic.partitions
            }
            self._kept = {
                partition: (partition.leader, partition.epoch, list(partition.isr))
                for topic in self.topics.values()
                for partition in topic.partitions
            }

    def find_id(self, id: str) -> Topic | None:
        return next((topic for topic in self.topics.values() if topic.id == id), None)

    def knows(self, partition: Partition) -> bool:
        """Return whether the broker has heard of a partition."""
        return self._kept is None or partition in self._kept

    def leadership(self, partition: Partition) -> tuple[int, int, list[int]]:
        """Return (leader, leader epoch, in-sync replicas)."""
        if self._kept is not None:
            return self._kept.get(partition, (NO_LEADER, -1, []))
        return partition.leader, partition.epoch, partition.isr

    def limit(self, partition: Partition) -> int | None:
        """Return the first offset that a deposed leader does not have, None if it still leads."""
        if self.leadership(partition)[1] == partition.epoch:
            return None
        cuts, end = self._ends.get(partition, (-1, 0))
        return end if cuts == partition.cuts else 0


def create(cluster: Cluster, answer: Answer) -> None:
    """CreateTopics of version 1 to 3."""
    request = answer.request
    errors: list[Any] = []
    for name, partitions, replication, assignment, configs, *_ in request.create_topic_requests:
        code, message = _refuse_topic(cluster, name, partitions, replication, assignment, configs)
        if not code and not request.validate_only:
            count = len(assignment) or (cluster.settings.default_partitions if partitions == -1 else partitions)
            nodes = [list(found) for _, found, *_ in sorted(assignment, key=lambda one: one[0])]
            factor = cluster.settings.replication_factor if replication == -1 else replication
            cluster.create_topic(name, count, dict(configs), replication=factor, assignment=nodes)
        errors.append((name, int(code), message))
    answer.give(0, errors)


def _refuse_topic(
    cluster: Cluster, name: str, partitions: int, replication: int, assignment: Any, configs: Iterable[tuple[str, str]]
) -> tuple[Code, str | None]:
    if name in (".", ".."):
        return Code.INVALID_TOPIC, f"Topic name is invalid: '{name}' is not allowed"
    if not name:
        return Code.INVALID_TOPIC, "Topic name is invalid: the empty string is not allowed"
    if not _NAME.fullmatch(name):
        return Code.INVALID_TOPIC, (
            f"Topic name is invalid: '{name}' contains one or more characters other than ASCII alphanumerics,"
            " '.', '_' and '-'"
        )
    if name in cluster.topics:
        return Code.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists."
    if assignment:
        if partitions != -1:
            return (
                Code.INVALID_REQUEST,
                "A manual partition assignment was specified, but numPartitions was not set to -1.",
            )
        if any(node not in cluster.brokers for _, nodes, *_ in assignment for node in nodes):
            return (
                Code.INVALID_REPLICA_ASSIGNMENT,
                "The manual partition assignment includes a broker that is not there.",
            )
    elif partitions == 0 or partitions < -1:
        return Code.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
    elif replication == 0 or replication < -1:
        return (
            Code.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    for key, value in configs:
        if refusal := refuse_config(key, value):
            return Code.INVALID_CONFIG, refusal
    if not assignment and replication > len(cluster.brokers):
        return Code.INVALID_REPLICATION_FACTOR, (
            f"Unable to replicate the partition {replication} time(s): The target replication factor of {replication}"
            f" cannot be reached because only {len(cluster.brokers)} broker(s) are registered or some brokers have all"
            " their log directories cordoned."
        )
    return Code.NONE, None


def delete(cluster: Cluster, answer: Answer) -> None:
    """DeleteTopics of version 1 to 3."""
    codes: list[Any] = []
    for name in answer.request.topics:
        code = Code.NONE if name in cluster.topics else Code.UNKNOWN_TOPIC_OR_PARTITION
        if not code:
            cluster.delete_topic(name)
        codes.append((name, int(code)))
    answer.give(0, codes)


def create_partitions(cluster: Cluster, answer: Answer) -> None:
    """CreatePartitions of version 0 and 1."""
    request = answer.request
    errors: list[Any] = []
    for name, (count, assignment, *_), *_ in request.topic_partitions:
        topic = cluster.topics.get(name)
        code = Code.NONE
        message: str | None = None
        if topic is None:
            code = Code.UNKNOWN_TOPIC_OR_PARTITION
        elif count == (now := len(topic.partitions)):
            code, message = Code.INVALID_PARTITIONS, f"Topic already has {now} partition(s)."
        elif count < now:
            code = Code.INVALID_PARTITIONS
            message = f"The topic {name} currently has {now} partition(s); {count} would not be an increase."
        elif not request.validate_only:
            cluster.add_partitions(name, count, [list(nodes) for nodes in assignment or ()])
        errors.append((name, int(code), message))
    answer.give(0, errors)


def describe_configs(cluster: Cluster, answer: Answer) -> None:
    """DescribeConfigs of version 0 to 2, of topics. Brokers and other resources have no entries."""
    version = answer.request.API_VERSION
    resources: list[Any] = []
    for kind, name, keys, *_ in answer.request.resources:
        topic = cluster.topics.get(name) if kind == TOPIC_RESOURCE else None
        if kind == TOPIC_RESOURCE and topic is None:
            resources.append((int(Code.UNKNOWN_TOPIC_OR_PARTITION), "", kind, name, []))
            continue
        entries: list[Any] = []
        overrides = topic.config.overrides if topic is not None else {}
        for key, default in TOPIC_DEFAULTS.items() if topic is not None else ():
            if keys is None or key in keys:
                source = _DYNAMIC if key in overrides else _DEFAULT
                shown: Any = source if version >= 1 else source == _DEFAULT
                entry: tuple[Any, ...] = (key, overrides.get(key, default), False, shown, False)
                entries.append((*entry, []) if version >= 1 else entry)
        resources.append((0, "", kind, name, entries))
    answer.give(0, resources)


def alter_configs(cluster: Cluster, answer: Answer) -> None:
    """AlterConfigs: the entries become all that a topic's configuration overrides."""
    resources: list[Any] = []
    for kind, name, entries, *_ in answer.request.resources:
        topic = cluster.topics.get(name)
        code, message = Code.NONE, None
        if kind != TOPIC_RESOURCE:
            code, message = Code.INVALID_REQUEST, f"Unexpected resource type {kind}."
        elif topic is None:
            code, message = Code.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
        else:
            message = next((why for key, value in entries if (why := refuse_config(key, value))), None)
            if message:
                code = Code.INVALID_CONFIG
            elif not answer.request.validate_only:
                topic.config = TopicConfig(dict(entries))
        resources.append((int(code), message, kind, name))
    answer.give(0, resources)


def alter_configs_incrementally(cluster: Cluster, answer: Answer) -> None:
    """IncrementalAlterConfigs: single overrides of a topic's configuration are set, the others stay."""
    resources: list[Any] = []
    for kind, name, entries, *_ in answer.request.resources:
        assert all(operation == SET for _, operation, *_ in entries)
        changes = {key: value for key, _, value, *_ in entries}
        refusal = next((why for key, value in changes.items() if (why := refuse_config(key, value))), None)
        code, message = Code.NONE, None
        if kind != TOPIC_RESOURCE:
            code, message = Code.INVALID_REQUEST, f"Unexpected resource type {kind}."
        elif refusal:
            code, message = Code.INVALID_CONFIG, refusal
        elif name not in cluster.topics:
            code, message = Code.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
        elif not answer.request.validate_only:
            cluster.configure(name, changes)
        resources.append((int(code), message, kind, name))
    answer.give(0, resources)
