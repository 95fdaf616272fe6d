"""The fleet's application and what any client may do to the topics that it follows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from overlay.config.consumer import ConsumerConfig
from overlay.consumer.advisories import encode_advisory
from overlay.consumer.effects import Advise, Advisory, DeadLetter
from overlay.control.records import Definition, write_definition
from overlay.fleet import app
from overlay.fleet.live import LivePicture
from overlay.kafka.admin import Admin
from overlay.kafka.own_topics import control_topic, events_topic, fleet_topic
from overlay.output.dead_letters import describe_dead_letter

from .scenes import Scene, following, list_workers

pytestmark = pytest.mark.kafka


def list_causes(found: dict[str, Any]) -> list[tuple[str, int]]:
    return [(row["cause"], row["hour"]) for row in found.get("advisories", ())]


@pytest.mark.timeout(300)
async def test_strangers_do_not_end_it_and_a_topic_made_anew_is_heard(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
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
    with capture_logs() as logs:
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
            assert not any("begins again" in line["event"] for line in logs)

            for _ in range(5):
                scene.tell()
            async with Admin({"bootstrap.servers": bootstrap}) as admin:
                await admin.delete_topic(topics[0])
                await scene.make_topics(topics[0])
            scene.tell("anew")
            await scene.until(lambda: "anew" in list_workers(scene.find()), "the topic made anew is read")
