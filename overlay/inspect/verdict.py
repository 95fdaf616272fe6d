"""Judgement of a config's needs by Kafka's answers. Pure.

A need is met, can be met by creating a topic, cannot be judged, or is missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from overlay.config import ServiceConfig
from overlay.config.suggestion import suggest

from .answers import ClusterAnswers, Operations, TopicAnswer
from .needs import Need, ResourceKind

if TYPE_CHECKING:
    from overlay.kafka.admin import TopicFacts

ALTER_CONFIGS = "AlterConfigs"
NO_INDEX = "without it the service runs, and every reader that filters reads the stream in full"
DAY_MS = 24 * 60 * 60 * 1000


class NeedState(Enum):
    """How far a need is met, in the words that users see.

    A need is a Kafka resource, such as a topic, with the operations that the user needs on it.
    """

    OK = "ok"
    CREATED = "will be created"
    UNKNOWN = "cannot be asked"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    """The judgement of one need.

    `missing`: operations that this user lacks. `remarks`: sentences for the user.
    """

    need: Need
    state: NeedState
    missing: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def judge_all(needs: Iterable[Need], answers: ClusterAnswers, service: ServiceConfig) -> tuple[Finding, ...]:
    """Return a finding for each need, in the same order. `answers` must have every topic of the needs."""
    all_needs = tuple(needs)
    outputs = {need.name for need in all_needs if need.kind is ResourceKind.OUTPUT}
    return tuple(_judge(need, answers, service, outputs) for need in all_needs)


def count_missing(findings: Iterable[Finding]) -> int:
    """Return the number of findings with the state MISSING."""
    return Counter(finding.state for finding in findings)[NeedState.MISSING]


def _judge(need: Need, answers: ClusterAnswers, service: ServiceConfig, outputs: set[str]) -> Finding:
    if need.kind.is_topic:
        topic = answers.topics[need.name]
        if topic.exists is None:
            why = "it is not there, or this user may not describe it. Grant the operations"
            why += "" if need.kind.is_own else ", or name another topic"
            return Finding(need, NeedState.MISSING, _without_create(need), (why,))
        if topic.exists:
            return _judge_topic(need, topic)
        return _judge_absent(need, topic, answers, service, outputs)
    match need.kind:
        case ResourceKind.GROUP:
            return _judge_group(need, answers)
        case ResourceKind.CLUSTER:
            return _judge_cluster(need, answers.operations)
    if _is_super(answers.operations):
        return Finding(need, NeedState.OK)
    return Finding(
        need, NeedState.UNKNOWN, remarks=(f"Kafka has no question for it; it needs {_list(need.operations)}",)
    )


def _judge_topic(need: Need, topic: TopicAnswer) -> Finding:
    wanted = _list_wanted(need, topic)
    missing = _subtract(wanted, topic.operations)
    remarks = _check_partitions(need, topic) if need.kind is ResourceKind.SOURCE else _check_replicas(need, topic)
    state = NeedState.MISSING if missing or remarks else NeedState.OK
    if missing:
        remarks.append(f"this user lacks {_list(missing)} on it. Grant it")
    if topic.operations is None:
        state = max(state, NeedState.UNKNOWN, key=[*NeedState].index)
        remarks.append(f"Kafka does not say what this user may do; it needs {_list(wanted)}")
    if need.kind is ResourceKind.SOURCE:
        remarks += _remark_source(topic)
    else:
        remarks += _remark_replicas(topic)
    if need.kind is ResourceKind.OUTPUT:
        remarks += _remark_output(need, topic)
    if need.kind is ResourceKind.INDEX:
        remarks += _remark_index(topic, missing, state)
    if need.kind is ResourceKind.STATE and topic.partitions != len(need.partitions):
        remarks.append(f"`shards` says {len(need.partitions)}, but its partitions decide: there are {topic.partitions}")
    return Finding(need, state, missing, tuple(remarks))


def _judge_absent(
    need: Need, topic: TopicAnswer, answers: ClusterAnswers, service: ServiceConfig, outputs: set[str]
) -> Finding:
    """Return the finding for a topic that does not exist: CREATED if the service or a consumer
    would create it, else MISSING with the reason. `outputs`: the output topics of all consumers.
    """
    if need.kind is ResourceKind.SOURCE:
        if need.name in outputs:
            return Finding(need, NeedState.CREATED, remarks=("it is the output of a consumer",))
        near = suggest(need.name, answers.visible)
        why = f"there is no such topic.{near} Create it, or name another in the stream's file"
        return Finding(need, NeedState.MISSING, remarks=(why,))
    # reasons why the service could not create it
    if topic.creation_denied:
        why = "there is no such topic, and this user may not create it. Grant Create on it, or create it yourself"
        remarks = (why, NO_INDEX) if need.kind is ResourceKind.INDEX else (why,)
        return Finding(need, NeedState.MISSING, ("Create",), remarks)
    if service.topics.replication > answers.brokers:
        brokers = f"{answers.brokers} broker{'' if answers.brokers == 1 else 's'}"
        wanted = f"topics.replication is {service.topics.replication}"
        why = f"it cannot be created: {wanted}, the cluster has {brokers}. Lower it"
        return Finding(need, NeedState.MISSING, remarks=(why,))
    if topic.refusal:
        return Finding(need, NeedState.MISSING, remarks=(f"Kafka would not create it: {topic.refusal}",))
    if _is_super(answers.operations):
        return Finding(need, NeedState.CREATED)
    later = f"what this user may do on it can be asked once it is there; it needs {_list(_without_create(need))}"
    return Finding(need, NeedState.CREATED, remarks=(later,))


def _judge_group(need: Need, answers: ClusterAnswers) -> Finding:
    operations = answers.groups.get(need.name)
    if operations is None:
        why = "not asked: Kafka would create its topic for groups if there is none"
        why = "Kafka does not say what this user may do" if need.name in answers.groups else why
        why += f"; it needs {_list(need.operations)}"
        return Finding(need, NeedState.OK if _is_super(answers.operations) else NeedState.UNKNOWN, remarks=(why,))
    missing = _subtract(need.operations, operations)
    if missing:
        return Finding(need, NeedState.MISSING, missing, (f"this user lacks {_list(missing)} on it. Grant it",))
    return Finding(need, NeedState.OK)


def _judge_cluster(need: Need, operations: Operations) -> Finding:
    """Return the finding for IdempotentWrite, always OK: since Kafka 2.8, Write on any topic is enough for it
    (KIP-679). It has a remark if Kafka says that IdempotentWrite is not granted.
    """
    if not _subtract(need.operations, operations):
        return Finding(need, NeedState.OK)
    return Finding(need, NeedState.OK, remarks=("IdempotentWrite is not granted; only brokers before 2.8 ask for it",))


def _check_partitions(need: Need, topic: TopicAnswer) -> list[str]:
    absent = [number for number in need.partitions if number >= topic.partitions]
    if not absent:
        return []
    has = f"it has {topic.partitions} partition{'' if topic.partitions == 1 else 's'}"
    return [f"{has}, the stream's file names {', '.join(map(str, absent))}. Partitions count from 0"]


def _check_replicas(need: Need, topic: TopicAnswer) -> list[str]:
    """Return the fault for which Kafka would now refuse the records of a partition of this topic, as a list of one;
    empty if there is none.
    """
    from overlay.output.topics import find_fault

    fault = find_fault(_state_facts(need, topic))
    return [fault] if fault else []


def _remark_replicas(topic: TopicAnswer) -> list[str]:
    """Return one remark if a partition has fewer replicas than the topic's min.insync.replicas, else an empty list."""
    fewest = min((replicas.assigned for replicas in topic.replicas), default=0)
    wanted = (topic.config or {}).get("min.insync.replicas", "1")
    if not fewest or int(wanted) <= fewest:
        return []
    has = f"{fewest} replica{'' if fewest == 1 else 's'}"
    return [
        f"its min.insync.replicas is {wanted}, and it has {has}: Kafka 4.3 makes do with those, another version may take no"
        " record. Lower it, or add replicas"
    ]


def _remark_index(topic: TopicAnswer, missing: Sequence[str], state: NeedState) -> list[str]:
    remarks = []
    if tuple(missing) == (ALTER_CONFIGS,):
        remarks.append(
            "without it the service runs, but cannot keep the index for longer when a source is to keep its records longer"
        )
    elif state is NeedState.MISSING:
        remarks.append(NO_INDEX)
    if topic.config is not None and "compact" not in topic.config.get("cleanup.policy", ""):
        remarks.append(
            "it is not compacted: headers that were written anew are kept as well, until its retention passes"
        )
    return remarks


def _state_facts(need: Need, topic: TopicAnswer) -> TopicFacts:
    from overlay.kafka.admin import TopicFacts

    return TopicFacts(need.name, topic.identity, topic.partitions, topic.config or {}, topic.replicas)


def _remark_source(topic: TopicAnswer) -> list[str]:
    config = topic.config or {}
    remarks = []
    if "compact" in config.get("cleanup.policy", ""):
        remarks.append("it is compacted: a record may be gone before a consumer that stands still has seen it")
    retention = int(config.get("retention.ms", -1))
    if "delete" in config.get("cleanup.policy", "delete") and 0 <= retention < DAY_MS:
        span = f"{retention / 3_600_000:.3g} h"
        remarks.append(f"it keeps records for {span} only: a service that stands still longer loses what passes")
    return remarks


def _remark_output(need: Need, topic: TopicAnswer) -> list[str]:
    from overlay.output.topics import find_differences

    if topic.config is None:
        return []
    facts = _state_facts(need, topic)
    found = [difference for consumer in need.consumers for difference in find_differences(facts, consumer)]
    return [f"{difference}; it is used as it is" for difference in dict.fromkeys(found)]


def _list_wanted(need: Need, topic: TopicAnswer) -> tuple[str, ...]:
    """Return the operations that are needed on a topic that exists: those of the need without
    Create, and without AlterConfigs unless the topic's cleanup.policy is known and has `delete`,
    whatever its retention.
    """
    expires = "delete" in (topic.config or {}).get("cleanup.policy", "")
    return tuple(operation for operation in _without_create(need) if operation != ALTER_CONFIGS or expires)


def _without_create(need: Need) -> tuple[str, ...]:
    return tuple(operation for operation in need.operations if operation != "Create")


def _subtract(wanted: Iterable[str], allowed: Operations) -> tuple[str, ...]:
    return () if allowed is None else tuple(operation for operation in wanted if operation not in allowed)


def _is_super(operations: Operations) -> bool:
    """Return whether the user may do everything: ClusterAction among the operations on the cluster shows it.

    A user with ClusterAction can act as a broker. A cluster without an authorizer grants it to all
    users.
    """
    return operations is not None and "ClusterAction" in operations


def _list(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
