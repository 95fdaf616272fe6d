"""Committed offsets of groups, also as parts of transactions, and what is answered about groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .codes import Code
from .session import Answer

if TYPE_CHECKING:
    from .cluster import Cluster

NOT_ASKED = -2147483648
TopicPartition = tuple[str, int]
Committed = tuple[int, str]
"""(offset, metadata)"""


class Offsets:
    """The committed offsets of one group, and those of transactions that are open."""

    __slots__ = ("committed", "pending")

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, Committed] = {}
        self.pending: dict[int, dict[TopicPartition, Committed]] = {}
        """By producer."""

    def end_transaction(self, producer: int, *, is_commit: bool) -> None:
        pending = self.pending.pop(producer, {})
        if is_commit:
            self.committed.update(pending)


def commit(cluster: Cluster, answer: Answer) -> None:
    """OffsetCommit of version 2 and 3."""
    request = answer.request
    code = _refuse_commit(cluster, answer)
    topics: list[Any] = []
    for topic, partitions in request.topics:
        codes: list[Any] = []
        for index, offset, metadata in partitions:
            one = code or _refuse_offset(cluster, topic, index, metadata)
            if not one:
                cluster.groups.get(request.consumer_group).offsets.committed[topic, index] = offset, metadata or ""
            codes.append((index, int(one)))
        topics.append((topic, codes))
    if request.API_VERSION < 3:
        answer.give(topics)
    else:
        answer.give(0, topics)


def _refuse_commit(cluster: Cluster, answer: Answer) -> Code:
    request = answer.request
    name, generation = request.consumer_group, request.consumer_group_generation_id
    if not name:
        return Code.INVALID_GROUP_ID
    if code := cluster.refuse_coordinator(answer.session.broker, name, 0):
        return code
    group = cluster.groups.known.get(name)
    if group is None:
        return Code.NONE if generation < 0 else Code.ILLEGAL_GENERATION
    if generation < 0 and not group.members:
        return Code.NONE
    if code := group.check(request.consumer_id, generation):
        return code
    if group.state.value == "CompletingRebalance":
        return Code.REBALANCE_IN_PROGRESS
    # a commit shows that the member is there
    cluster.groups._watch(group, group.members[request.consumer_id])
    return Code.NONE


def _refuse_offset(cluster: Cluster, topic: str, index: int, metadata: str | None) -> Code:
    if cluster.find(topic, index) is None:
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    if metadata is not None and len(metadata) > cluster.settings.max_offset_metadata_bytes:
        return Code.OFFSET_METADATA_TOO_LARGE
    return Code.NONE


def commit_in_transaction(cluster: Cluster, answer: Answer) -> None:
    """TxnOffsetCommit of version 0: offsets that count once the transaction is committed."""
    request = answer.request
    code = Code.NONE if request.group_id else Code.INVALID_GROUP_ID
    code = code or cluster.refuse_coordinator(answer.session.broker, request.group_id, 0)
    code = code or cluster.transactions.verify_group(
        request.transactional_id, request.producer_id, request.producer_epoch, request.group_id
    )
    errors: list[Any] = []
    for topic, partitions in request.topics:
        codes: list[Any] = []
        for index, offset, metadata in partitions:
            one = code or _refuse_offset(cluster, topic, index, metadata)
            if not one:
                pending = cluster.groups.get(request.group_id).offsets.pending
                pending.setdefault(request.producer_id, {})[topic, index] = offset, metadata or ""
            codes.append((index, int(one)))
        errors.append((topic, codes))
    answer.give(0, errors)


def fetch(cluster: Cluster, answer: Answer) -> None:
    """OffsetFetch of version 1 to 3: of some partitions, or of all that have one."""
    request = answer.request
    name = request.consumer_group
    code = cluster.refuse_coordinator(answer.session.broker, name, 0)
    group = cluster.groups.known.get(name)
    committed = group.offsets.committed if group is not None else {}
    wanted: dict[str, list[int]] = {}
    if request.topics is None:
        for topic, index in sorted(committed):
            wanted.setdefault(topic, []).append(index)
    else:
        wanted = {topic: list(partitions) for topic, partitions in request.topics}
    topics: list[Any] = []
    for topic, indexes in wanted.items():
        found: list[Any] = []
        for index in indexes:
            offset, metadata = (-1, "") if code else committed.get((topic, index), (-1, ""))
            found.append((index, offset, metadata, int(code)))
        topics.append((topic, found))
    if code and request.API_VERSION >= 2:
        topics = []
    if request.API_VERSION >= 3:
        answer.give(0, topics, int(code))
    elif request.API_VERSION == 2:
        answer.give(topics, int(code))
    else:
        answer.give(topics)


def describe(cluster: Cluster, answer: Answer) -> None:
    """DescribeGroups of version 5."""
    groups: list[Any] = []
    for name in answer.request.groups:
        code = cluster.refuse_coordinator(answer.session.broker, name, 0)
        group = cluster.groups.known.get(name)
        if code or group is None:
            groups.append((int(code), name, "" if code else "Dead", "", "", [], NOT_ASKED, {}))
            continue
        is_settled = group.state.value == "Stable"
        protocol = group.protocol if is_settled else ""
        members: list[Any] = [
            (
                one.id,
                None,
                one.client_id,
                "/127.0.0.1",
                one.metadata(group.protocol) if is_settled else b"",
                one.assignment,
                {},
            )
            for one in group.members.values()
        ]
        groups.append((0, name, group.state.value, group.protocol_type, protocol, members, NOT_ASKED, {}))
    answer.give(0, groups, {})


def describe_consumer_groups(cluster: Cluster, answer: Answer) -> None:
    """ConsumerGroupDescribe of version 0. There are no groups of the newer protocol here."""
    groups: list[Any] = []
    for name in answer.request.groups:
        code = cluster.refuse_coordinator(answer.session.broker, name, 0) or Code.GROUP_ID_NOT_FOUND
        text = f"Group {name} not found." if code == Code.GROUP_ID_NOT_FOUND else None
        groups.append((int(code), text, name, "", 0, 0, "", [], NOT_ASKED, {}))
    answer.give(0, groups, {})


def list_groups(cluster: Cluster, answer: Answer) -> None:
    """ListGroups of version 0 to 2: the groups that the asked broker coordinates."""
    found = [
        (group.name, group.protocol_type)
        for group in cluster.groups.known.values()
        if cluster.coordinator(group.name, 0) == answer.session.broker
    ]
    if answer.request.API_VERSION < 1:
        answer.give(0, found)
    else:
        answer.give(0, 0, found)


def delete_groups(cluster: Cluster, answer: Answer) -> None:
    """DeleteGroups of version 0 and 1."""
    results: list[Any] = []
    for name in answer.request.groups_names:
        group = cluster.groups.known.get(name)
        code = cluster.refuse_coordinator(answer.session.broker, name, 0)
        if not code and group is None:
            code = Code.GROUP_ID_NOT_FOUND
        elif not code and group is not None and group.members:
            code = Code.NON_EMPTY_GROUP
        elif not code:
            del cluster.groups.known[name]
        results.append((name, int(code)))
    answer.give(0, results)
