"""Judgement of topics, groups and ids: rights, the settings of the overlay's own topics, retention and sizes. Pure.

Rights and what is missing are judged as `overlay validate --kafka` judges them (verdict.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from overlay.config import Loaded, ServiceConfig
from overlay.config.consumer import ConsumerConfig, OnUndeliverable
from overlay.index.retention import FOR_EVER, find_changes
from overlay.inspect.answers import ClusterAnswers, TopicAnswer
from overlay.inspect.needs import Need, ResourceKind, plan_topic
from overlay.inspect.verdict import Finding, NeedState
from overlay.kafka.own_topics import acks_topic, index_topic
from overlay.kafka.topics import TopicFacts
from overlay.units import format_duration

from .brokers import USUAL_MESSAGE_BYTES
from .diagnosis import Check, Diagnosis, Severity, split_advice

DAY_MS = 86_400_000
_MILLION = 1_000_000
_WORRYING = {
    ResourceKind.SOURCE: "see that consumers keep up, or have the topic keep its records for longer",
    ResourceKind.STATE: "write that number into overlay.yaml, so that the file says what is",
}
"""Kinds of needs whose remarks are warnings although nothing is missing, and what to do."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A setting that one of the overlay's own topics has to keep. `harm`: what happens otherwise."""

    setting: str
    severity: Severity
    harm: str


RULES: Mapping[ResourceKind, tuple[Rule, ...]] = {
    ResourceKind.STATE: (
        Rule("cleanup.policy", Severity.ERROR, "positions of consumers are lost"),
        Rule("retention.ms", Severity.ERROR, "positions of consumers expire"),
        Rule("retention.bytes", Severity.ERROR, "positions of consumers are lost when the topic grows"),
        Rule("max.message.bytes", Severity.WARNING, "a checkpoint that is larger is refused, and its shard stops"),
    ),
    ResourceKind.CONTROL: (
        Rule(
            "cleanup.policy",
            Severity.ERROR,
            "consumers that were made by request are lost, or answered requests pile up",
        ),
        Rule("message.timestamp.type", Severity.WARNING, "how old a request is goes by the clocks of clients"),
    ),
    ResourceKind.REQUESTS: (
        Rule("cleanup.policy", Severity.WARNING, "requests pile up, or replace each other"),
        Rule("message.timestamp.type", Severity.WARNING, "how old a request is goes by the clocks of clients"),
    ),
    ResourceKind.REPLIES: (Rule("cleanup.policy", Severity.WARNING, "answers pile up, or go before they are read"),),
    ResourceKind.EVENTS: (Rule("cleanup.policy", Severity.WARNING, "events of one kind replace each other"),),
    ResourceKind.FLEET: (
        Rule("cleanup.policy", Severity.WARNING, "statuses that tell of other consumers are removed"),
        Rule("message.timestamp.type", Severity.WARNING, "the clocks of workers cannot be compared with Kafka's"),
    ),
}


def judge_needs(findings: Sequence[Finding]) -> Iterator[Diagnosis]:
    """Yield a diagnosis for each remark of the findings of `overlay validate --kafka`, and last an OK with the number
    of needs by state, whatever they are. The same remark on several resources of one kind is one diagnosis if it is
    as bad for all.
    """
    named: dict[tuple[Severity, ResourceKind, str], list[str]] = {}
    for finding in findings:
        for remark in finding.remarks:
            named.setdefault((_rate(finding), finding.need.kind, remark), []).append(finding.need.name)
    for (severity, kind, remark), names in named.items():
        text, todo = split_advice(remark)
        advice = _WORRYING.get(kind, "") if severity is Severity.WARNING else ""
        yield Diagnosis(severity, Check.RIGHTS, f"{kind.value} {_list(names)}", text, todo or advice)
    told = Counter(finding.state for finding in findings)
    parts = [f"{told[state]} {state.value}" for state in NeedState if told[state]]
    yield Diagnosis(Severity.OK, Check.RIGHTS, "", f"{len(findings)} topics, groups and ids: {', '.join(parts)}")


def _rate(finding: Finding) -> Severity:
    """Return how bad the remarks of a finding are: ERROR if something is missing, WARNING if not and the kind is in
    _WORRYING, NOTE for others and for what cannot be judged yet.
    """
    if finding.state is NeedState.MISSING:
        return Severity.ERROR
    return Severity.WARNING if finding.need.kind in _WORRYING and finding.state is NeedState.OK else Severity.NOTE


def judge_retention(loaded: Loaded, needs: Sequence[Need], answers: ClusterAnswers) -> Iterator[Diagnosis]:
    """Yield a diagnosis for each setting of the overlay's own topics that does harm, such as a loss of records, a
    note on topics whose settings may not be read, and an OK if there is no error and no warning. `answers` must have
    every topic of the needs.
    """
    found = [
        *_judge_own(needs, answers, loaded.service),
        *_judge_indexes(loaded, answers),
        *_judge_acks(loaded, answers),
    ]
    hidden = sorted(need.name for need in needs if need.kind.is_topic and _is_hidden(answers.topics[need.name]))
    if hidden:
        text = f"the settings of {_list(hidden)} may not be read by this user, so they are not looked at"
        found.append(Diagnosis(Severity.NOTE, Check.RETENTION, "", text, "grant DescribeConfigs on them"))
    yield from found
    if not any(each.severity in (Severity.ERROR, Severity.WARNING) for each in found):
        text = "no topic of the overlay that is there loses records before they are used"
        yield Diagnosis(Severity.OK, Check.RETENTION, "", text)


def _judge_own(needs: Sequence[Need], answers: ClusterAnswers, service: ServiceConfig) -> Iterator[Diagnosis]:
    """Yield a diagnosis for each setting in RULES that a topic has otherwise than the service would set it, and not
    better. Topics whose settings are not known are passed over.
    """
    for need in needs:
        config, plan = answers.topics[need.name].config if need.kind in RULES else None, None
        if config is None or (plan := plan_topic(need, service)) is None:
            continue
        for rule in RULES[need.kind]:
            wanted, has = plan.config.get(rule.setting), config.get(rule.setting)
            if wanted is not None and has is not None and not _keeps(rule.setting, has, wanted):
                text = f"its {rule.setting} is {has}, and should be {wanted}: {rule.harm}"
                yield _lossy(
                    rule.severity, f"{need.kind.value} {need.name}", text, _alter(need.name, rule.setting, wanted)
                )


def _keeps(setting: str, has: str, wanted: str) -> bool:
    """Return whether a topic's value of a setting is as good as the one that the service sets."""
    if setting == "max.message.bytes":
        return int(has) >= int(wanted)
    return set(has.split(",")) == set(wanted.split(","))


def _judge_indexes(loaded: Loaded, answers: ClusterAnswers) -> Iterator[Diagnosis]:
    """Yield a warning for each index topic whose settings `find_changes` would raise: it deletes records, and it has a
    retention.ms below what the sources' records may need (their retention and some days more), or any retention.bytes.
    Streams with a topic whose settings are not known are passed over.
    """
    for name, stream in loaded.streams.items():
        index = index_topic(loaded.service.topics.prefix, name)
        sources = {topic: answers.topics[topic] for topic in stream.topic_names}
        there = {topic: answer for topic, answer in sources.items() if answer.exists and answer.config is not None}
        if not answers.topics[index].exists or answers.topics[index].config is None or len(there) < len(sources):
            continue
        changes = find_changes(_describe(index, answers.topics[index]), [_describe(*each) for each in there.items()])
        if changes:
            config = answers.topics[index].config or {}
            words = {"retention.ms": f"for {_span(config.get('retention.ms', str(FOR_EVER)))}"}
            words["retention.bytes"] = f"up to {config.get('retention.bytes')} bytes a partition"
            kept = " and ".join(words[setting] for setting in changes)
            what = " and ".join(f"{setting}={value}" for setting, value in changes.items())
            text = (
                f"it keeps records {kept}, and those of {_list(sorted(there))} may stay for longer: they get no"
                " sequence again, and are read in full"
            )
            todo = f"grant AlterConfigs on it and start the service, or set {what} on it"
            yield _lossy(Severity.WARNING, f"index topic {index}", text, todo)


def _judge_acks(loaded: Loaded, answers: ClusterAnswers) -> Iterator[Diagnosis]:
    """Yield a diagnosis for each setting by which an ack topic may lose acks before they are read: compaction, or
    deletion after less than a day. Settings that are not known are passed over.
    """
    for name in sorted({config.stream for config in loaded.served.values() if config.needs_machine}):
        topic = acks_topic(loaded.service.topics.prefix, name)
        config = answers.topics[topic].config or {}
        policy, retention = config.get("cleanup.policy", "delete"), int(config.get("retention.ms", FOR_EVER))
        if "compact" in policy:
            text = f"its cleanup.policy is {policy}: acks of a consumer have one key, and compaction removes those not read yet"
            yield _lossy(Severity.ERROR, f"ack topic {topic}", text, _alter(topic, "cleanup.policy", "delete"))
        if "delete" in policy and 0 <= retention < DAY_MS:
            text = f"it keeps acks for {_span(str(retention))}: a service that is away for longer delivers again what was acked"
            yield _lossy(Severity.WARNING, f"ack topic {topic}", text, _alter(topic, "retention.ms", str(7 * DAY_MS)))


def judge_sizes(loaded: Loaded, answers: ClusterAnswers, usual: int = USUAL_MESSAGE_BYTES) -> Iterator[Diagnosis]:
    """Yield a diagnosis for each output topic that takes smaller batches, by max.message.bytes, than the largest of
    its consumer's source topics, one for all consumers with the same two topics; if there is none, one OK. `answers`
    must have every source and output topic. `usual`: message.max.bytes of the brokers, for topics without a setting
    that is known.
    """
    seen: set[tuple[str, str]] = set()
    for config in loaded.consumers.values():
        largest = max((_limit(answers.topics[t], {}, usual), t) for t in loaded.streams[config.stream].topic_names)
        settings = {name: str(value) for name, value in config.output.config.items()}
        takes = _limit(answers.topics[config.deliver_subject], settings, usual) if config.is_push else largest[0]
        if takes >= largest[0] or (config.deliver_subject, largest[1]) in seen:
            continue
        seen.add((config.deliver_subject, largest[1]))
        text = f"it takes batches of {takes} bytes, and {largest[1]} has records of up to {largest[0]}: {_word_fate(config)}"
        todo = _alter(config.deliver_subject, "max.message.bytes", str(largest[0]))
        severity = Severity.WARNING if config.on_undeliverable is OnUndeliverable.STOP else Severity.NOTE
        yield Diagnosis(severity, Check.SIZES, f"output topic {config.deliver_subject}", text, todo)
    if not seen:
        yield Diagnosis(Severity.OK, Check.SIZES, "", "each output takes the largest records of its sources")


def _word_fate(config: ConsumerConfig) -> str:
    name = "/".join(config.id)
    if config.on_undeliverable is OnUndeliverable.STOP:
        return f"a larger one stops {name}"
    return f"{name} gives a larger one to {config.dead_letter}"


def _limit(topic: TopicAnswer, settings: Mapping[str, str], usual: int) -> int:
    """Return the bytes of the largest batch that a topic takes: its max.message.bytes, or that of `settings` if the
    topic's are not known or it does not exist yet, or `usual` if neither says.
    """
    config = topic.config if topic.exists and topic.config is not None else settings
    return int(config.get("max.message.bytes", usual))


def _describe(name: str, topic: TopicAnswer) -> TopicFacts:
    return TopicFacts(name, topic.identity, topic.partitions, topic.config or {}, topic.replicas)


def _is_hidden(topic: TopicAnswer) -> bool:
    return topic.exists is True and topic.config is None


def _lossy(severity: Severity, about: str, text: str, todo: str) -> Diagnosis:
    return Diagnosis(severity, Check.RETENTION, about, text, todo)


def _alter(topic: str, setting: str, value: str) -> str:
    value = f"[{value}]" if "," in value else value
    return f"kafka-configs.sh --bootstrap-server HOST:PORT --alter --topic {topic} --add-config {setting}={value}"


def _span(retention: str) -> str:
    """Return a retention in ms as a text such as `168h`; `ever` if it is negative, which is without end."""
    return "ever" if int(retention) < 0 else format_duration(int(retention) * _MILLION)


def _list(names: Sequence[str]) -> str:
    rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + rest
