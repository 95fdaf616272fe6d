"""Topics for dead letters: how large their records may be."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from overlay.kafka.admin import Admin, NewTopic, TopicFacts
from overlay.output.side_topics import ensure_side_topics
from tests.control.registries import make_config

SOURCES = ["a", "b"]


class EmptyCluster:
    """An admin of a cluster without topics."""

    def __init__(self) -> None:
        self.created: dict[str, NewTopic] = {}

    async def find_topics(self, names: Iterable[str], *, denied: dict[str, str]) -> dict[str, TopicFacts]:
        return {}

    async def create_topics(self, topics: Iterable[NewTopic]) -> tuple[dict[str, TopicFacts], dict[str, str]]:
        self.created = {topic.name: topic for topic in topics}
        return {name: TopicFacts(name, "id", 1, dict(topic.config)) for name, topic in self.created.items()}, {}


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ([None, None], None),
        ([None, "1000"], "2000"),
        (["3000", "1000"], "6000"),
        ([None, "2000000000"], str(2**31 - 1)),
    ],
)
async def test_dead_letter_topics_accept_the_records_of_the_sources_that_exist(
    limits: list[str | None], expected: str | None
) -> None:
    """With a limit of 0 bytes the topic would refuse all records. Without a source its limit is Kafka's default."""
    config = make_config("c", dead_letter="dead", on_undeliverable="dead_letter")
    sources = {
        name: limit and TopicFacts(name, "id", 1, {"max.message.bytes": limit})
        for name, limit in zip(SOURCES, limits, strict=True)
    }
    loaded: Any = SimpleNamespace(
        service=SimpleNamespace(topics=SimpleNamespace(prefix="overlay", replication=1)),
        streams={config.stream: SimpleNamespace(topic_names=SOURCES)},
    )
    cluster = EmptyCluster()
    await ensure_side_topics(cast("Admin", cluster), loaded, [config], cast("Any", sources))
    assert cluster.created["dead"].config.get("max.message.bytes") == expected
