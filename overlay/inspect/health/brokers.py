"""Judgement of the brokers: their release, and the settings that the service depends on. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from overlay.kafka.broker_facts import BrokerFacts

from .diagnosis import Check, Diagnosis, Severity

TESTED = "4.3"
"""The release that the tests run on."""
METADATA = "metadata.version"
_LATEST = 30
"""The level of `metadata.version` that TESTED adds last."""
_RELEASES = (
    *((30, "4.3"), (28, "4.2"), (26, "4.1"), (22, "4.0"), (21, "3.9"), (20, "3.8"), (15, "3.7"), (12, "3.6")),
    *((9, "3.5"), (8, "3.4"), (4, "3.3"), (3, "3.2"), (2, "3.1"), (1, "3.0")),
)
"""The first level of `metadata.version` that each release of Kafka adds (org.apache.kafka.server.common.MetadataVersion)."""

DESCRIBE_TRANSACTIONS, DESCRIBE_PRODUCERS, LIST_OFFSETS = 65, 61, 2
NEWEST_RECORD_VERSION = 7
"""The version of ListOffsets from which on brokers find the newest record of a partition."""
USUAL_MESSAGE_BYTES = 1_048_588
"""Kafka's default of message.max.bytes, which the topics of the overlay count on."""
MANY = 3
"""Brokers from which on one of them may be lost without loss of records."""
_COMPARED = (
    *("auto.create.topics.enable", "default.replication.factor", "group.max.session.timeout.ms"),
    *("group.min.session.timeout.ms", "message.max.bytes", "min.insync.replicas", "transaction.max.timeout.ms"),
    "unclean.leader.election.enable",
)
"""The settings of brokers that are looked at, and that should be the same for all."""
_ALTER = "set {} in the brokers' server.properties"


@dataclass(frozen=True, slots=True)
class Wants:
    """What the service asks of the brokers. Times in ms."""

    session_ms: int
    """Session timeout of the workers' group."""
    transaction_ms: int
    """Timeout of the shards' transactions."""
    replication: int
    """`topics.replication` of overlay.yaml."""


def judge_brokers(brokers: Sequence[BrokerFacts], wants: Wants) -> Iterator[Diagnosis]:
    """Yield a diagnosis for each thing that is wrong with the brokers, and, if one answered, what is to be said of
    their releases. Settings are compared between all brokers that tell them, and judged as the first of these has
    them.
    """
    answered = [broker for broker in brokers if not broker.failure]
    for broker in brokers:
        if broker.failure:
            text = f"it is a broker of the cluster and cannot be reached from here: {broker.failure}"
            todo = "start it, or correct its advertised.listeners"
            yield _kafka(Severity.ERROR, text, todo, about=_name(broker))
    yield from _judge_releases(answered)
    yield from _judge_requests(answered)
    readable = [broker for broker in answered if broker.settings is not None]
    if len(readable) < len(answered):
        text = "this user may not read the settings of the brokers, so they are not looked at"
        yield _kafka(Severity.NOTE, text, "grant DescribeConfigs on the cluster")
    yield from _compare(readable)
    if readable:
        yield from _judge_timeouts(readable[0].settings or {}, wants)
        yield from _judge_copies(readable[0].settings or {}, wants, len(brokers))
        yield from _judge_records(readable[0].settings or {})


def name_release(level: int | None) -> str:
    """Return the release of Kafka whose software knows this level of `metadata.version` as its highest.

    Return "" for None and for a level below the first known release, and `later than 4.3` (TESTED)
    for one above the last.
    """
    if level is None or level < 1:
        return ""
    if level > _LATEST:
        return f"later than {TESTED}"
    return next(release for first, release in _RELEASES if level >= first)


def _judge_releases(brokers: Sequence[BrokerFacts]) -> Iterator[Diagnosis]:
    found: dict[str, list[str]] = {}
    for broker in brokers:
        found.setdefault(name_release(broker.newest.get(METADATA)), []).append(_name(broker))
    if not found:
        return
    if len(found) > 1:
        told = "; ".join(f"{release or 'unknown'} at {', '.join(names)}" for release, names in sorted(found.items()))
        yield _kafka(Severity.WARNING, f"the brokers are of different releases: {told}", "finish the upgrade of Kafka")
        return
    (release,) = found
    brokers_text = f"{len(brokers)} broker{'' if len(brokers) == 1 else 's'}"
    if not release:
        text = f"{brokers_text} of a release that cannot be told, as before Kafka 3.3 or without KRaft"
        yield _kafka(Severity.NOTE, text, f"compare it with {TESTED}, the release that the overlay is tested with")
    elif release != TESTED:
        text = f"{brokers_text} of Kafka {release}; the overlay is tested with {TESTED}, others may work"
        yield _kafka(Severity.NOTE, text)
    else:
        yield _kafka(Severity.OK, f"{brokers_text} of Kafka {release}, as tested")
    level, newest = brokers[0].levels.get(METADATA), brokers[0].newest.get(METADATA)
    if level is not None and newest is not None and level < newest:
        text = f"the cluster uses {METADATA} {level} of Kafka {name_release(level)}, its brokers know {newest}"
        yield _kafka(Severity.NOTE, text, "finish the upgrade with kafka-features.sh upgrade")


def _judge_requests(brokers: Sequence[BrokerFacts]) -> Iterator[Diagnosis]:
    """Yield a warning if some brokers cannot be asked for open transactions, and one if some cannot be asked for the
    newest record of a partition, as those of Kafka before 3.0.
    """
    lost = [broker for broker in brokers if not {DESCRIBE_TRANSACTIONS, DESCRIBE_PRODUCERS} <= broker.requests.keys()]
    if lost:
        text = f"{_list(lost)} cannot be asked for open transactions: a transaction that lost its marker stays open"
        yield _kafka(Severity.WARNING, text, "use Kafka 3.0 or later")
    old = [broker for broker in brokers if broker.requests.get(LIST_OFFSETS, -1) < NEWEST_RECORD_VERSION]
    if old:
        text = f"{_list(old)} cannot be asked for the newest record: by_start_time may fail where retention has removed records"
        yield _kafka(Severity.WARNING, text, "use Kafka 3.0 or later")


def _compare(brokers: Sequence[BrokerFacts]) -> Iterator[Diagnosis]:
    """Yield a warning for each setting of _COMPARED that is not the same at all these brokers."""
    for name in _COMPARED:
        values = Counter((broker.settings or {}).get(name, "") for broker in brokers)
        if len(values) > 1:
            told = "; ".join(
                f"{value or 'none'} at {_list([b for b in brokers if (b.settings or {}).get(name, '') == value])}"
                for value in sorted(values)
            )
            yield _kafka(
                Severity.WARNING, f"{name} is not the same at all brokers: {told}", _ALTER.format("the same value")
            )


def _judge_timeouts(settings: Mapping[str, str], wants: Wants) -> Iterator[Diagnosis]:
    longest = _number(settings, "transaction.max.timeout.ms")
    if longest is not None and longest < wants.transaction_ms:
        text = (
            f"transaction.max.timeout.ms is {longest}, shards ask for {wants.transaction_ms}: no transaction can begin"
        )
        yield _kafka(Severity.ERROR, text, _ALTER.format(f"transaction.max.timeout.ms={wants.transaction_ms} or more"))
    least, most = _number(settings, "group.min.session.timeout.ms"), _number(settings, "group.max.session.timeout.ms")
    if least is not None and least > wants.session_ms:
        text = f"group.min.session.timeout.ms is {least}, the workers' group asks for {wants.session_ms}: no worker can join it"
        yield _kafka(Severity.ERROR, text, _ALTER.format(f"group.min.session.timeout.ms={wants.session_ms} or less"))
    if most is not None and most < wants.session_ms:
        text = f"group.max.session.timeout.ms is {most}, the workers' group asks for {wants.session_ms}: no worker can join it"
        yield _kafka(Severity.ERROR, text, _ALTER.format(f"group.max.session.timeout.ms={wants.session_ms} or more"))


def _judge_copies(settings: Mapping[str, str], wants: Wants, brokers: int) -> Iterator[Diagnosis]:
    """Yield a warning for each setting with which the loss of a broker may lose records or stop writes. `settings`:
    of one broker. `brokers`: how many there are.
    """
    for topic in ("transaction.state.log", "offsets.topic"):
        copies = _number(settings, f"{topic}.replication.factor")
        if copies == 1 and brokers >= MANY:
            text = f"{topic}.replication.factor is 1: with one broker, transactions and groups may be lost"
            yield _kafka(Severity.WARNING, text, _ALTER.format(f"{topic}.replication.factor=3"))
    if brokers >= MANY and wants.replication == 1:
        text = f"topics.replication is 1 with {brokers} brokers: the loss of one may take state and outputs with it"
        todo = "set topics.replication: 3 in overlay.yaml, and give topics that are there more replicas"
        yield _kafka(Severity.WARNING, text, todo)
    in_sync = _number(settings, "min.insync.replicas")
    if in_sync is not None and wants.replication > 1 and in_sync == 1:
        text = "min.insync.replicas is 1: a record counts as committed when one broker has it, and may be lost with that one"
        yield _kafka(Severity.WARNING, text, _ALTER.format("min.insync.replicas=2"))
    if in_sync is not None and wants.replication > 1 and in_sync >= wants.replication:
        text = (
            f"min.insync.replicas is {in_sync}, topics.replication {wants.replication}: nothing can be written while one"
            " broker is away"
        )
        yield _kafka(Severity.WARNING, text, _ALTER.format(f"min.insync.replicas={wants.replication - 1}"))
    if settings.get("unclean.leader.election.enable") == "true":
        text = "unclean.leader.election.enable is true: an election may remove records that were committed"
        yield _kafka(Severity.WARNING, text, _ALTER.format("unclean.leader.election.enable=false"))


def _judge_records(settings: Mapping[str, str]) -> Iterator[Diagnosis]:
    size = _number(settings, "message.max.bytes")
    if size is not None and size < USUAL_MESSAGE_BYTES:
        text = (
            f"message.max.bytes is {size}, less than Kafka's default of {USUAL_MESSAGE_BYTES}: chunk headers and answers"
            " that are larger are refused"
        )
        yield _kafka(Severity.WARNING, text, _ALTER.format(f"message.max.bytes={USUAL_MESSAGE_BYTES}"))
    if settings.get("auto.create.topics.enable") == "true":
        text = (
            "auto.create.topics.enable is true: a reader that comes before the service creates an output topic with the"
            " brokers' partitions and settings, not those of the consumer's file"
        )
        yield _kafka(Severity.WARNING, text, _ALTER.format("auto.create.topics.enable=false"))


def _number(settings: Mapping[str, str], name: str) -> int | None:
    text = settings.get(name, "")
    return int(text) if text.lstrip("-").isdigit() else None


def _kafka(severity: Severity, text: str, todo: str = "", *, about: str = "") -> Diagnosis:
    return Diagnosis(severity, Check.KAFKA, about, text, todo)


def _name(broker: BrokerFacts) -> str:
    return f"broker {broker.node} ({broker.address})"


def _list(brokers: Sequence[BrokerFacts]) -> str:
    return ", ".join(map(_name, brokers))
