"""The fleet's application and what any client may do to the topics that it follows."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest

from overlay.clock import monotonic, now_ms
from overlay.config.consumer import ConsumerConfig
from overlay.config.service import ServiceConfig
from overlay.consumer.advisories import encode_advisory
from overlay.consumer.effects import Advise, Advisory, DeadLetter
from overlay.control.records import Definition, write_definition
from overlay.fleet import app, screening
from overlay.fleet.live import LivePicture
from overlay.fleet.status import encode
from overlay.kafka.admin import Admin, new_topic
from overlay.kafka.own_topics import (
    CONTROL_CONFIG,
    EVENTS_CONFIG,
    FLEET_CONFIG,
    control_topic,
    events_topic,
    fleet_topic,
)
from overlay.output.dead_letters import describe_dead_letter
from tests.support.kafka import SureProducer
from tests.support.raw import send_batch
from tests.support.waiting import wait_until

from .statuses import make_consumer, make_status
from .test_screening import make, make_bomb

pytestmark = pytest.mark.kafka
DEADLINE_S = 90.0


class Scene:
    """A fleet's application, in this process, and a client that writes to its topics."""

    def __init__(self, bootstrap: str, live: LivePicture) -> None:
        self.bootstrap, self.live = bootstrap, live
        self.prefix = f"ov-{uuid.uuid4().hex[:8]}"
        self.letters = f"{self.prefix}-letters"
        self.service = ServiceConfig.model_validate(
            {"kafka": {"bootstrap.servers": bootstrap}, "topics": {"prefix": self.prefix, "replication": 1}}
        )
        self.producer = SureProducer(bootstrap)
        self._numbers = count()

    async def make_topics(self, *names: str) -> None:
        configs = {
            fleet_topic(self.prefix): FLEET_CONFIG,
            events_topic(self.prefix): EVENTS_CONFIG,
            control_topic(self.prefix): CONTROL_CONFIG,
            self.letters: {},
        }
        async with Admin({"bootstrap.servers": self.bootstrap}) as admin:
            _, refused = await admin.create_topics(new_topic(name, 1, 1, configs[name]) for name in names or configs)
            assert not refused
            await admin.await_topics(names or configs)

    def tell(self, worker: str = "a", **fields: Any) -> None:
        """Write a status."""
        status = make_status(worker, prefix=self.prefix, number=next(self._numbers), clock=now_ms(), **fields)
        (value,) = encode(status, [make_consumer()], [])
        self.write(fleet_topic(self.prefix), worker.encode(), value)

    def write(self, topic: str, key: bytes | None, value: bytes | None, headers: Any = ()) -> None:
        self.producer.produce(topic, value, key, headers=list(headers))
        self.producer.flush()

    def attack(self, topic: str) -> None:
        """Write a batch that decompresses to a lot, and one with a header that is no text."""
        for batch in (make_bomb(0, 4 * screening.MOST_BATCH_BYTES), make(0, b"x", name=b"\xff")):
            assert send_batch(self.bootstrap, topic, batch) == 0

    def find(self) -> dict[str, Any]:
        return self.live.describe(int(monotonic() * 1000))

    async def until(self, holds: Callable[[], object], what: str) -> None:
        await asyncio.to_thread(wait_until, holds, DEADLINE_S, what)


@asynccontextmanager
async def following(scene: Scene) -> AsyncIterator[None]:
    stop = asyncio.Event()
    running = asyncio.create_task(app.run_app(scene.service, scene.live, stop))
    try:
        yield
        assert not running.done()
    finally:
        stop.set()
        await running


def list_workers(found: dict[str, Any]) -> list[str]:
    return [row["worker"] for row in found.get("workers", ())]


def list_causes(found: dict[str, Any]) -> list[tuple[str, int]]:
    return [(row["cause"], row["hour"]) for row in found.get("advisories", ())]


@pytest.mark.timeout(300)
async def test_strangers_do_not_end_it_and_a_topic_made_anew_is_heard(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app, "LOOK_S", 1.0)
    live = LivePicture()
    scene = Scene(bootstrap, live)
    topics = [fleet_topic(scene.prefix), events_topic(scene.prefix), control_topic(scene.prefix), scene.letters]
    await scene.make_topics()
    definition = Definition(
        ConsumerConfig(stream="S", durable_name="asked", dead_letter=scene.letters), 0, makes_output=False
    )
    record = write_definition(definition)
    scene.write(control_topic(scene.prefix), record.key, record.value)
    advisory = encode_advisory(Advise(Advisory.NAK), "S", "c", "id", 0)
    letter = describe_dead_letter(DeadLetter(1, "term", 3, 0, 0), "S", "c", 0, 7)
    async with following(scene):
        scene.tell()
        await scene.until(lambda: list_workers(scene.find()) == ["a"], "a status is read")
        # the topic of dead letters is known from the control topic alone
        scene.write(scene.letters, b"k", b"v", letter)
        await scene.until(lambda: list_causes(scene.find()) == [("dead letter: term", 1)], "a dead letter is read")
        names = {row["name"]: row["state"] for row in scene.find()["consumers"]}
        assert names == {"asked": "not served", "c": "running"}
        for topic in topics:
            await asyncio.to_thread(scene.attack, topic)
        for name in ("b", "c"):
            scene.tell(name)
        scene.write(events_topic(scene.prefix), advisory[0].encode(), advisory[1])
        scene.write(scene.letters, b"k", b"v", letter)
        scene.write(control_topic(scene.prefix), record.key, None)
        await scene.until(lambda: list_workers(scene.find()) == ["a", "b", "c"], "what is behind them is read")
        both = [("dead letter: term", 2), ("msg_naked", 1)]
        await scene.until(lambda: list_causes(scene.find()) == both, "of all topics")
        await scene.until(lambda: [row["name"] for row in scene.find()["consumers"]] == ["c"], "it is gone")
        assert scene.find()["ignored"]["malformed"] == 2 * len(topics)
        assert "ended and begins again" not in caplog.text

        for _ in range(5):
            scene.tell()
        async with Admin({"bootstrap.servers": bootstrap}) as admin:
            await admin.delete_topic(topics[0])
            await scene.make_topics(topics[0])
        scene.tell("anew")
        await scene.until(lambda: "anew" in list_workers(scene.find()), "the topic made anew is read")
