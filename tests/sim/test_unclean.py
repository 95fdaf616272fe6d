"""A log that loses its end while it is read, and grows past the place where its readers stand before they look again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import pytest
from aiokafka.client import AIOKafkaClient

from overlay.client.connection import Connection
from overlay.client.read.indexes import Indexes
from overlay.client.read.question import make_request
from overlay.client.read.reader import Progress, read_batches
from overlay.client.read.topic import describe_topic
from overlay.config import Loaded
from overlay.errors import OverlayError
from overlay.index.log_check import glimpse, void
from overlay.kafka.admin import Admin
from overlay.kafka.connection import open_client
from overlay.kafka.fetched import Changed, Fetched, Lost
from overlay.kafka.fetcher import Fetcher
from overlay.kafka.partition_fetch import PartitionFetch
from tests.index.partitions import Record, load, seal, stream

from .host import Worker, read_config, warm_up
from .scenes import LIST_OFFSETS, await_values, intercept, read_values, until
from .world import World
from .writing import write


def configure(world: World) -> Loaded:
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 3}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}],
        [{"stream": "S", "durable_name": "c", "deliver_subject": "out", "ack_policy": "none"}],
    )


async def cut(world: World, topic: str, lose: int) -> None:
    """Let a broker lead partition 0 that lacks the last offsets."""
    with world.at_cluster(f"an unclean election loses {lose} offsets of {topic}") as cluster:
        cluster.move_leader(topic, 0, unclean=True, lose=lose)


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("more", [4, 5, 8])
def test_a_log_that_was_cut_and_grew_past_the_position_is_noticed(partitions: int, more: int) -> None:
    """Without that, what came in the place of the lost records is passed over in silence."""
    warm_up()
    world = World(1, tells=True)

    async def history(world: World) -> None:
        world.cluster.create_topic("source", partitions)
        worker = Worker(world, "w", configure(world))
        worker.start()
        old = [f"old{number}" for number in range(10)]
        await write(world, "source", old)
        await await_values(world, "out", old)
        worker.freeze()
        await cut(world, "source", 5)
        await write(world, "source", [f"new{number}" for number in range(more)])
        worker.thaw()
        await write(world, "source", ["more0", "more1"])
        await until(lambda: any("stream stopped" in line for line in world.story), "the stream is stopped")
        await asyncio.sleep(120)
        assert read_values(world, "out") == old
        assert "truncated" in next(line for line in world.story if "stream stopped" in line)

    world.run(history)


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_clean_election_is_passed_over_in_silence(partitions: int) -> None:
    warm_up()
    world = World(1, tells=True)

    async def history(world: World) -> None:
        world.cluster.create_topic("source", partitions)
        worker = Worker(world, "w", configure(world))
        worker.start()
        values: list[str] = []
        for number in range(6):
            await write(world, "source", [f"v{number}"])
            values.append(f"v{number}")
            await await_values(world, "out", values)
            with world.at_cluster("another leader") as cluster:
                cluster.move_leader("source", 0)
        assert read_values(world, "out") == values
        assert not any("stream stopped" in line or "beginning again" in line for line in world.story)

    world.run(history)


@asynccontextmanager
async def connected(world: World) -> AsyncIterator[AIOKafkaClient]:
    client = await open_client({"bootstrap.servers": world.bootstrap})
    try:
        await client.add_topic("t")
        yield client
    finally:
        await client.close()


async def take(fetcher: Fetcher, partition_fetch: PartitionFetch) -> Fetched | Changed | Lost:
    """Wait for what comes next on a partition fetch."""
    async with asyncio.timeout(30):
        while (taken := partition_fetch.take()) is None:
            fetcher.changed.clear()
            await fetcher.changed.wait()
    assert isinstance(taken, Fetched | Changed | Lost)
    return taken


@pytest.mark.parametrize("lose", range(8))
def test_a_partition_fetch_compares_the_batch_before_a_position_that_it_was_led_to(lose: int) -> None:
    """A chunk header says which batch lies before the place where reading goes on: offset 4."""
    warm_up()
    world = World(1)

    async def history(world: World) -> None:
        world.cluster.create_topic("t")
        await write(world, "t", map(str, range(8)))
        if lose:
            await cut(world, "t", lose)
        await write(world, "t", map(str, range(20)))
        async with connected(world) as client:
            fetcher = Fetcher(client)
            partition_fetch = await fetcher.open("t", 0, 4, epoch=0)
            taken = await take(fetcher, partition_fetch)
            is_other = lose > 4
            assert taken == Changed(4, 8 - lose) if is_other else isinstance(taken, Fetched)
            partition_fetch.seek(4)
            assert isinstance(await take(fetcher, partition_fetch), Fetched), "without an epoch nothing is compared"
            await fetcher.close()

    world.run(history)


def test_a_loss_that_was_taken_and_not_acted_upon_is_told_again() -> None:
    """The reader may fail between the two, since Kafka does not answer it."""
    warm_up()
    world = World(1)

    async def history(world: World) -> None:
        world.cluster.create_topic("t")
        await write(world, "t", map(str, range(8)))
        await cut(world, "t", 5)
        async with connected(world) as client:
            fetcher = Fetcher(client)
            partition_fetch = await fetcher.open("t", 0, 8, epoch=0)
            for _ in range(3):
                assert await take(fetcher, partition_fetch) == Lost(8)
            await write(world, "t", map(str, range(20)))
            found = [await take(fetcher, partition_fetch) for _ in range(4)]
            assert found[1:] == [Changed(8, 3)] * 3, "the first may have been asked for before the log grew"
            await fetcher.close()

    world.run(history)


def test_a_partition_fetch_notices_a_topic_that_was_created_again() -> None:
    """Its epochs begin at 0 again."""
    warm_up()
    world = World(1)

    async def history(world: World) -> None:
        world.cluster.create_topic("t")
        with world.at_cluster("another leader") as cluster:
            cluster.move_leader("t", 0)
        await write(world, "t", map(str, range(8)))
        world.cluster.recreate_topic("t")
        await write(world, "t", map(str, range(20)))
        async with connected(world) as client:
            fetcher = Fetcher(client)
            assert await take(fetcher, await fetcher.open("t", 0, 8, epoch=1)) == Changed(8, 0)
            await fetcher.close()

    world.run(history)


@pytest.mark.parametrize("position", range(1, 8))
def test_a_batch_that_is_gone_cannot_be_compared(position: int) -> None:
    """Compaction has taken it, or retention; what is left is read."""
    warm_up()
    world = World(1)

    async def history(world: World) -> None:
        world.cluster.create_topic("t", 1, {"cleanup.policy": "compact"})
        await write(world, "t", map(str, range(8)))
        with world.at_cluster("another leader") as cluster:
            cluster.move_leader("t", 0)
        await write(world, "t", map(str, range(1, 8)))
        with world.at_cluster("all but the first of the old batches are compacted away") as cluster:
            cluster.compact("t", 0)
        async with connected(world) as client:
            fetcher = Fetcher(client)
            assert isinstance(await take(fetcher, await fetcher.open("t", 0, position, epoch=0)), Fetched)
            world.cluster.delete_before("t", 0, 8)
            assert isinstance(await take(fetcher, await fetcher.open("t", 0, 8, epoch=0)), Fetched)
            await fetcher.close()

    world.run(history)


@pytest.mark.parametrize("lose", range(7))
@pytest.mark.parametrize("again", [0, 2])
def test_chunks_between_the_old_and_the_new_end_are_void(lose: int, again: int) -> None:
    """The last chunk was made after the cut and holds, and so do those below the cut."""
    warm_up()
    world = World(1)

    async def history(world: World) -> None:
        world.cluster.create_topic("t")
        await write(world, "t", map(str, range(6)))
        async with connected(world) as client:
            log_positions = [(await glimpse(client, ("t", 0), row)).log_position for row in range(6)]
            left = 6 - lose
            if lose:
                await cut(world, "t", lose)
            await write(world, "t", map(str, range(8)))
            if again:
                await cut(world, "t", again)
                await write(world, "t", map(str, range(4)))
            await client.force_metadata_update()
            end = world.cluster.topics["t"].partitions[0].log.end
            log_positions += [(await glimpse(client, ("t", 0), row)).log_position for row in range(6, end)]
            chunks = load(stream(), [seal(stream(), [Record(n, "a")], n, n + 1) for n in range(end)])
            for row, log_position in enumerate(log_positions):
                chunks.epoch[row], chunks.crc[row] = log_position.epoch, log_position.crc
            await void(client, "S", ("t", 0), chunks, (0, end), compacted=False)
            assert len(chunks) == (left if lose else end)

    world.run(history)


@pytest.mark.parametrize("more", [0, 5, 9])
def test_a_reading_does_not_take_a_log_that_has_grown_again_for_the_old_one(more: int) -> None:
    """Its position is not in the log when it fetches, and is there again when it asks for the log's bounds.

    `more`: records behind those that take the place of the lost ones.
    """
    warm_up()
    world = World(1)
    found: list[int] = []

    async def read(ended: asyncio.Future[Exception]) -> None:
        kafka = {"bootstrap.servers": world.bootstrap}
        request = make_request(
            describe_topic("t", {}), is_named=False, now=0, columns=["offset"], follow=True, index=False
        )
        async with Connection(kafka, Admin(kafka)) as line:
            try:
                async with aclosing(read_batches(line, Indexes("overlay"), request, Progress())) as batches:
                    async for batch in batches:
                        found.extend(batch["offset"].to_pylist())
            except OverlayError as error:
                ended.set_result(error)

    async def history(world: World) -> None:
        world.cluster.create_topic("t")
        await write(world, "t", map(str, range(10)))
        ended: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        world.start("reader", read(ended))
        await until(lambda: len(found) == 10, "the reading has come to the end")
        asked: list[Callable[[], None]] = []
        intercept(world, LIST_OFFSETS, lambda answer, own: asked.append(lambda: own(answer)))
        await cut(world, "t", 5)
        await until(lambda: bool(asked), "the reading asks for the bounds of the log")
        await write(world, "t", [f"new{number}" for number in range(5 + more)])
        for answer in asked:
            answer()
        await write(world, "t", ["next"])
        async with asyncio.timeout(60):
            assert "truncated at 5, below the position 10" in str(await ended)
        assert found == [*range(10)]

    world.run(history)
