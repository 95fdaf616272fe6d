"""The ledger that a job keeps: one writer at a time, and a service or another job continues it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from overlay.config import load
from overlay.errors import OverlayError
from overlay.index.ledger.ledger import Ledger
from overlay.index.topic import Index
from overlay.kafka.admin import connect
from overlay.kafka.log_position import TopicPartition
from overlay.kafka.own_topics import index_topic
from spark.job.keeping import StreamKeeper
from tests.support.kafka import NewTopicFixture, add_partitions
from tests.worker.scenes import Scene, await_caught_up, produce, read_committed, serve
from tests.worker.scenes import scene as scene


def keep(scene: Scene) -> StreamKeeper:
    loaded = load(scene.folder)
    return StreamKeeper(loaded.service, loaded.streams["S"])


def read_ledger(scene: Scene) -> Ledger:
    """The ledger as a reader of committed records finds it."""
    stream = load(scene.folder).streams["S"]
    topic = index_topic(scene.prefix, "S")

    async def read() -> Ledger:
        async with connect({"bootstrap.servers": scene.bootstrap}) as (admin, client):
            index = Index(stream)
            await client.add_topic(topic)
            await index.read(client, topic, (await admin.find_bounds([(topic, 0)]))[topic, 0][1])
            assert not index.foreign
            return index.ledger

    return asyncio.run(read())


def list_sequences(ledger: Ledger, ends: Mapping[TopicPartition, int]) -> list[int]:
    return [ledger.sequence_from(source, offset) for source, end in ends.items() for offset in range(end)]


def test_jobs_continue_what_others_have_written(scene: Scene, new_topic: NewTopicFixture) -> None:
    topic = new_topic(2)
    scene.add_stream("S", topic)
    for partition in (0, 1):
        produce(scene.bootstrap, topic, ["a"] * 10, partition=partition)
    p0, p1 = (topic, 0), (topic, 1)
    with keep(scene) as first, keep(scene) as second:
        assert first.extend({p0: 4, p1: 6})
        assert second.extend({p0: 5, p1: 6})
        # it was fenced, and takes the shard again
        assert first.extend({p0: 5, p1: 10})
        assert first.extend({p0: 10, p1: 10})
        # what has a sequence is given no other one
        assert second.extend({p0: 8, p1: 10})
    ledger = read_ledger(scene)
    assert list_sequences(ledger, {p0: 10, p1: 10}) == [
        *range(1, 5), 11, *range(16, 21),
        *range(5, 11), *range(12, 16),
    ]  # fmt: skip
    assert ledger.next_sequence == 21


def test_a_service_keeps_the_ledger_itself_and_continues_it(scene: Scene, new_topic: NewTopicFixture) -> None:
    topic = new_topic(2)
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "c")
    for partition in (0, 1):
        produce(scene.bootstrap, topic, ["a"] * 10, partition=partition)
    ends = {(topic, 0): 10, (topic, 1): 10}
    with keep(scene) as keeper:
        assert keeper.extend({(topic, 0): 10, (topic, 1): 3})
        with serve(scene) as served:
            await_caught_up(served, "c")
            assert not keeper.extend(ends)
    found = {(seen.partition, seen.token.sequence) for seen in read_committed(scene.bootstrap, output)}
    assert sorted(sequence for _, sequence in found) == list(range(1, 21))
    ledger = read_ledger(scene)
    assert list_sequences(ledger, ends) == list(range(1, 21))


@pytest.mark.parametrize("is_served", [False, True], ids=["by the job", "by the service before"])
def test_a_stream_that_gets_a_second_partition(scene: Scene, new_topic: NewTopicFixture, is_served: bool) -> None:
    """Sequences stay those by which records were delivered. What the service has numbered it extends itself."""
    topic = new_topic(1)
    scene.add_stream("S", topic)
    scene.add_consumer("S", "c")
    produce(scene.bootstrap, topic, ["a"] * 10, partition=0)
    if is_served:
        with serve(scene) as served:
            await_caught_up(served, "c")
    add_partitions(scene.bootstrap, topic, 2)
    produce(scene.bootstrap, topic, ["a"] * 5, partition=1)
    ends = {(topic, 0): 10, (topic, 1): 5}
    with keep(scene) as keeper:
        if is_served:
            with pytest.raises(OverlayError, match="run `overlay stream extend S`"):
                keeper.extend(ends, ((topic, 0), 7))
            assert read_ledger(scene).next_sequence == 1
        else:
            assert keeper.extend(ends, ((topic, 0), 7))
            assert list_sequences(read_ledger(scene), ends) == list(range(1, 16))
