"""How long an index topic keeps its records, by what the topics of its stream say."""

from __future__ import annotations

import pytest

from overlay.index.retention import (
    FOR_EVER,
    LEAST_RETENTION_MS,
    MOST_AHEAD_MS,
    SLACK_MS,
    find_changes,
    find_retention,
    index_config,
)
from overlay.kafka.topics import TopicFacts
from overlay.worker.round.sequencing import RENEW_MS

DAY_MS = 86_400_000
WEEK = {"retention.ms": str(7 * DAY_MS), "segment.ms": str(7 * DAY_MS), "message.timestamp.after.max.ms": "3600000"}


def topic(**config: str) -> TopicFacts:
    return TopicFacts("t", "id", 1, {key.replace("_", "."): value for key, value in config.items()})


def source(config: dict[str, str], **more: str) -> TopicFacts:
    return TopicFacts("t", "id", 1, config | {key.replace("_", "."): value for key, value in more.items()})


def test_a_round_outlives_the_last_segment_that_may_hold_its_records() -> None:
    assert find_retention([source(WEEK)]) == 14 * DAY_MS + 3_600_000 + SLACK_MS
    assert find_retention([source(WEEK, message_timestamp_type="LogAppendTime")]) == 14 * DAY_MS + SLACK_MS
    assert find_retention([source(WEEK), source(WEEK, retention_ms=str(30 * DAY_MS))]) > 37 * DAY_MS


def test_timestamps_count_as_ahead_by_no_more_than_a_week() -> None:
    far = source(WEEK, message_timestamp_after_max_ms=str(2**63 - 1))
    assert find_retention([far]) == 14 * DAY_MS + MOST_AHEAD_MS + SLACK_MS


def test_an_index_topic_outlives_idle_ledgers() -> None:
    """They are renewed each hour; sources that keep their records for minutes do not take them along."""
    assert find_retention([source(WEEK, retention_ms="900000", segment_ms="60000")]) >= LEAST_RETENTION_MS
    assert LEAST_RETENTION_MS >= 10 * RENEW_MS


@pytest.mark.parametrize(
    "keeps",
    [
        source(WEEK, retention_ms="-1"),
        source(WEEK, cleanup_policy="compact"),
        topic(),
    ],
)
def test_one_source_that_keeps_records_for_ever_is_enough(keeps: TopicFacts) -> None:
    assert find_retention([source(WEEK), keeps]) == FOR_EVER
    config = index_config([source(WEEK), keeps])
    assert config["cleanup.policy"] == "compact"
    assert "retention.ms" not in config


def test_a_source_that_is_compacted_and_expires_has_a_retention() -> None:
    assert find_retention([source(WEEK, cleanup_policy="compact,delete")]) > 0


def test_a_new_topic_expires_by_time_alone() -> None:
    """The broker's own default may be a size."""
    assert index_config([source(WEEK)])["retention.bytes"] == "-1"


@pytest.mark.parametrize(
    ("has", "changes"),
    [
        ({"cleanup.policy": "compact"}, {}),
        ({"cleanup.policy": "compact,delete", "retention.ms": "-1", "retention.bytes": "-1"}, {}),
        ({"cleanup.policy": "compact,delete", "retention.ms": str(99 * DAY_MS), "retention.bytes": "-1"}, {}),
        (
            {"cleanup.policy": "compact,delete", "retention.ms": str(7 * DAY_MS), "retention.bytes": "1000"},
            {"retention.ms": str(15 * DAY_MS + 3_600_000), "retention.bytes": "-1"},
        ),
        ({}, {}),
    ],
)
def test_only_what_is_too_short_changes(has: dict[str, str], changes: dict[str, str]) -> None:
    assert find_changes(TopicFacts("i", "id", 1, has), [source(WEEK)]) == changes


def test_an_index_topic_that_expires_is_to_keep_all_of_a_source_that_does() -> None:
    has = {"cleanup.policy": "compact,delete", "retention.ms": str(99 * DAY_MS), "retention.bytes": "-1"}
    compacted = source(WEEK, cleanup_policy="compact")
    assert find_changes(TopicFacts("i", "id", 1, has), [compacted]) == {"retention.ms": "-1"}
