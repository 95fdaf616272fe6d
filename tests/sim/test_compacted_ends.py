"""A compacted topic that loses its end behind a hole: its last offsets have no batch, and no response ever reaches the end."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

from overlay.config import Loaded
from overlay.kafka.admin import Admin
from overlay.kafka.connection import open_client
from overlay.worker.dispatch_io.interest import Readers
from tests.output.pressing import Settings

from .host import Worker, read_config, warm_up
from .reading import read_topic
from .scenes import await_records, until
from .world import World
from .writing import New, send, write

INDEX = "overlay.S.index"
HEADERS = 3


def configure(world: World) -> Loaded:
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 1}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "t.{key}"}, "index": {"chunk_age": "1s"}}],
        [{"stream": "S", "durable_name": "c", "deliver_subject": "out", "ack_policy": "none"}],
    )


def test_a_shard_is_taken_over_although_nothing_is_left_below_the_end_of_its_index() -> None:
    """Each header of a growing chunk replaces the one before it. The last one is lost, and the end is where it began."""
    warm_up()
    world = World(1, brokers=1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source")
        worker = Worker(world, "w", configure(world))
        worker.start()
        for number in range(HEADERS):
            await send(world, "source", [New(0, b"k", b"%d" % number)])
            await await_records(world, "out", number + 1)
            await until(lambda: len(read_topic(world.cluster, INDEX)) > number, "the chunk has another header")  # noqa: B023
        log = world.cluster.topics[INDEX].partitions[0].log
        await until(lambda: not log.producers.open, "the last header has its marker")
        worker.kill()
        last = read_topic(world.cluster, INDEX)[-1].offset
        world.cluster.configure(INDEX, {"delete.retention.ms": "1"})
        for _ in range(3):  # a marker goes once its records are gone and its horizon, which it gets then, is past
            with world.at_cluster("the index is compacted") as cluster:
                cluster.compact(INDEX, 0)
            await asyncio.sleep(1)
        with world.at_cluster("the index loses its end") as cluster:
            cluster.move_leader(INDEX, 0, 0, unclean=True, lose=log.end - last)
        assert log.end == last
        assert not any(segment.batches for segment in log.segments)
        worker.start()
        await send(world, "source", [New(0, b"k", b"more")])
        await await_records(world, "out", HEADERS + 1, 30.0)
        await worker.stop()

    world.run(history)


def test_the_records_end_of_an_output_is_found_although_nothing_is_left_above_it() -> None:
    world = World(2)

    async def history(world: World) -> None:
        world.cluster.create_topic("out", 1, {"cleanup.policy": "compact"})
        await write(world, "out", ["a", "b", "c", "b", "c"])
        with world.at_cluster("the first b and c are compacted away, and the last ones lost") as cluster:
            cluster.compact("out", 0)
            cluster.move_leader("out", 0, unclean=True, lose=2)
        nothing = cast("Any", None)
        client = await open_client({"bootstrap.servers": world.bootstrap})
        async with Admin({"bootstrap.servers": world.bootstrap}) as admin:
            assert await admin.find_bounds([("out", 0)]) == {("out", 0): (0, 3)}
            readers = Readers(client, admin, {}, {}, nothing)
            output_topic = replace(Settings().make_output_topic(), needs_key=True)
            assert await readers._find_ends(output_topic) == {0: 1}
        await client.close()

    world.run(history)
