"""A control topic that is made anew under running workers: they hear what it says, and no state is lost."""

from __future__ import annotations

import contextlib

from confluent_kafka.admin import AdminClient

from overlay.client.control.control import Control
from overlay.kafka.own_topics import CONTROL_CONFIG
from tests.support.kafka import DEADLINE_S, NewTopicFixture, make_topic
from tests.support.waiting import wait_until
from tests.worker.scenes import CommittedReader, Scene, await_records, produce, serve
from tests.worker.scenes import scene as scene


def make_anew(scene: Scene) -> None:
    name = f"{scene.prefix}.control"
    client = AdminClient({"bootstrap.servers": scene.bootstrap})
    client.delete_topics([name], operation_timeout=DEADLINE_S)[name].result(DEADLINE_S)
    wait_until(lambda: name not in client.list_topics(timeout=10).topics, DEADLINE_S, "the topic is gone")
    make_topic(scene.bootstrap, name, config=CONTROL_CONFIG)


def test_workers_hear_a_control_topic_that_was_made_anew(scene: Scene, new_topic: NewTopicFixture) -> None:
    """The consumer of a file is served on. The other one stops, and goes on where it stood once it is made again."""
    topic = new_topic()
    scene.add_stream("S", topic)
    of_file = scene.add_consumer("S", "f")
    output = f"{scene.prefix}-c"
    config = {"durable_name": "c", "deliver_subject": output, "ack_policy": "none"}
    with (
        contextlib.closing(
            Control({"bootstrap.servers": scene.bootstrap}, scene.prefix, timeout=DEADLINE_S)
        ) as control,
        serve(scene) as served,
    ):
        control.add("S", config)
        produce(scene.bootstrap, topic, ["a"] * 3)
        with CommittedReader(scene.bootstrap, output) as reader, CommittedReader(scene.bootstrap, of_file) as other:
            await_records(reader, 3)
            make_anew(scene)
            wait_until(
                lambda: "c" not in {c["name"] for c in served.report()["consumers"]},
                DEADLINE_S,
                "the topic's word counts",
            )
            produce(scene.bootstrap, topic, ["a"] * 2)
            await_records(other, 5)
            control.add("S", config)
            found = await_records(reader, 5)
    assert [record.token.consumer_sequence for record in found] == [1, 2, 3, 4, 5]
