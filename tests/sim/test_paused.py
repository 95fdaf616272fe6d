"""A consumer without acks has a machine only while it is paused or paced. What its machine did not deliver is delivered
without it afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from overlay.config import Loaded

from .asking import ask, await_answer
from .host import Worker, read_config, warm_up
from .kafka.session import Answer
from .scenes import await_values, intercept
from .world import World
from .writing import New, send

LIST_OFFSETS = 2
"""The API key of these requests."""
PARTITIONS = 3


def configure(world: World) -> Loaded:
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 1}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}],
        [{"stream": "S", "durable_name": "c", "deliver_subject": "out", "ack_policy": "none"}],
    )


def be_silent(answer: Answer, own: Callable[[Answer], None]) -> None:
    """Do not answer questions for the offsets of the output."""
    if all(topic != "out" for topic, *_ in answer.request.topics):
        own(answer)


def test_what_came_in_several_partitions_during_a_pause_is_delivered_after_it() -> None:
    """While the consumer's machine waits for a broker, reading goes on, and the state gets its positions with that. Records
    come in one partition first, so each partition needs a position of its own."""
    warm_up()
    world = World(1, brokers=1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source", PARTITIONS)
        worker = Worker(world, "w", configure(world))
        worker.start()
        await send(world, "source", [New(0, b"k", b"before")])
        await await_values(world, "out", ["before"])
        handlers = dict(world.cluster._handlers)
        intercept(world, LIST_OFFSETS, be_silent)
        await ask(world, "1", "consumer.pause", "S", consumer="c", pause_until="2099-01-01T00:00:00Z")
        assert "error" not in await await_answer(world, "1")
        for partition in range(PARTITIONS):
            await asyncio.sleep(1)
            await send(world, "source", [New(partition, b"k", b"%d" % partition)])
        await asyncio.sleep(1)
        world.cluster._handlers.update(handlers)
        await ask(world, "2", "consumer.resume", "S", consumer="c")
        assert "error" not in await await_answer(world, "2")
        await await_values(world, "out", ["before", *map(str, range(PARTITIONS))])
        await worker.stop()

    world.run(history)
