"""Streams of several partitions: sequences from the ledger, in tokens and in the order of deliveries."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from overlay import open as open_client
from overlay.client.read.bounds import NoSequence
from overlay.index.ledger.allocate import Standing, allocate
from overlay.index.ledger.entries import encode
from overlay.kafka.log_position import LogPosition
from overlay.kafka.own_topics import index_topic
from tests.index.test_start_positions import delete_below
from tests.support.kafka import NewTopicFixture, SureProducer, add_partitions, delete_topic, make_topic
from tests.support.ledger import check_in_order, read_ledger
from tests.support.waiting import wait_until
from tests.worker.kept.test_indexes import await_indexed
from tests.worker.scenes import (
    DEADLINE_S,
    CommittedReader,
    Scene,
    Seen,
    Served,
    await_caught_up,
    await_records,
    expect,
    produce,
    read_committed,
    reset_stream,
    serve,
)

PLACES = ("a.x", "a.y", "b.x", "b.y")


def write(scene: Scene, topic: str, bursts: int, seed: int = 0, partitions: int = 3) -> None:
    """Bursts of a few records, each to some partition."""
    rng = random.Random(seed)
    for _ in range(bursts):
        size = rng.randrange(1, 60)
        produce(scene.bootstrap, topic, [rng.choice(PLACES) for _ in range(size)], partition=rng.randrange(partitions))


def add_stream(scene: Scene, *topics: str, **more: object) -> None:
    scene.add_stream("S", *topics, subject={"header": "to"}, index={"chunk_records": 40, "chunk_age": "200ms"}, **more)


def want(scene: Scene, topics: Iterable[str], *filters: str) -> list[Seen]:
    seen = [record for topic in topics for record in read_committed(scene.bootstrap, topic)]
    return expect(seen, filters, prefix="")


@pytest.mark.parametrize("shards", [1, 3])
def test_tokens_and_order(scene: Scene, new_topic: NewTopicFixture, shards: int) -> None:
    """What was there before, what comes meanwhile and after a restart, for every way of delivery, on every shard."""
    with (scene.folder / "overlay.yaml").open("a") as file:
        file.write(f"shards: {shards}\n")
    topics = [new_topic(partitions=3), new_topic()]
    write(scene, topics[0], 20)
    add_stream(scene, *topics)
    filters: dict[str, tuple[str, ...]] = {"all": (), "some": ("a.*",), "rare": ("b.y",), "often": ("*.x", "b.y")}
    outputs = {name: scene.add_consumer("S", name, *filters[name]) for name in ("all", "some")}
    outputs["often"] = scene.add_consumer("S", "often", *filters["often"], delivery="at_least_once")
    with serve(scene) as served:
        write(scene, topics[1], 6, partitions=1)
        write(scene, topics[0], 12, seed=1)
        await_caught_up(served, *outputs)
    outputs["rare"] = scene.add_consumer("S", "rare", *filters["rare"])
    with serve(scene) as served:
        write(scene, topics[0], 12, seed=2)
        await_caught_up(served, *outputs)
        shown = served.stream("S")["index"]
    ledger = read_ledger(scene)
    for name, output in outputs.items():
        check_in_order(read_committed(scene.bootstrap, output), want(scene, topics, *filters[name]), ledger, name)
    assert shown["ledger"]["last_sequence"] >= max(ledger.sequences.values())


def test_where_consumers_start(scene: Scene, new_topic: NewTopicFixture) -> None:
    """By a sequence that is there, by one that is yet to come, and at the last message."""
    topic = new_topic(partitions=3)
    write(scene, topic, 12)
    add_stream(scene, topic)
    first = scene.add_consumer("S", "first")
    with serve(scene) as served:
        await_caught_up(served, "first")
    ledger = read_ledger(scene)
    middle, beyond = ledger.next_sequence // 2, ledger.next_sequence + 20
    output = {
        "middle": scene.add_consumer("S", "middle", deliver_policy="by_start_sequence", opt_start_seq=middle),
        "beyond": scene.add_consumer("S", "beyond", deliver_policy="by_start_sequence", opt_start_seq=beyond),
        "last": scene.add_consumer("S", "last", "b.x", deliver_policy="last"),
    }
    last = max(ledger.sequences[(topic, r.partition), r.offset] for r in want(scene, [topic], "b.x"))
    with serve(scene) as served:
        await_caught_up(served, *output)
        write(scene, topic, 12, seed=1)
        await_caught_up(served, *output)
    ledger = read_ledger(scene)
    begins = {"middle": (middle, ()), "beyond": (beyond, ()), "last": (last, ("b.x",))}
    for name, (begin, filters) in begins.items():
        wanted = [
            record
            for record in want(scene, [topic], *filters)
            if ledger.sequences[(topic, record.partition), record.offset] >= begin
        ]
        assert wanted
        check_in_order(read_committed(scene.bootstrap, output[name]), wanted, ledger, name)
    check_in_order(read_committed(scene.bootstrap, first), want(scene, [topic]), ledger, "first")


def test_who_begins_at_a_time_is_given_nothing_from_before(scene: Scene, new_topic: NewTopicFixture) -> None:
    """A backlog gets its sequences one partition after the other, and a consumer with acks stands at one sequence in all."""
    topic = new_topic(partitions=3)
    write(scene, topic, 30)
    time.sleep(0.01)  # the clock has moved on
    since = datetime.now(UTC)
    write(scene, topic, 30, seed=1)
    add_stream(scene, topic)
    begin = {
        "deliver_policy": "by_start_time",
        "opt_start_time": since.isoformat(),
        "ack_policy": "explicit",
        "ack_wait": "60s",
    }
    output = scene.add_consumer("S", "acked", "a.*", **begin, max_ack_pending=1_000)
    wanted = [record for record in want(scene, [topic], "a.*") if record.timestamp >= since.timestamp() * 1_000]
    for _ in range(2):  # and is given no more after a restart
        with serve(scene) as served:
            await_caught_up(served, "acked")
    check_in_order(read_committed(scene.bootstrap, output), wanted, read_ledger(scene), "acked")


def await_stop(served: Served, reason: str) -> None:
    def has_stopped() -> bool:
        found = served.stream("S")
        return found["state"] == "stopped" and reason in found["reason"]

    wait_until(has_stopped, DEADLINE_S, f"the stream has stopped: {reason}")


def make_again(bootstrap: str, topic: str, partitions: int) -> None:
    def make() -> bool:
        try:
            make_topic(bootstrap, topic, partitions=partitions)
        except KafkaException:  # the controller may still be at the deletion
            return False
        return True

    wait_until(make, DEADLINE_S, f"{topic} is there again")


def test_an_index_topic_deleted_under_us(scene: Scene, new_topic: NewTopicFixture) -> None:
    """The sequences are lost: nothing is delivered until the operator gives them up."""
    topic = new_topic(partitions=3)
    write(scene, topic, 6)
    add_stream(scene, topic)
    output = scene.add_consumer("S", "c")
    with serve(scene) as served:
        await_caught_up(served, "c")
        before = len(read_committed(scene.bootstrap, output))
        delete_topic(scene.bootstrap, index_topic(scene.prefix, "S"))
        await_stop(served, "the ledger of stream S is not to be had")
        write(scene, topic, 3, seed=1)
        assert "overlay stream reset S" in served.stream("S")["reason"]
    with serve(scene, wait=False) as served:
        await_stop(served, "the ledger of stream S is not to be had")
        assert len(read_committed(scene.bootstrap, output)) == before
        reset_stream(scene)
        wanted = want(scene, [topic])
        with CommittedReader(scene.bootstrap, output) as reader:
            found = await_records(reader, before + len(wanted))[before:]
    ledger = read_ledger(scene)
    sequences = [record.token.sequence for record in found]
    assert sequences == sorted(ledger.sequences[(topic, r.partition), r.offset] for r in wanted)
    assert sequences[0] == 1


def test_the_last_round_cannot_be_read(scene: Scene, new_topic: NewTopicFixture) -> None:
    topic = new_topic(partitions=3)
    write(scene, topic, 6)
    add_stream(scene, topic)
    output = scene.add_consumer("S", "c")
    with serve(scene) as served:
        await_caught_up(served, "c")
    producer, index = SureProducer(scene.bootstrap), index_topic(scene.prefix, "S")
    producer.produce(index, b"\x01\x02who knows", b"something else")
    producer.produce(index, b"\x01\x02who knows", b"run OTHER 1000000")
    producer.produce(index, b"\x01\x02who knows", b"run S 1")
    assert producer.flush(30) == 0
    with serve(scene) as served:
        write(scene, topic, 3, seed=1)
        await_caught_up(served, "c")
    check_in_order(read_committed(scene.bootstrap, output), want(scene, [topic]), read_ledger(scene))
    producer.produce(index, b"\x07\x02of a version to come", b"run S 1000000")
    assert producer.flush(30) == 0
    with serve(scene, wait=False) as served:
        await_stop(served, "cannot be read, and it may have given out sequences of stream S")
        delete_topic(scene.bootstrap, index)
        reset_stream(scene)
        wait_until(lambda: served.stream("S")["state"] == "running", DEADLINE_S, "the stream runs again")


def test_a_topic_created_again(scene: Scene, new_topic: NewTopicFixture) -> None:
    """What was given out stays given out: the records of the new log have sequences above all earlier ones."""
    topic = new_topic(partitions=3)
    write(scene, topic, 8)
    add_stream(scene, topic)
    output = scene.add_consumer("S", "c")
    with serve(scene) as served:
        await_caught_up(served, "c")
    before, last = len(read_committed(scene.bootstrap, output)), max(read_ledger(scene).sequences.values())
    delete_topic(scene.bootstrap, topic)
    make_again(scene.bootstrap, topic, 3)
    write(scene, topic, 4, seed=1)
    reset_stream(scene)
    with serve(scene):
        wanted = want(scene, [topic])
        with CommittedReader(scene.bootstrap, output) as reader:
            found = await_records(reader, before + len(wanted))[before:]
    ledger = read_ledger(scene)
    sequences = [record.token.sequence for record in found]
    assert sequences == sorted(ledger.sequences[(topic, r.partition), r.offset] for r in wanted)
    assert sequences[0] > last


@pytest.mark.parametrize("has_regrown", [False, True])
def test_a_log_cut_by_an_unclean_election(scene: Scene, new_topic: NewTopicFixture, has_regrown: bool) -> None:
    """The ledger knows of five records that the log lost: it ends before them, or has others in their place.

    Their partition restarts behind the last chunk that holds. What stands there then gets sequences of its own, above all that
    were given out; everything else keeps its own.
    """
    topic = new_topic(partitions=2)
    for partition in (0, 1):
        produce(scene.bootstrap, topic, ["a.x"] * 15, partition=partition)
    add_stream(scene, topic)
    output = scene.add_consumer("S", "c")
    with serve(scene) as served:
        await_caught_up(served, "c")
        for partition in (0, 1):
            await_indexed(scene, topic, 15, partition)
    before = read_ledger(scene)
    standing = Standing(before.next_sequence, before.ends)
    lost = allocate(standing, {(topic, 0): (15, LogPosition(20, before.log_positions[topic, 0][0], 12_345))})
    assert lost is not None
    writer, (key, value) = SureProducer(scene.bootstrap), encode("S", lost)
    writer.produce(index_topic(scene.prefix, "S"), value, key)
    assert not writer.flush(30)
    if has_regrown:
        produce(scene.bootstrap, topic, ["a.y"] * 5, partition=0)
    with serve(scene) as served:
        if not has_regrown:
            produce(scene.bootstrap, topic, ["a.y"] * 5, partition=0)
        await_caught_up(served, "c")
    after = read_ledger(scene)
    fresh = [after.sequences.pop(((topic, 0), offset)) for offset in range(15, 20)]
    assert after.sequences == before.sequences
    assert fresh == sorted(fresh) and fresh[0] >= lost.next_sequence
    check_in_order(read_committed(scene.bootstrap, output), want(scene, [topic]), read_ledger(scene))


def test_partitions_that_are_added_and_retention(scene: Scene, new_topic: NewTopicFixture) -> None:
    topic = new_topic(partitions=2)
    write(scene, topic, 10, partitions=2)
    add_stream(scene, topic)
    output = scene.add_consumer("S", "c")
    with serve(scene) as served:
        await_caught_up(served, "c")
        wanted = want(scene, [topic])
        add_partitions(scene.bootstrap, topic, 3)
        write(scene, topic, 10, seed=1)
        with CommittedReader(scene.bootstrap, output) as reader:
            await_records(reader, len(want(scene, [topic])))
    delete_below(scene.bootstrap, topic, 20)
    wanted = want(scene, [topic])
    late = scene.add_consumer("S", "late")
    with serve(scene) as served:
        write(scene, topic, 3, seed=2)
        await_caught_up(served, "c", "late")
    ledger = read_ledger(scene)
    check_in_order(read_committed(scene.bootstrap, late), want(scene, [topic]), ledger, "late")
    sequences = [record.token.sequence for record in read_committed(scene.bootstrap, output)]
    assert sequences == sorted(set(sequences)) and len(sequences) > len(wanted)


def test_reading(scene: Scene, new_topic: NewTopicFixture) -> None:
    """The Python reader has the same sequences, in their order; from one of them on, the last ones, and as they come."""
    topic = new_topic(partitions=3)
    write(scene, topic, 20)
    add_stream(scene, topic)
    client = open_client(scene.folder)
    with pytest.raises(NoSequence, match="3 partitions and no ledger"):
        list(client.read("S", from_seq=5))
    with serve(scene, wait=False) as served:
        wait_until(lambda: read_ledger(scene).sequences, DEADLINE_S, "there is a ledger")
        client = open_client(scene.folder)
        write(scene, topic, 12, seed=1)
        reach = {(topic, p): end for p, end in find_ends(scene, topic).items()}
        wait_until(lambda: read_ledger(scene).ends.items() >= reach.items(), DEADLINE_S, "the ledger has everything")
        sequences = sequence_all(scene, topic)
        middle = sequences[len(sequences) // 2]
        questions: list[tuple[dict[str, Any], list[int]]] = [
            ({}, sequences),
            ({"subjects": ["a.*"], "limit": 40}, sequence_all(scene, topic, "a.*")[:40]),
            ({"subjects": ["b.y"], "from_seq": middle}, [s for s in sequence_all(scene, topic, "b.y") if s >= middle]),
            ({"last": 25}, sequences[-25:]),
            ({"last": 7, "subjects": ["*.x"]}, sequence_all(scene, topic, "*.x")[-7:]),
            ({"from_seq": sequences[-1] + 1}, []),
        ]
        for question, wanted in questions:
            assert read_sequences(client.read("S", columns=["sequence"], **question)) == wanted, question
        wanted = sequences[-5:]
        with client.read("S", last=5, follow=True, columns=["sequence"]) as reading:
            found = next(reading)["sequence"].to_pylist()
            write(scene, topic, 10, seed=2)
            count = len(want(scene, [topic])) - len(sequences)
            while len(found) < 5 + count:
                found += next(reading)["sequence"].to_pylist()
        assert found == [*wanted, *sequence_all(scene, topic)[-count:]]
        assert served.stream("S")["index"]["ledger"]["first_sequence"] == 1
    with client.read("S", from_seq=sequences[-1], follow=True, columns=["sequence"]) as reading:
        found = []
        produce(scene.bootstrap, topic, ["a.x"], partition=1)
        while None not in found:
            found += next(reading)["sequence"].to_pylist()
        assert found[:-1] == sequence_all(scene, topic, upto=1)[-len(found) + 1 :]


def read_sequences(batches: Iterable[pa.RecordBatch]) -> list[int]:
    return [sequence for batch in batches for sequence in batch["sequence"].to_pylist()]


def sequence_all(scene: Scene, topic: str, *filters: str, upto: int = 0) -> list[int]:
    """The sequences of what is wanted, ascending; `upto`: so many may have none yet."""
    ledger = read_ledger(scene)
    found = [ledger.sequences.get(((topic, r.partition), r.offset), 0) for r in want(scene, [topic], *filters)]
    assert found.count(0) == upto
    return sorted(sequence for sequence in found if sequence)


def find_ends(scene: Scene, topic: str) -> dict[int, int]:
    client = Consumer({"bootstrap.servers": scene.bootstrap, "group.id": "ends"})
    try:
        return {p: client.get_watermark_offsets(TopicPartition(topic, p), 30)[1] for p in range(3)}
    finally:
        client.close()
