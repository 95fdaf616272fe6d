"""When the log is not what it was (docs/exactly-once.md#log-identity): recreated, truncated, trimmed, grown."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from overlay.kafka.admin import connect
from overlay.kafka.log_position import LogPosition
from overlay.state.shard_state import Delta, ShardState, encode
from overlay.state.takeover import read_state
from tests.index.test_start_positions import delete_below
from tests.support.kafka import NewTopicFixture, add_partitions, delete_topic, make_topic, produce_values
from tests.support.waiting import wait_until
from tests.worker.scenes import (
    DEADLINE_S,
    CommittedReader,
    Scene,
    Served,
    await_caught_up,
    await_records,
    check_output,
    check_tokens,
    expect,
    produce,
    read_committed,
    reset_stream,
    serve,
)


def load_state(scene: Scene) -> ShardState:
    """The state as it is committed, while no service runs."""

    async def read() -> ShardState:
        kafka = {"bootstrap.servers": scene.bootstrap}
        async with connect(kafka) as (admin, client):
            return (await read_state(client, admin, scene.state_topic, 0))[0]

    return asyncio.run(read())


def write_state(scene: Scene, delta: Delta) -> None:
    """Add a record to the state, as a transaction of the former owner would have."""
    produce_values(scene.bootstrap, scene.state_topic, [encode(delta)])


def metric(served: Served, name: str, **labels: str) -> float:
    return served.service.metrics.registry.get_sample_value(name, labels) or 0.0


def await_stopped(served: Served, stream: str, why: str) -> None:
    def is_stopped() -> bool:
        found = served.stream(stream)
        return found["state"] == "stopped" and why in found["reason"]

    wait_until(is_stopped, DEADLINE_S, f"stream {stream} is stopped: {why}")


def add_neighbour(scene: Scene, topic: str) -> str:
    """Another stream, which has to go on whatever befalls the first."""
    scene.add_stream("NEXT", topic)
    return scene.add_consumer("NEXT", "neighbour")


def check_neighbour(scene: Scene, topic: str, output: str) -> None:
    with CommittedReader(scene.bootstrap, output) as reader:
        count = len(reader.read())
        produce(scene.bootstrap, topic, ["a"] * 10)
        await_records(reader, count + 10)
        check_output(reader.seen, expect(read_committed(scene.bootstrap, topic)), stream="NEXT", consumer="neighbour")


def test_a_recreated_topic_is_noticed(scene: Scene, new_topic: NewTopicFixture) -> None:
    """While the service runs: the stream stops, the neighbour goes on, nothing of the new topic is delivered."""
    topic, next_topic = new_topic(), new_topic()
    scene.add_stream("S", topic)
    output, neighbour = scene.add_consumer("S", "c"), add_neighbour(scene, next_topic)
    produce(scene.bootstrap, topic, ["a"] * 20)
    with serve(scene) as served, CommittedReader(scene.bootstrap, output) as reader:
        await_records(reader, 20)
        delete_topic(scene.bootstrap, topic)
        make_topic(scene.bootstrap, topic)
        produce(scene.bootstrap, topic, ["b"] * 5)  # fewer than were read
        await_stopped(served, "S", "created again")
        check_neighbour(scene, next_topic, neighbour)
        assert len(reader.read()) == 20
    with serve(scene) as served:
        await_stopped(served, "S", "created again")
        assert served.consumer("c")["state"] == "stopped"
    assert len(read_committed(scene.bootstrap, output)) == 20


def test_a_truncated_log_stops_its_stream_and_no_other(scene: Scene, new_topic: NewTopicFixture) -> None:
    """Positions whose batch is another one, or past the log's end, as an unclean election leaves them."""
    topics = {name: new_topic() for name in ("CRC", "EPOCH", "PAST", "ATEND")}
    next_topic = new_topic()
    neighbour = add_neighbour(scene, next_topic)
    outputs = {}
    for name, topic in topics.items():
        scene.add_stream(name, topic)
        outputs[name] = scene.add_consumer(name, name.lower())
        produce(scene.bootstrap, topic, ["a"] * 10)
    with serve(scene) as served:
        await_caught_up(served, *(name.lower() for name in topics), "neighbour")
    cursors = load_state(scene).cursors
    log_positions = {name: cursors[name, (topic, 0)] for name, topic in topics.items()}
    assert {log_position.position for log_position in log_positions.values()} == {10}
    assert all(log_position.crc >= 0 and log_position.epoch >= 0 for log_position in log_positions.values())
    changed = {
        "CRC": replace(log_positions["CRC"], crc=log_positions["CRC"].crc ^ 1),
        "EPOCH": replace(log_positions["EPOCH"], epoch=log_positions["EPOCH"].epoch + 1),
        "PAST": replace(log_positions["PAST"], position=50),
        "ATEND": replace(log_positions["ATEND"], position=11),
    }
    write_state(scene, Delta({(name, (topics[name], 0)): log_position for name, log_position in changed.items()}))
    with serve(scene) as served:
        for name in topics:
            await_stopped(served, name, "truncated")
            assert f"Run `overlay stream reset {name}` to start anew" in served.stream(name)["reason"]
        check_neighbour(scene, next_topic, neighbour)
        for topic in topics.values():
            produce(scene.bootstrap, topic, ["b"])
    assert {len(read_committed(scene.bootstrap, output)) for output in outputs.values()} == {10}


def test_retention_passes_the_position(scene: Scene, new_topic: NewTopicFixture) -> None:
    """While the service is down: it goes on at the log's start, and counts what it never saw."""
    topic = new_topic()
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "c")
    idle = scene.add_consumer("S", "idle", "t.nothing-like-this")
    produce(scene.bootstrap, topic, ["a"] * 20)
    with serve(scene) as served:
        await_caught_up(served, "c", "idle")
    first = list(read_committed(scene.bootstrap, output))
    produce(scene.bootstrap, topic, ["a"] * 30)
    delete_below(scene.bootstrap, topic, 35)
    with serve(scene) as served, CommittedReader(scene.bootstrap, output) as reader:
        await_records(reader, 35)
        check_tokens(reader.seen, "S", "c")
        sequences = [record.token.sequence for record in reader.seen]
        assert sequences == [*(record.token.sequence for record in first), *range(36, 51)]
        assert metric(served, "overlay_records_lost_total", stream="S") == 15
    assert read_committed(scene.bootstrap, idle) == []


def test_a_consumer_without_matches_does_not_read_again(scene: Scene, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    scene.add_stream("S", topic)
    scene.add_consumer("S", "idle", "t.nothing-like-this")
    produce(scene.bootstrap, topic, ["a"] * 50)
    with serve(scene) as served:
        await_caught_up(served, "idle")
    log_position = load_state(scene).log_position_of(("S", "idle"), (topic, 0))
    assert log_position is not None and log_position.position == 50


def test_a_partition_added_to_a_stream_of_one_is_not_read(scene: Scene, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "c")
    produce(scene.bootstrap, topic, ["a"] * 5)
    with serve(scene) as served, CommittedReader(scene.bootstrap, output) as reader:
        await_records(reader, 5)
        add_partitions(scene.bootstrap, topic, 2)
        produce(scene.bootstrap, topic, ["b"] * 7, partition=1)
        wait_until(lambda: "extend" in served.stream("S")["reason"], DEADLINE_S, "the new partition is reported")
        produce(scene.bootstrap, topic, ["a"] * 3, partition=0)
        found = await_records(reader, 8)
        assert [record.token.sequence for record in found] == list(range(1, 9))
        assert {record.subject for record in found} == {"t.a"}


def test_a_partition_added_to_a_stream_of_several_is_read_from_its_start(
    scene: Scene, new_topic: NewTopicFixture
) -> None:
    """Also by a consumer of new messages, and by one whose file was away when the partition came."""
    topic = new_topic(partitions=2)
    scene.add_stream("S", topic)
    outputs = {"all": scene.add_consumer("S", "all"), "new": scene.add_consumer("S", "new", deliver_policy="new")}
    away = scene.add_consumer("S", "away")
    produce(scene.bootstrap, topic, ["a"] * 4, partition=0)
    with serve(scene) as served:
        await_caught_up(served, "all", "new", "away")
    scene.remove_consumer("away")
    with serve(scene) as served:
        add_partitions(scene.bootstrap, topic, 3)
        produce(scene.bootstrap, topic, ["b"] * 6, partition=2)
        wait_until(lambda: f"{topic}-2" in served.stream("S")["partitions"], DEADLINE_S, "partition 2 is read")
        await_caught_up(served, "all", "new")
    assert scene.add_consumer("S", "away") == away
    with serve(scene) as served:
        await_caught_up(served, *outputs, "away")
    found = {name: read_committed(scene.bootstrap, out) for name, out in {**outputs, "away": away}.items()}
    assert {name: len(records) for name, records in found.items()} == {"all": 10, "new": 6, "away": 10}
    for name, records in found.items():
        check_tokens(records, "S", name)


def test_log_positions_of_a_plain_run_hold(scene: Scene, new_topic: NewTopicFixture) -> None:
    """Whatever batches, markers and codecs lie before a position, the check at the next start finds them again."""
    topics = [new_topic() for _ in range(3)]
    for number, topic in enumerate(topics):
        scene.add_stream(f"S{number}", topic)
        scene.add_consumer(f"S{number}", f"c{number}")
    for round_ in range(3):
        with serve(scene) as served:
            produce(scene.bootstrap, topics[0], ["a"] * 7, **{"compression.type": "zstd"})
            produce(scene.bootstrap, topics[1], ["a", None] * 5, **{"batch.num.messages": 1})
            await_caught_up(served, "c0", "c1", "c2")
            assert served.report()["reasons"] == [], round_
    assert LogPosition(21).position == load_state(scene).cursors["S0", (topics[0], 0)].position


def test_a_stream_of_one_partition_is_not_moved_to_another_log(scene: Scene, new_topic: NewTopicFixture) -> None:
    """Its sequences are offsets: those of the new log would be taken for what was delivered. A reset says that they are not."""
    first, second = new_topic(), new_topic()
    produce(scene.bootstrap, first, ["a"] * 20)
    produce(scene.bootstrap, second, ["a"] * 10)
    scene.add_stream("S", first)
    output = scene.add_consumer("S", "c")
    with serve(scene) as served:
        await_caught_up(served, "c")
        scene.add_stream("S", second)
        served.reload(scene)
        await_stopped(served, "S", "those of another log")
    reset_stream(scene)
    with serve(scene) as served:
        await_caught_up(served, "c")
    assert len(read_committed(scene.bootstrap, output)) == 30
