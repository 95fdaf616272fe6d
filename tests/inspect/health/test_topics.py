"""What is said of topics: rights as `overlay validate --kafka` judges them, settings, retention and sizes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from overlay.config import Loaded
from overlay.inspect.answers import ClusterAnswers, TopicAnswer
from overlay.inspect.health.diagnosis import Check, Diagnosis, Severity
from overlay.inspect.health.topics import RULES, judge_needs, judge_retention, judge_sizes
from overlay.inspect.needs import find_needs, plan_topic
from overlay.inspect.verdict import judge_all
from tests.config.folders import CONSUMER, SERVICE, load_files

ALL = frozenset({"Describe", "DescribeConfigs", "AlterConfigs", "Read", "Write", "Create", "Delete", "Alter"})
ACKED = CONSUMER.replace("ack_policy: none", "ack_policy: explicit")
WEEK = str(7 * 86_400_000)
SOURCE = {"cleanup.policy": "delete", "retention.ms": WEEK, "segment.ms": WEEK, "max.message.bytes": "1048588"}


def load(folder: Path, consumer: str = CONSUMER) -> Loaded:
    loaded = load_files(folder, {"consumers/late.yaml": consumer})
    assert loaded.problems == ()
    return loaded


def answer(loaded: Loaded, configs: Mapping[str, Mapping[str, str] | None]) -> ClusterAnswers:
    """Answers about topics that all may be used: the named ones with these settings, None if they may not be read; the
    others as the service creates them.
    """
    topics = {}
    for need in find_needs(loaded):
        if need.kind.is_topic:
            plan = plan_topic(need, loaded.service)
            config = configs.get(need.name, plan.config if plan else SOURCE)
            topics[need.name] = TopicAnswer(True, 1, "id", ALL, config)
    return ClusterAnswers(1, frozenset({"IdempotentWrite"}), topics, {"overlay.workers": ALL, "late": ALL})


def judge(loaded: Loaded, configs: Mapping[str, Mapping[str, str] | None]) -> list[Diagnosis]:
    return list(judge_retention(loaded, find_needs(loaded), answer(loaded, configs)))


def test_topics_as_the_service_creates_them_are_sound(tmp_path: Path) -> None:
    loaded = load(tmp_path, ACKED)
    (found,) = judge(loaded, {})
    assert (found.severity, found.check) == (Severity.OK, Check.RETENTION)


@pytest.mark.parametrize(
    ("topic", "setting", "value", "severity"),
    [
        ("state", "cleanup.policy", "compact", Severity.ERROR),
        ("state", "retention.ms", WEEK, Severity.ERROR),
        ("state", "retention.bytes", "1000000", Severity.ERROR),
        ("state", "max.message.bytes", "1048588", Severity.WARNING),
        ("control", "cleanup.policy", "delete", Severity.ERROR),
        ("control", "message.timestamp.type", "CreateTime", Severity.WARNING),
        ("replies", "cleanup.policy", "compact", Severity.WARNING),
        ("events", "cleanup.policy", "compact", Severity.WARNING),
        ("fleet", "message.timestamp.type", "CreateTime", Severity.WARNING),
    ],
)
def test_each_setting_of_own_topics(tmp_path: Path, topic: str, setting: str, value: str, severity: Severity) -> None:
    loaded, name = load(tmp_path), f"overlay.{topic}"
    (need,) = (need for need in find_needs(loaded) if need.name == name)
    plan = plan_topic(need, loaded.service)
    assert plan is not None
    (found,) = judge(loaded, {name: {**plan.config, setting: value}})
    assert (found.severity, found.about) == (severity, f"{need.kind.value} {name}")
    assert found.text.startswith(f"its {setting} is {value}, and should be {plan.config[setting]}: ")
    assert found.todo.endswith(f"--topic {name} --add-config {setting}={plan.config[setting]}")


def test_a_larger_limit_than_the_service_sets_is_sound(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    plans = {need.name: plan for need in find_needs(loaded) if (plan := plan_topic(need, loaded.service))}
    state = {**plans["overlay.state"].config, "max.message.bytes": str(64 << 20)}
    assert [each.severity for each in judge(loaded, {"overlay.state": state})] == [Severity.OK]


def test_each_rule_is_about_a_setting_that_the_service_sets(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    for need in find_needs(loaded):
        if need.kind in RULES:
            plan = plan_topic(need, loaded.service)
            assert plan is not None
            assert {rule.setting for rule in RULES[need.kind]} <= plan.config.keys(), need.kind


def test_settings_that_may_not_be_read_are_a_note(tmp_path: Path) -> None:
    note, fine = judge(load(tmp_path), {"overlay.state": None})
    assert (note.severity, note.todo) == (Severity.NOTE, "grant DescribeConfigs on them")
    assert note.text.startswith("the settings of overlay.state may not be read")
    assert fine.severity is Severity.OK


def test_an_index_that_expires_before_its_sources(tmp_path: Path) -> None:
    short = {"cleanup.policy": "compact,delete", "retention.ms": "86400000", "retention.bytes": "-1"}
    (found,) = judge(load(tmp_path), {"overlay.FLIGHTS.index": short})
    assert (found.severity, found.about) == (Severity.WARNING, "index topic overlay.FLIGHTS.index")
    assert found.text.startswith("it keeps records for 24h, and those of flights may stay for longer")
    kept = found.todo.rpartition("set retention.ms=")[2].removesuffix(" on it")
    assert [
        each.severity for each in judge(load(tmp_path), {"overlay.FLIGHTS.index": short | {"retention.ms": kept}})
    ] == [Severity.OK]
    hidden = judge(load(tmp_path), {"overlay.FLIGHTS.index": short, "flights": None})
    assert [each.severity for each in hidden] == [Severity.NOTE, Severity.OK]


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        ({"retention.ms": "-1"}, "up to 5000 bytes a partition"),
        ({"retention.ms": "86400000"}, "for 24h and up to 5000 bytes a partition"),
    ],
)
def test_an_index_that_is_limited_in_bytes(tmp_path: Path, kept: Mapping[str, str], words: str) -> None:
    settings = {"cleanup.policy": "compact,delete", "retention.bytes": "5000", **kept}
    (found,) = judge(load(tmp_path), {"overlay.FLIGHTS.index": settings})
    assert found.text.startswith(f"it keeps records {words}, and those of flights may stay for longer")
    assert "retention.bytes=-1" in found.todo


def test_ack_topics_that_lose_acks(tmp_path: Path) -> None:
    loaded, acks = load(tmp_path, ACKED), "overlay.FLIGHTS.acks"
    (compacted,) = judge(loaded, {acks: {"cleanup.policy": "compact"}})
    assert compacted.severity is Severity.ERROR and "compaction removes those not read yet" in compacted.text
    (brief,) = judge(loaded, {acks: {"cleanup.policy": "delete", "retention.ms": "3600000"}})
    assert brief.severity is Severity.WARNING and "it keeps acks for 1h" in brief.text


def test_outputs_that_are_smaller_than_their_sources(tmp_path: Path) -> None:
    large, loaded = SOURCE | {"max.message.bytes": "5000000"}, load(tmp_path)
    (found,) = judge_sizes(loaded, answer(loaded, {"flights": large}))
    assert (found.severity, found.about) == (Severity.WARNING, "output topic late")
    assert found.text == (
        "it takes batches of 1048588 bytes, and flights has records of up to 5000000: a larger one stops FLIGHTS/late"
    )
    assert found.todo.endswith("--topic late --add-config max.message.bytes=5000000")
    (fine,) = judge_sizes(loaded, answer(loaded, {"flights": large, "late": {"max.message.bytes": "5000000"}}))
    assert fine.severity is Severity.OK


def test_what_an_output_will_take_once_it_is_created(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    answers = answer(loaded, {})
    absent = ClusterAnswers(1, None, {**answers.topics, "late": TopicAnswer(False)}, {})
    assert [each.severity for each in judge_sizes(loaded, absent)] == [Severity.OK]
    assert [each.severity for each in judge_sizes(loaded, absent, usual=500_000)] == [Severity.WARNING]
    named = load(tmp_path, CONSUMER + "output: {config: {max.message.bytes: 2000000}}\n")
    assert [each.severity for each in judge_sizes(named, absent, usual=500_000)] == [Severity.OK]


def test_a_consumer_that_gives_large_records_to_its_dead_letters(tmp_path: Path) -> None:
    loaded = load(tmp_path, CONSUMER + "on_undeliverable: dead_letter\ndead_letter: dead\n")
    (found,) = judge_sizes(loaded, answer(loaded, {"flights": SOURCE | {"max.message.bytes": "5000000"}}))
    assert found.severity is Severity.NOTE and found.text.endswith("FLIGHTS/late gives a larger one to dead")


def test_rights_are_judged_as_by_validate(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    answers = answer(loaded, {})
    unread = TopicAnswer(True, 1, "id", ALL - {"Read"}, SOURCE | {"cleanup.policy": "compact"})
    answers = ClusterAnswers(1, answers.operations, {**answers.topics, "flights": unread}, answers.groups)
    found = list(judge_needs(judge_all(find_needs(loaded), answers, loaded.service)))
    first = found[0]
    assert (first.severity, first.about) == (Severity.ERROR, "source topic flights")
    assert (first.text, first.todo) == ("this user lacks Read on it", "Grant it")
    assert found[-1].severity is Severity.OK and ", 1 missing" in found[-1].text


def test_what_is_said_of_many_is_said_once(tmp_path: Path) -> None:
    """Each shard has two transactional ids, which Kafka cannot be asked about."""
    loaded = load_files(tmp_path, {"overlay.yaml": SERVICE + "shards: 16\n", "consumers/late.yaml": CONSUMER})
    found = [*judge_needs(judge_all(find_needs(loaded), answer(loaded, {}), loaded.service))]
    (ids,) = (each for each in found if each.about.startswith("transactional id"))
    assert ids.severity is Severity.NOTE and ids.about.endswith(" and 27 more")
    assert ids.about.startswith("transactional id overlay.shard.0, overlay.control.0, overlay.shard.1, ")


def test_remarks_about_sources_are_warnings_and_others_notes(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    answers = answer(
        loaded, {"flights": {"cleanup.policy": "compact"}, "late": {"message.timestamp.type": "CreateTime"}}
    )
    found = {each.about: each for each in judge_needs(judge_all(find_needs(loaded), answers, loaded.service))}
    source = found["source topic flights"]
    assert source.severity is Severity.WARNING and source.todo.startswith("see that consumers keep up")
    assert found["output topic late"].severity is Severity.NOTE
