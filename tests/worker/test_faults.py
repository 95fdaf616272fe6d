"""Bad outputs, bad batches in the source, broken brokers.

A bad output stalls its own consumer alone (docs/exactly-once.md#refusing-outputs)."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.support.kafka import NewTopicFixture, SureProducer, make_topic
from tests.support.waiting import wait_until
from tests.worker.scenes import (
    DEADLINE_S,
    CommittedReader,
    Scene,
    await_records,
    await_state,
    check_output,
    expect,
    produce,
    read_committed,
    serve,
)


def alter_topic(bootstrap: str, topic: str, **config: str) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(30)


def produce_sizes(bootstrap: str, topic: str, sizes: list[int]) -> None:
    """Values that do not compress, to everyone."""
    producer = SureProducer(bootstrap, {"message.max.bytes": 20_000_000})
    with open("/dev/urandom", "rb") as noise:
        for size in sizes:
            producer.produce(topic, noise.read(size), headers=[("to", "a")])
    assert producer.flush(30) == 0


def test_an_output_that_became_too_small_stalls_its_consumer_alone(scene: Scene, new_topic: NewTopicFixture) -> None:
    """max.message.bytes lowered under way; then raised, after which nothing is missing or twice."""
    topic, other = new_topic(), new_topic()
    scene.add_stream("S", topic)
    scene.add_stream("T", other)
    outputs = {"bad": scene.add_consumer("S", "bad"), "good": scene.add_consumer("S", "good")}
    far = scene.add_consumer("T", "far")
    produce_sizes(scene.bootstrap, topic, [50] * 10)
    with serve(scene) as served:
        with CommittedReader(scene.bootstrap, outputs["bad"]) as reader:
            await_records(reader, 10)
        alter_topic(scene.bootstrap, outputs["bad"], max_message_bytes="1000")
        produce_sizes(scene.bootstrap, topic, [3_000] * 10)
        produce(scene.bootstrap, other, ["a"] * 5)
        stalled = await_state(served, "bad", lambda found: found["state"] == "stalled", "is stalled")
        assert outputs["bad"] in stalled["reason"]
        with CommittedReader(scene.bootstrap, outputs["good"]) as reader:
            await_records(reader, 20)
        with CommittedReader(scene.bootstrap, far) as reader:
            await_records(reader, 5)
        assert served.report()["ready"]
        assert len(read_committed(scene.bootstrap, outputs["bad"])) == 10
    alter_topic(scene.bootstrap, outputs["bad"], max_message_bytes="1048588")
    with serve(scene):
        for name, output in outputs.items():
            with CommittedReader(scene.bootstrap, output) as reader:
                await_records(reader, 20)
                check_output(reader.seen, expect(read_committed(scene.bootstrap, topic)), consumer=name)


def test_a_record_that_no_batch_can_hold_is_named(scene: Scene, new_topic: NewTopicFixture) -> None:
    """It is found before it is sent: with its offset in the reason, and the neighbour does not wait."""
    topic = new_topic(max_message_bytes=5_000_000)
    scene.add_stream("S", topic)
    outputs = {name: scene.add_consumer("S", name) for name in ("small", "large")}
    make_topic(scene.bootstrap, outputs["large"], 1, {"max.message.bytes": "5000000"})
    produce_sizes(scene.bootstrap, topic, [50, 50, 3_000_000, 50])
    with serve(scene) as served:
        stalled = await_state(served, "small", lambda found: found["state"] == "stalled", "is stalled")
        assert "offset 2 " in stalled["reason"] and "max.message.bytes" in stalled["reason"]
        with CommittedReader(scene.bootstrap, outputs["large"]) as reader:
            await_records(reader, 4)
            check_output(reader.seen, expect(read_committed(scene.bootstrap, topic)), consumer="large")
    assert [record.token.sequence for record in read_committed(scene.bootstrap, outputs["small"])] in ([], [1, 2])


def test_a_deleted_output_does_not_stop_the_neighbours(scene: Scene, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    scene.add_stream("S", topic)
    gone, good = scene.add_consumer("S", "gone"), scene.add_consumer("S", "good")
    produce(scene.bootstrap, topic, ["a"] * 10)
    with serve(scene), CommittedReader(scene.bootstrap, good) as reader:
        await_records(reader, 10)
        admin = AdminClient({"bootstrap.servers": scene.bootstrap})
        admin.delete_topics([gone])[gone].result(30)
        wait_until(lambda: gone not in admin.list_topics(timeout=10).topics, DEADLINE_S, "the topic is gone")
        produce(scene.bootstrap, topic, ["a"] * 10)
        await_records(reader, 20)
        check_output(reader.seen, expect(read_committed(scene.bootstrap, topic)), consumer="good")


def test_an_output_that_cannot_be_created_stalls_its_consumer_alone(scene: Scene, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    scene.add_stream("S", topic)
    scene.add_consumer("S", "bad", output={"config": {"retention.ms": "soon"}})
    good = scene.add_consumer("S", "good")
    produce(scene.bootstrap, topic, ["a"] * 10)
    with serve(scene) as served, CommittedReader(scene.bootstrap, good) as reader:
        await_records(reader, 10)
        stalled = await_state(served, "bad", lambda found: found["state"] == "stalled", "is stalled")
        assert "retention.ms" in stalled["reason"]


def test_at_least_once(scene: Scene, new_topic: NewTopicFixture) -> None:
    """Without a failure: each once, in order; beside a transactional neighbour."""
    topic = new_topic()
    scene.add_stream("S", topic)
    plain = {"delivery": "at_least_once", "output": {"partitions": 2, "partition_by": "subject"}}
    outputs = {"plain": scene.add_consumer("S", "plain", **plain), "exact": scene.add_consumer("S", "exact")}
    for _ in range(2):
        with serve(scene):
            produce(scene.bootstrap, topic, ["a", "b", "c", None] * 500)
            wanted = expect(read_committed(scene.bootstrap, topic))
            for name, output in outputs.items():
                with CommittedReader(scene.bootstrap, output) as reader:
                    await_records(reader, len(wanted))
                    check_output(reader.seen, wanted, consumer=name)
