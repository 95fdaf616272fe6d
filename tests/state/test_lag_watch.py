"""Lag on a real Kafka: true while a consumer is stalled or waits for acks, and with a filter that rarely matches."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import pytest

from overlay.errors import CredentialsRefused, SourceUnavailable
from overlay.state import lag_watch
from overlay.state.lag_watch import LagWatch
from tests.support.kafka import NewTopicFixture, SureProducer, make_topic
from tests.support.waiting import wait_until
from tests.worker.scenes import DEADLINE_S, Scene, Served, await_state, produce, serve

HOUR_MS = 3_600_000
SLACK_S = 120.0


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_watch, "LOOK_S", 0.2)


def produce_aged(bootstrap: str, topic: str, hours: list[int], size: int = 10) -> None:
    """A record to everyone for each of these ages, which does not compress."""
    producer = SureProducer(bootstrap, {"linger.ms": 0})
    for age in hours:
        at = time.time_ns() // 1_000_000 - age * HOUR_MS
        # one after the other, so that each is a batch of its own
        producer.produce(topic, os.urandom(size), headers=[("to", "a")], timestamp=at)
        assert producer.flush(30) == 0


def await_lag(served: Served, name: str, records: int, hours: float) -> None:
    """Wait until a consumer's lag is so many records, the oldest of which is so old."""

    def is_there() -> bool:
        found: dict[str, Any] = served.consumer(name)
        seconds = found["lag_seconds"]
        return found["lag_records"] == records and seconds is not None and abs(seconds - hours * 3_600) < SLACK_S

    try:
        wait_until(is_there, DEADLINE_S, "the lag is that")
    except AssertionError as error:
        raise AssertionError(
            f"{name} is not {records} records and {hours} h behind: {served.consumer(name)}"
        ) from error


def test_a_stalled_consumer_is_as_old_as_its_first_record(scene: Scene, new_topic: NewTopicFixture) -> None:
    """Its output never took a record, so no delivery tells the time."""
    topic = new_topic()
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "small")
    scene.add_consumer("S", "large")
    make_topic(scene.bootstrap, output, 1, {"max.message.bytes": "1000"})
    produce_aged(scene.bootstrap, topic, [5, 3, 1], size=3_000)
    with serve(scene) as served:
        await_state(served, "small", lambda found: found["state"] == "stalled", "is stalled")
        await_lag(served, "small", 3, 5)
        await_lag(served, "large", 0, 0)
        produce_aged(scene.bootstrap, topic, [0], size=3_000)
        await_lag(served, "small", 4, 5)


@pytest.mark.parametrize("error", [SourceUnavailable("away"), CredentialsRefused("no"), ValueError("a bug")])
async def test_an_unknown_lag_ends_no_worker(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    stop, looks = asyncio.Event(), 0

    async def look(_: LagWatch) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            stop.set()
        raise error

    monkeypatch.setattr(lag_watch, "LOOK_S", 0.0)
    monkeypatch.setattr(LagWatch, "look", look)
    nothing: Any = None
    await LagWatch({}, nothing, nothing, nothing).run(stop)
    assert looks == 3


def test_messages_that_wait_for_acks_of_others_are_a_lag(scene: Scene, new_topic: NewTopicFixture) -> None:
    """With `max_ack_pending` of 1, what is not delivered waits at the machine, though it was read."""
    topic = new_topic()
    scene.add_stream("S", topic)
    scene.add_consumer("S", "slow", ack_policy="explicit", max_ack_pending=1, ack_wait="1h")
    produce_aged(scene.bootstrap, topic, [9, 6, 2])
    with serve(scene) as served:
        await_lag(served, "slow", 2, 6)


def test_a_filter_that_rarely_matches_is_not_behind(scene: Scene, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    scene.add_stream("S", topic)
    scene.add_consumer("S", "rare", "t.rare")
    produce_aged(scene.bootstrap, topic, [9, 6, 2])
    with serve(scene) as served:
        await_lag(served, "rare", 0, 0)
        produce(scene.bootstrap, topic, ["a"] * 20)
        await_lag(served, "rare", 0, 0)
