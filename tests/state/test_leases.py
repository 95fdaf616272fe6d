"""A consumer that a Spark pipeline holds is left alone until the pipeline has gone; its neighbours do not wait."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer

from overlay.config import load
from overlay.kafka.own_topics import lease_group
from tests.support.kafka import NewTopicFixture
from tests.support.waiting import wait_until
from tests.worker.scenes import CommittedReader, Scene, await_records, await_state, produce, read_committed, serve


@contextlib.contextmanager
def hold(scene: Scene, name: str, topic: str) -> Iterator[None]:
    """Be the only member of a consumer's lease, as spark/lease.py is."""
    group = lease_group(load(scene.folder).service.topics.prefix, ("S", name))
    consumer = Consumer({"bootstrap.servers": scene.bootstrap, "group.id": group, "enable.auto.commit": False})
    consumer.subscribe([topic])
    try:
        wait_until(lambda: (consumer.poll(0.1), consumer.assignment())[1], 30, f"{group} is joined")
        yield
    finally:
        consumer.close()


def test_a_consumer_of_a_pipeline_waits(
    scene: Scene, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overlay.worker.shard.STALL_S", 1.0)
    topic = new_topic()
    scene.add_stream("S", topic)
    free = scene.add_consumer("S", "free", delivery="at_least_once")
    output = scene.add_consumer("S", "held", delivery="at_least_once")
    produce(scene.bootstrap, topic, ["a"] * 10)
    with hold(scene, "held", topic), serve(scene) as served:
        stalled = await_state(served, "held", lambda found: found["state"] == "stalled", "is stalled")
        assert f"{scene.prefix}.spark.S.held has members" in stalled["reason"]
        with CommittedReader(scene.bootstrap, free) as reader:
            await_records(reader, 10)
        assert read_committed(scene.bootstrap, output) == []
    with hold(scene, "free", topic), serve(scene), CommittedReader(scene.bootstrap, output) as reader:
        await_records(reader, 10)
        produce(scene.bootstrap, topic, ["a"] * 5)
        # one that the service's state knows is the service's
        with CommittedReader(scene.bootstrap, free) as other:
            await_records(other, 15)


def test_it_is_tried_again(scene: Scene, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.worker.shard.STALL_S", 1.0)
    topic = new_topic()
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "held", delivery="at_least_once")
    produce(scene.bootstrap, topic, ["a"] * 10)
    with contextlib.ExitStack() as stack:
        lease = stack.enter_context(contextlib.ExitStack())
        lease.enter_context(hold(scene, "held", topic))
        served = stack.enter_context(serve(scene))
        await_state(served, "held", lambda found: found["state"] == "stalled", "is stalled")
        lease.close()
        await_state(served, "held", lambda found: found["state"] == "running", "is served")
        with CommittedReader(scene.bootstrap, output) as reader:
            await_records(reader, 10)
