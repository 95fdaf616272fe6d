"""A worker that has delivered and settled everything holds no more than before, however much that was."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np

from overlay.config import Loaded

from .host import Worker, read_config, warm_up
from .limits import RECORD_CACHE, read_limits
from .memory import measure
from .scenes import await_records
from .world import World
from .writing import New, ack, send

RECORDS = 100
"""In each partition, in each round."""
ROUNDS = 6
SLACK = 30_000
"""By how many bytes a worker may have grown in ROUNDS rounds: dictionaries grow in steps. It is less than 10 bytes a message of
each consumer, and a message that is kept takes fifty."""


def configure(world: World) -> Loaded:
    """A stream of two partitions with a ledger and small chunks; a consumer with acks, one without, one with a filter."""
    common: dict[str, Any] = {"stream": "S", "delivery": "exactly_once"}
    acked = {"ack_policy": "explicit", "ack_wait": "30s", "interest": "always"}
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 1}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}, "index": {"chunk_age": "1s"}}],
        [
            common | {"durable_name": "a", "deliver_subject": "out-a"} | acked,
            common | {"durable_name": "b", "deliver_subject": "out-b", "ack_policy": "none"},
            common | {"durable_name": "c", "deliver_subject": "out-c", "ack_policy": "none", "filter_subject": "s.k1"},
        ],
    )


def test_what_is_settled_is_not_held() -> None:
    warm_up()
    world = World(1, brokers=1, limits=read_limits({RECORD_CACHE: 5_000}))

    async def history(world: World) -> None:
        world.cluster.create_topic("source", 2)
        worker = Worker(world, "w", configure(world))
        worker.start()
        await asyncio.sleep(10)
        sizes: list[int] = []
        for number in range(2 * ROUNDS):
            await _write(world, number)
            count = 2 * RECORDS * (number + 1)
            delivered = await await_records(world, "out-a", count)
            await await_records(world, "out-b", count)
            await ack(world, "S", delivered[-2 * RECORDS :])
            await asyncio.sleep(60)
            sizes.append(measure(worker.service))
        assert max(sizes[ROUNDS:]) <= sizes[ROUNDS - 1] + SLACK, sizes
        await worker.stop()

    world.run(history)


def test_the_measure_sees_arrays_and_what_objects_lead_to() -> None:
    held = SimpleNamespace(some=[np.zeros(1_000, np.int64)], loop=asyncio.Event())
    before = measure(held)
    held.some.append({"more": SimpleNamespace(data=np.zeros(2_000, np.int64))})
    held.loop.more = np.zeros(1_000_000)
    assert 8_000 < before < 20_000
    assert 16_000 < measure(held) - before < 20_000


async def _write(world: World, number: int) -> None:
    records = [New(partition, b"k%d" % (each % 2), b"%d" % number) for partition in (0, 1) for each in range(RECORDS)]
    await send(world, "source", records)
