"""A control topic that loses its end in an unclean election: what it says then counts, also for a worker that slept."""

from __future__ import annotations

import asyncio

import pytest

from .asking import ask, await_answer
from .host import warm_up
from .reading import read_topic
from .scenes import until
from .test_deleted import CONFIG, CONTROL, is_known, start
from .world import World


@pytest.mark.parametrize("more", [0, 3, 10])
def test_a_lost_definition_does_not_count_for_a_worker_that_slept(more: int) -> None:
    """`more`: requests that come in the place of the lost records, so that the topic grows past the place where the worker has
    read to, or does not. The worker's fetch was answered before they came."""
    warm_up()
    world = World(1, brokers=1)

    async def history(world: World) -> None:
        (worker,) = await start(world, "w")
        before = world.cluster.topics[CONTROL].partitions[0].log.end
        await ask(world, "c1", "consumer.create", "S", config=CONFIG)
        assert "error" not in await await_answer(world, "c1")
        await until(lambda: is_known([worker]), "the consumer is served")
        await asyncio.sleep(5)
        worker.freeze()
        log = world.cluster.topics[CONTROL].partitions[0].log
        with world.at_cluster("an unclean election loses the definition") as cluster:
            cluster.move_leader(CONTROL, 0, 0, unclean=True, lose=log.end - before)
        assert not [one for one in read_topic(world.cluster, CONTROL) if one.key == b"consumer S c"]
        await asyncio.sleep(5)
        for number in range(more):
            await ask(world, f"i{number}", "consumer.list", "S")
        worker.thaw()
        await until(lambda: not is_known([worker]), "the consumer is not served any more")
        await ask(world, "c2", "consumer.create", "S", config=CONFIG)
        assert "error" not in await await_answer(world, "c2")
        assert is_known([worker])
        await worker.stop()

    world.run(history)
