"""Connections of aiokafka's clients that break without a word."""

from __future__ import annotations

from overlay.kafka.connection import open_client

from .kafka.settings import Settings
from .world import World


def test_a_connection_that_answers_nothing_is_left_for_another() -> None:
    """aiokafka alone would ask for metadata on it until the connection breaks."""
    world = World(1, brokers=1)

    async def history(world: World) -> None:
        client = await open_client({"bootstrap.servers": world.bootstrap}, request_timeout_ms=2_000)
        assert await client.force_metadata_update()
        world.faults.only, world.faults.stalled = {"MetadataRequest"}, 1.0
        assert not await client.force_metadata_update()
        assert not await client.force_metadata_update()
        world.faults.stalled = 0.0
        assert await client.force_metadata_update()
        await client.close()

    world.run(history)


def test_a_client_creates_no_topic_that_it_only_reads() -> None:
    """Brokers do so by default, and aiokafka alone lets them: a topic that was deleted would be back within seconds."""
    world = World(1, settings=Settings(auto_create_topics=True))

    async def history(world: World) -> None:
        client = await open_client({"bootstrap.servers": world.bootstrap})
        assert await client.add_topic("gone")
        assert client.cluster.partitions_for_topic("gone") is None
        assert "gone" not in world.cluster.topics
        await client.close()

    world.run(history)
