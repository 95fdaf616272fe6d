"""The chunk index that a running service keeps, read back as any reader reads it and held against the source topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from overlay.index.skip.chunks import Chunks
from overlay.kafka.own_topics import index_topic
from overlay.subject import Pattern
from tests.index.test_start_positions import delete_below
from tests.support.index import check_chunks, read_index
from tests.support.kafka import NewTopicFixture, SureProducer
from tests.support.waiting import wait_until
from tests.worker.scenes import (
    DEADLINE_S,
    CommittedReader,
    Scene,
    await_caught_up,
    await_records,
    check_output,
    expect,
    produce,
    read_committed,
    serve,
)

# small chunks, old after a moment, so that a test sees many
SMALL: dict[str, object] = {"chunk_records": 40, "chunk_age": "200ms"}
PLACES = ("a.x", "a.y", "b.x", "b.y")


def await_indexed(scene: Scene, topic: str, end: int, partition: int = 0) -> Chunks:
    """Wait until the chunks of a partition reach `end`."""

    def look() -> Chunks | None:
        chunks = read_index(scene).of((topic, partition))
        return chunks if len(chunks) and chunks.next_offset[-1] >= end else None

    found = wait_until(look, DEADLINE_S, f"{topic}-{partition} is indexed up to {end}")
    assert found is not None
    return found


def write_bursts(scene: Scene, topic: str, bursts: int, size: int = 25) -> int:
    """Small batches, since a chunk never divides one; returns the number of records."""
    for burst in range(bursts):
        produce(scene.bootstrap, topic, [PLACES[(burst + i) % len(PLACES)] for i in range(size)])
    return bursts * size


def add_stream(scene: Scene, *topics: str, index: dict[str, object] | None = None, **more: object) -> None:
    scene.add_stream("S", *topics, subject={"header": "to"}, index={**SMALL, **(index or {})}, **more)


def test_an_index_is_kept_beside_deliveries(scene: Scene, new_topic: NewTopicFixture) -> None:
    """What was there before, what comes meanwhile, and what comes after a restart; nothing is indexed twice."""
    topic = new_topic()
    end = write_bursts(scene, topic, 20)
    add_stream(scene, topic)
    output = scene.add_consumer("S", "c", "a.*")
    with serve(scene) as served:
        end += write_bursts(scene, topic, 10)
        check_chunks(await_indexed(scene, topic, end), scene, topic)
        await_caught_up(served, "c")
    written = len(read_committed(scene.bootstrap, index_topic(scene.prefix, "S")))
    with serve(scene) as served:
        end += write_bursts(scene, topic, 2)
        chunks = await_indexed(scene, topic, end)
        await_caught_up(served, "c")
    check_chunks(chunks, scene, topic)
    records = read_committed(scene.bootstrap, index_topic(scene.prefix, "S"))
    restarted = [int((record.key or b"").split()[-1]) for record in records[written:]]
    assert min(restarted) >= end - 150  # the last chunk goes on growing
    check_output(
        read_committed(scene.bootstrap, output),
        expect(read_committed(scene.bootstrap, topic), ["a.*"], prefix=""),
        prefix="",
    )


def test_a_stream_without_consumers_and_with_several_partitions(scene: Scene, new_topic: NewTopicFixture) -> None:
    topic = new_topic(partitions=3)
    for partition in range(3):
        produce(scene.bootstrap, topic, PLACES * 30, partition=partition)
    add_stream(scene, topic)
    with serve(scene, wait=False):
        for partition in range(3):
            check_chunks(await_indexed(scene, topic, 120, partition), scene, topic, partition=partition)


def test_the_index_follows_its_file(scene: Scene, new_topic: NewTopicFixture) -> None:
    """A property that is listed anew is indexed from the start of the log, and only then pruned by."""
    topic = new_topic()
    end = write_bursts(scene, topic, 6)
    add_stream(scene, topic, properties={"to": "string"})
    with serve(scene, wait=False):
        await_indexed(scene, topic, end)
    add_stream(scene, topic, index={"terms": ["to"]}, properties={"to": "string"})
    index = read_index(scene)
    assert not index.of((topic, 0)).covers("to").any()
    assert index.find_resume((topic, 0), 0).position == 0
    with serve(scene, wait=False):
        wait_until(lambda: read_index(scene).of((topic, 0)).covers("to").all(), DEADLINE_S, "all chunks have the terms")
    check_chunks(await_indexed(scene, topic, end), scene, topic)


@pytest.mark.parametrize("partitions", [1, 2])
def test_small_chunks_are_merged_when_a_service_starts(
    scene: Scene, new_topic: NewTopicFixture, partitions: int
) -> None:
    """Larger chunks are wanted than before: their headers become fewer, and say what they said, for old readers as well."""
    topic = new_topic(partitions=partitions)
    add_stream(scene, topic, index={"chunk_records": 20})
    for partition in range(partitions):
        for _ in range(14):
            produce(scene.bootstrap, topic, PLACES * 5, partition=partition)
    with serve(scene, wait=False):
        before = [await_indexed(scene, topic, 280, partition) for partition in range(partitions)]
    add_stream(scene, topic, index={"chunk_records": 200})
    output = scene.add_consumer("S", "c", "a.*")
    for merges in (True, False):  # and once is enough
        written = len(read_committed(scene.bootstrap, index_topic(scene.prefix, "S")))
        with serve(scene) as served:
            await_caught_up(served, "c")
            chunks = [await_indexed(scene, topic, 280, partition) for partition in range(partitions)]
        for partition in range(partitions):
            check_chunks(chunks[partition], scene, topic, partition=partition)
        assert sum(map(len, chunks)) < sum(map(len, before)) / 2
        records = read_committed(scene.bootstrap, index_topic(scene.prefix, "S"))[written:]
        assert any((record.key or b"").endswith(b" 0") for record in records) == merges
    source = expect(read_committed(scene.bootstrap, topic), ["a.*"], prefix="")
    assert len(read_committed(scene.bootstrap, output)) == len(source) == 140 * partitions


def test_retention_takes_chunks_along(scene: Scene, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    end = write_bursts(scene, topic, 8)
    add_stream(scene, topic)
    with serve(scene, wait=False):
        await_indexed(scene, topic, end)
    delete_below(scene.bootstrap, topic, 100)
    with serve(scene, wait=False) as served:
        end += write_bursts(scene, topic, 2)
        await_indexed(scene, topic, end)
        assert served.report()["reasons"] == []


@pytest.mark.parametrize("config", [{"max.message.bytes": "100"}], ids=["takes no header"])
def test_an_index_topic_that_refuses_holds_up_no_consumer(
    scene: Scene, new_topic: NewTopicFixture, config: dict[str, str]
) -> None:
    client, name = AdminClient({"bootstrap.servers": scene.bootstrap}), index_topic(scene.prefix, "S")
    client.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(30)
    topic = new_topic()
    add_stream(scene, topic)
    output = scene.add_consumer("S", "c")
    with serve(scene), CommittedReader(scene.bootstrap, output) as reader:
        end = write_bursts(scene, topic, 4)
        check_output(await_records(reader, end), expect(read_committed(scene.bootstrap, topic)), prefix="")
        end += write_bursts(scene, topic, 2)
        check_output(await_records(reader, end), expect(read_committed(scene.bootstrap, topic)), prefix="")


def test_foreign_records_in_an_index_topic(scene: Scene, new_topic: NewTopicFixture) -> None:
    """They are counted and passed over; what they were about is not indexed."""
    topic = new_topic()
    end = write_bursts(scene, topic, 4)
    add_stream(scene, topic)
    with serve(scene, wait=False):
        await_indexed(scene, topic, end)
    values: Sequence[bytes] = (b"", b"\x01\x01garbage", b"\x09" * 200)
    producer = SureProducer(scene.bootstrap)
    for value in values:
        producer.produce(index_topic(scene.prefix, "S"), value, b"who knows")
    assert producer.flush(30) == 0
    index = read_index(scene)
    assert index.foreign == len(values)
    check_chunks(index.of((topic, 0)), scene, topic)
    with serve(scene, wait=False):
        end += write_bursts(scene, topic, 3)
        check_chunks(await_indexed(scene, topic, end), scene, topic)


def test_which_subjects_the_chunks_have(scene: Scene, new_topic: NewTopicFixture) -> None:
    """By the counts of each chunk, as a client counts them."""
    topic = new_topic()
    end = write_bursts(scene, topic, 4)
    add_stream(scene, topic)
    with serve(scene, wait=False):
        chunks = await_indexed(scene, topic, end)
    counted: Counter[str] = Counter()
    for place in PLACES:
        counts, _ = chunks.subject_counts([Pattern(place)])
        counted[place] = int(counts.sum())
    seen = read_committed(scene.bootstrap, topic)
    assert counted == Counter((record.header(b"to") or b"").decode() for record in seen)
