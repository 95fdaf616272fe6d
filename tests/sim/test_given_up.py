"""Messages that were given up: known while the log has them, and forgotten with them."""

from __future__ import annotations

import asyncio

import pytest

from overlay.consumer.pending import Row

from .host import Worker, read_config, warm_up
from .scenes import await_values, until
from .world import World
from .writing import write


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("restarts", [False, True])
def test_messages_that_were_given_up_are_forgotten_once_the_log_has_lost_them(partitions: int, restarts: bool) -> None:
    """Else they go into every checkpoint, for as long as the consumer lives."""
    warm_up()
    world = World(1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source", partitions)
        loaded = read_config(
            {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 3}},
            [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}],
            [
                {
                    "stream": "S", "durable_name": "c", "deliver_subject": "out", "ack_policy": "explicit",
                    "ack_wait": "1s", "max_deliver": 2, "max_ack_pending": -1, "interest": "always",
                }
            ],
        )  # fmt: skip
        worker = Worker(world, "w", loaded)
        worker.start()
        values = [f"v{number}" for number in range(10)]
        await write(world, "source", values)

        def count_known() -> int:
            sessions = worker.service.sessions
            if not sessions or sessions[0].dispatch_loop is None:
                return -1
            pending = sessions[0].dispatch_loop.dispatcher.slots["S", "c"].machine.state.window.pending
            return int((pending.view("state") == Row.EXHAUSTED).sum())

        await await_values(world, "out", values)
        await asyncio.sleep(30)
        assert count_known() == 10
        with world.at_cluster("retention takes the first six") as cluster:
            cluster.delete_before("source", 0, 6)
        if restarts:
            await worker.stop()
            worker.start()
        await until(lambda: count_known() == 4, "six are forgotten, four are not")
        await asyncio.sleep(120)
        assert count_known() == 4
        worker.kill()
        await asyncio.sleep(5)
        worker.start()
        await asyncio.sleep(20)
        assert count_known() == 4
        await worker.stop()

    world.run(history)
