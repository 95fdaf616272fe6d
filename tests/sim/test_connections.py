"""Connections of aiokafka's clients that break without a word."""

from __future__ import annotations

from overlay.kafka.connection import open_client

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
