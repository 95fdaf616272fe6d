"""What is said of brokers, by what they answer."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from overlay.inspect.health.brokers import LIST_OFFSETS, METADATA, Wants, judge_brokers, name_release
from overlay.inspect.health.diagnosis import Severity
from overlay.kafka.broker_facts import BrokerFacts

WANTS = Wants(session_ms=6_000, transaction_ms=15_000, replication=3)
SETTINGS = {
    "auto.create.topics.enable": "false",
    "group.max.session.timeout.ms": "1800000",
    "group.min.session.timeout.ms": "6000",
    "message.max.bytes": "1048588",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.max.timeout.ms": "900000",
    "transaction.state.log.replication.factor": "3",
    "unclean.leader.election.enable": "false",
}
REQUESTS = {LIST_OFFSETS: 11, 61: 0, 65: 0}


def make_broker(node: int = 1, *, level: int = 30, settings: Mapping[str, str] | None = None) -> BrokerFacts:
    """Return a broker of Kafka 4.3 with sound settings; `settings` replace some."""
    newest = {METADATA: level}
    return BrokerFacts(node, f"b{node}:9092", "", newest, newest, REQUESTS, SETTINGS | dict(settings or {}))


def tell(*brokers: BrokerFacts, wants: Wants = WANTS) -> list[tuple[Severity, str, str]]:
    return [(each.severity, each.text, each.todo) for each in judge_brokers(brokers, wants)]


def test_brokers_without_a_fault() -> None:
    assert tell(*map(make_broker, (1, 2, 3))) == [(Severity.OK, "3 brokers of Kafka 4.3, as tested", "")]


@pytest.mark.parametrize(
    ("level", "release"),
    [
        *((None, ""), (0, ""), (1, "3.0"), (7, "3.3"), (14, "3.6"), (19, "3.7"), (21, "3.9"), (25, "4.0")),
        *((27, "4.1"), (29, "4.2"), (30, "4.3"), (31, "later than 4.3")),
    ],
)
def test_the_release_is_told_by_the_highest_level_of_the_software(level: int | None, release: str) -> None:
    assert name_release(level) == release


def test_another_release_than_the_tested_one_is_a_note() -> None:
    ((severity, text, _),) = tell(make_broker(level=25), wants=Wants(6_000, 15_000, 1))
    assert (severity, text[:25]) == (Severity.NOTE, "1 broker of Kafka 4.0; th")
    ((severity, text, todo),) = tell(BrokerFacts(1, "b1:9092", requests=REQUESTS, settings=SETTINGS))
    assert severity is Severity.NOTE and "a release that cannot be told" in text and "4.3" in todo


def test_brokers_of_different_releases() -> None:
    ((severity, text, _),) = tell(make_broker(1), make_broker(2, level=25), make_broker(3))
    assert severity is Severity.WARNING
    assert text == (
        "the brokers are of different releases: 4.0 at broker 2 (b2:9092); 4.3 at broker 1 (b1:9092), broker 3 (b3:9092)"
    )


def test_an_upgrade_that_was_not_finished() -> None:
    broker = make_broker()
    levels = {METADATA: 21}
    found = tell(BrokerFacts(1, "b1:9092", "", broker.newest, levels, REQUESTS, SETTINGS))
    assert found[1][:2] == (
        Severity.NOTE,
        "the cluster uses metadata.version 21 of Kafka 3.9, its brokers know 30",
    )


def test_a_broker_that_cannot_be_reached() -> None:
    found = tell(make_broker(1), BrokerFacts(2, "inside:9092", "inside:9092: no address"))
    assert found[0] == (
        Severity.ERROR,
        "it is a broker of the cluster and cannot be reached from here: inside:9092: no address",
        "start it, or correct its advertised.listeners",
    )


def test_an_old_broker_lacks_requests() -> None:
    old = BrokerFacts(1, "b1:9092", requests={LIST_OFFSETS: 6}, settings=SETTINGS)
    warnings = [text for severity, text, _ in tell(old) if severity is Severity.WARNING]
    assert len(warnings) == 2 and "open transactions" in warnings[0] and "newest record" in warnings[1]


def test_settings_that_may_not_be_read_are_not_judged() -> None:
    broker = make_broker()
    found = tell(BrokerFacts(1, "b1:9092", "", broker.newest, broker.levels, REQUESTS, None))
    assert found[1] == (
        Severity.NOTE,
        "this user may not read the settings of the brokers, so they are not looked at",
        "grant DescribeConfigs on the cluster",
    )


@pytest.mark.parametrize(
    ("setting", "value", "severity", "says"),
    [
        ("transaction.max.timeout.ms", "10000", Severity.ERROR, "no transaction can begin"),
        ("transaction.max.timeout.ms", "15000", None, ""),
        ("group.min.session.timeout.ms", "6001", Severity.ERROR, "no worker can join"),
        ("group.max.session.timeout.ms", "5999", Severity.ERROR, "no worker can join"),
        ("message.max.bytes", "500000", Severity.WARNING, "chunk headers and answers"),
        ("message.max.bytes", "5000000", None, ""),
        ("min.insync.replicas", "1", Severity.WARNING, "when one broker has it"),
        ("min.insync.replicas", "3", Severity.WARNING, "nothing can be written while one broker is away"),
        ("auto.create.topics.enable", "true", Severity.WARNING, "a reader that comes before the service"),
        ("unclean.leader.election.enable", "true", Severity.WARNING, "may remove records that were committed"),
        ("transaction.state.log.replication.factor", "1", Severity.WARNING, "transactions and groups may be lost"),
        ("offsets.topic.replication.factor", "1", Severity.WARNING, "transactions and groups may be lost"),
    ],
)
def test_each_setting(setting: str, value: str, severity: Severity | None, says: str) -> None:
    found = tell(*(make_broker(node, settings={setting: value}) for node in (1, 2, 3)))[1:]
    if severity is None:
        assert found == []
    else:
        ((told, text, todo),) = found
        assert told is severity and says in text and todo
        assert setting in text


def test_one_copy_is_named_where_there_are_brokers_for_more() -> None:
    single = Wants(6_000, 15_000, replication=1)
    assert [text for _, text, _ in tell(make_broker(), wants=single)] == ["1 broker of Kafka 4.3, as tested"]
    (_, (severity, text, todo)) = tell(*map(make_broker, (1, 2, 3)), wants=single)
    assert severity is Severity.WARNING and "topics.replication is 1 with 3 brokers" in text and "overlay.yaml" in todo


def test_settings_that_differ_between_brokers() -> None:
    found = tell(make_broker(1), make_broker(2, settings={"message.max.bytes": "2000000"}))
    assert found[1][:2] == (
        Severity.WARNING,
        "message.max.bytes is not the same at all brokers: 1048588 at broker 1 (b1:9092); 2000000 at broker 2 (b2:9092)",
    )
