"""What a session does about the retention of its index topics, and what it logs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import cast

from structlog.testing import capture_logs

from overlay.kafka.admin import Admin, TopicFacts
from overlay.worker.assignment import Assignment
from overlay.worker.kept.retention import follow_retention

DAY_MS = 86_400_000
WEEK = {"retention.ms": str(7 * DAY_MS), "segment.ms": str(7 * DAY_MS), "message.timestamp.after.max.ms": "3600000"}


def source(config: dict[str, str], **more: str) -> TopicFacts:
    return TopicFacts("t", "id", 1, config | {key.replace("_", "."): value for key, value in more.items()})


class Refusing:
    """Kafka's admin side, where the index topic may not be altered. `reason`: what Kafka says, empty if it may be."""

    def __init__(self) -> None:
        self.reason = "not allowed"
        self.sources = source(WEEK)
        self.asked = 0
        self.was_asked_twice = asyncio.Event()

    async def find_topics(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        self.asked += 1
        if self.asked > 2:  # the second time has come to its end
            self.was_asked_twice.set()
        index = TopicFacts("i", "id", 1, {"cleanup.policy": "compact,delete", "retention.ms": "1"})
        return {name: index if name == "i" else self.sources for name in names}

    async def alter_topic(self, topic: str, config: Mapping[str, str]) -> str:
        return self.reason


async def test_a_refusal_is_logged_once_for_each_cause() -> None:
    """Also when one session follows the other."""
    kafka, told = Refusing(), dict[str, str]()
    assignment = SimpleNamespace(
        index_topics={"S": "i"}, streams={"S": SimpleNamespace(topic_names=["t"])}, ledgers={"S": None}
    )

    async def count_logged() -> int:
        with capture_logs() as logged:
            for _ in range(2):
                kafka.asked = 0
                kafka.was_asked_twice.clear()
                following = asyncio.create_task(
                    follow_retention(cast(Admin, kafka), cast(Assignment, assignment), told, 0.0)
                )
                await kafka.was_asked_twice.wait()
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
        return sum("may not be altered" in entry["event"] for entry in logged)

    assert await count_logged() == 1
    assert await count_logged() == 0
    kafka.reason = "the controller says no"
    assert await count_logged() == 1
    kafka.sources = source(WEEK, retention_ms=str(99 * DAY_MS))
    assert await count_logged() == 1
    kafka.reason = ""
    assert await count_logged() == 0
    kafka.reason = "the controller says no"
    assert await count_logged() == 1
