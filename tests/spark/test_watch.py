"""The watch on the lag of a job, on a real Kafka and without Spark: plans are written as a driver does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from overlay.clock import now_ms
from overlay.state.job_plan import BatchPlan, ConsumerPlan
from overlay.state.lag import Lag
from spark import watch
from spark.job.journal import Journal
from spark.watch import LagWatcher
from tests.support.kafka import NewTopicFixture, SureProducer
from tests.support.waiting import wait_until

DEADLINE_S = 60.0
HOUR_MS = 3_600_000
SLACK_S = 120.0


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_S", 0.1)


@pytest.fixture
def journal(bootstrap: str, new_topic: NewTopicFixture) -> Iterator[Journal]:
    with Journal({"bootstrap.servers": bootstrap}, new_topic(), "J", 1) as journal:
        yield journal


def plan(topic: str, batch: int, span: tuple[int, int]) -> BatchPlan:
    consumers = {"c": ConsumerPlan("", span[0], span[1], 0)}
    return BatchPlan(batch, now_ms(), "S", "", {(topic, 0): span}, consumers, {}, owner="app-7")


def produce_aged(bootstrap: str, topic: str, hours: list[int]) -> None:
    """A record for each of these ages, each a batch of its own."""
    producer = SureProducer(bootstrap, {"linger.ms": 0})
    for age in hours:
        producer.produce(topic, b"x", timestamp=time.time_ns() // 1_000_000 - age * HOUR_MS)
        assert producer.flush(30) == 0


def test_the_lag_of_a_job_is_that_of_its_last_plan(
    bootstrap: str, journal: Journal, new_topic: NewTopicFixture
) -> None:
    """While a batch is under way, it is that of the batch before."""
    topic, shown = new_topic(), list[tuple[BatchPlan, Lag]]()
    prefix = journal.topic.removesuffix(".spark.J")
    produce_aged(bootstrap, topic, [9, 6, 2])

    def await_lag(records: int, hours: float) -> None:
        def is_there() -> bool:
            lag = shown[-1][1] if shown else Lag(None, None)
            return lag.records == records and abs((lag.seconds or 0) - hours * 3_600) < SLACK_S

        wait_until(is_there, DEADLINE_S, f"it is {records} records and {hours} h behind")

    watcher = LagWatcher(
        {"bootstrap.servers": bootstrap}, prefix, "J", lambda plan, lags: shown.append((plan, lags["c"]))
    )
    with watcher.run():
        journal.write(plan(topic, 1, (0, 1)))
        await_lag(3, 9)
        journal.write(plan(topic, 1, (0, 1)).complete(now_ms()))
        await_lag(2, 6)
        assert (shown[-1][0].owner, shown[-1][0].is_complete) == ("app-7", True)
        journal.write(plan(topic, 2, (1, 3)).complete(now_ms()))
        await_lag(0, 0)
        # it had everything a moment ago, whatever the record's time
        produce_aged(bootstrap, topic, [5])
        await_lag(1, 0)
    count = len(shown)
    assert not any(thread.name == "lag" for thread in threading.enumerate())
    assert len(shown) == count


def test_an_unknown_lag_ends_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    async def look(_: LagWatcher, *_more: object) -> None:
        nonlocal looks
        looks += 1
        raise ValueError("a bug")

    monkeypatch.setattr(LagWatcher, "_look", look)
    with LagWatcher({"bootstrap.servers": "127.0.0.1:1"}, "o", "J", lambda plan, lags: None).run():
        wait_until(lambda: looks > 2, DEADLINE_S, "it tries again")
