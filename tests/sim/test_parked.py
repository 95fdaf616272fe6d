"""A consumer that left its cursor since too much was undelivered comes back to it."""

from __future__ import annotations

import asyncio

from overlay.config import Loaded
from overlay.kafka.admin import Admin
from overlay.kafka.log_position import LogPosition
from overlay.state.amend import amend
from overlay.state.shard_state import ConsumerState, Delta, ShardState

from .host import Worker, read_config, warm_up
from .scenes import await_values
from .world import World
from .writing import write_under_one_key

ID = ("S", "c")
FULL = 8
"""Undelivered messages with which a consumer leaves its cursor."""


def configure(world: World) -> Loaded:
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 1}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}],
        [
            {
                "stream": "S",
                "durable_name": "c",
                "deliver_subject": "out",
                "ack_policy": "explicit",
                "ack_wait": "1h",
                "interest": "always",
            }
        ],
    )


def put_back(state: ShardState) -> Delta:
    """Let the consumer read from the start, while its machine knows what was delivered."""
    own = {("source", 0): LogPosition(0)}
    return Delta(consumers={ID: ConsumerState(state.consumers[ID].sequence, own)})


def test_a_consumer_that_is_offered_what_it_has_delivered_does_not_stay_parked() -> None:
    warm_up()
    world = World(1, brokers=1, limits={"overlay.worker.backpressure.FULL": FULL})

    async def history(world: World) -> None:
        world.cluster.create_topic("source")
        loaded = configure(world)
        worker = Worker(world, "w", loaded)
        worker.start()
        before = [str(number) for number in range(2 * FULL)]
        await write_under_one_key(world, "source", before)
        await await_values(world, "out", before)
        await worker.stop()
        async with Admin(loaded.service.kafka) as admin:
            assert await amend(loaded.service, admin, put_back) == [0]
        # records come after the first step of the machine, which would let them go
        world.faults.only, world.faults.slow, world.faults.slow_s = {"FetchRequest"}, 1.0, (1.0, 1.0)
        worker.start()
        await asyncio.sleep(20)
        await write_under_one_key(world, "source", ["last"])
        await await_values(world, "out", ["last"])
        await worker.stop()

    world.run(history)
