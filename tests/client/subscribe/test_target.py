"""Which consumer a name means."""

from __future__ import annotations

import pytest

import overlay
from overlay.client import BadQuestion, Client, NoService, UnknownConsumer
from overlay.client.subscribe.target import aim, find_consumer
from overlay.config import ConsumerConfig
from overlay.config.consumer import AckPolicy
from overlay.errors import SourceUnavailable
from tests.support.kafka import NewTopicFixture, make_topic
from tests.worker.scenes import DEADLINE_S, Scene


def make(stream: str, name: str, **fields: object) -> ConsumerConfig:
    return ConsumerConfig.model_validate({"stream": stream, "durable_name": name, "deliver_subject": "out", **fields})


KNOWN = [make("ORDERS", "late"), make("ORDERS", "early"), make("FLIGHTS", "late"), make("FLIGHTS", "one")]


def test_a_name_is_enough_where_one_stream_has_it() -> None:
    assert find_consumer(KNOWN, "early", "").id == ("ORDERS", "early")
    assert find_consumer(KNOWN, "late", "FLIGHTS").id == ("FLIGHTS", "late")
    with pytest.raises(BadQuestion, match="FLIGHTS, ORDERS"):
        find_consumer(KNOWN, "late", "")


def test_an_unknown_name_is_told_what_there_is() -> None:
    with pytest.raises(UnknownConsumer, match=r"folder: there is no consumer 'eraly'.*early"):
        find_consumer(KNOWN, "eraly", "", "folder")
    with pytest.raises(UnknownConsumer, match=r"of stream 'FLIGHTS'.*There is late, one"):
        find_consumer(KNOWN, "early", "FLIGHTS")


def test_where_deliveries_come_from_and_who_reads_them() -> None:
    target = aim(make("S", "c", ack_policy="all", idle_heartbeat="1500ms"))
    assert (target.head.text, target.topic, target.group) == (b"$JS.ACK.S.c", "out", "c")
    assert (target.policy, target.heartbeat_s) == (AckPolicy.ALL, 1.5)
    assert aim(make("S", "c", deliver_group="g")).group == "g"


def test_a_pull_consumer_has_no_topic() -> None:
    with pytest.raises(BadQuestion, match="deliver_subject"):
        aim(make("S", "c", deliver_subject=""))


@pytest.fixture
def client(scene: Scene, new_topic: NewTopicFixture) -> Client:
    scene.add_stream("S", new_topic())
    scene.add_consumer("S", "late")
    return overlay.open(scene.folder)


def test_the_door_without_a_service(client: Client, bootstrap: str) -> None:
    with client.subscribe("late"):
        pass  # a file has it: no worker is asked
    with pytest.raises(UnknownConsumer, match=r"There is late.*cannot be asked"):
        client.subscribe("lat")
    with pytest.raises(SourceUnavailable):
        overlay.open(bootstrap=bootstrap, prefix="unused").subscribe("late")


def test_without_a_service_a_look_at_it_ends_soon(client: Client, scene: Scene) -> None:
    """Not only when `control` gives up, whose requests wait for a service that is about to start."""
    for topic in ("control", "replies"):
        make_topic(scene.bootstrap, f"{scene.prefix}.{topic}")
    client.control.timeout = DEADLINE_S
    with client, pytest.raises(UnknownConsumer, match=r"There is late.*cannot be asked: no service runs"):
        client.pull("lat")
    with overlay.open(bootstrap=scene.bootstrap, prefix=scene.prefix) as alone, pytest.raises(NoService):
        alone.control.timeout = DEADLINE_S
        alone.subscribe("late")


def test_what_makes_no_sense(client: Client) -> None:
    with pytest.raises(BadQuestion, match="prefetch"):
        client.subscribe("late", prefetch=0)
    with pytest.raises(BadQuestion, match="on_silence"):
        client.subscribe("late", on_silence="shout")
