"""Topics for dead letters that were just created, and that a broker does not know of yet."""

from __future__ import annotations

import asyncio

from overlay.config import Loaded

from .host import Worker, read_config, warm_up
from .kafka.settings import Settings
from .scenes import await_values, until
from .world import World
from .writing import write

CONSUMER = {
    "stream": "S", "durable_name": "c", "deliver_subject": "out", "ack_policy": "explicit", "ack_wait": "1s", "max_deliver": 1,
    "interest": "always", "dead_letter": "dead",
}  # fmt: skip


def configure(world: World, consumers: list[dict[str, object]]) -> Loaded:
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 3}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}],
        consumers,
    )


def test_dead_letters_are_written_though_a_broker_hears_late_of_their_topic() -> None:
    """The broker that made the topic breaks off, and the next one that is asked does not know the topic for half a second."""
    warm_up()
    world = World(1, settings=Settings(metadata_s=0.5))
    asked: list[str] = []

    def break_off(name: str, kind: str) -> None:
        """Cut the question after the first description of the topic."""
        is_made = "dead" in world.cluster.topics
        if name == "w" and is_made:
            asked.append(kind)
        is_next = asked.count("DescribeConfigsRequest") == 1 and kind == "TopicsRequest" and asked.count(kind) == 2
        world.faults.cut_before = 1.0 if is_next else 0.0

    async def history(world: World) -> None:
        world.cluster.create_topic("source")
        former = Worker(world, "w", configure(world, []))
        former.start()
        await asyncio.sleep(20)
        await former.stop()
        world.network.watch = break_off
        # all topics of its own are there, so that no session begins anew because one was made
        world.cluster.create_topic("overlay.S.acks")
        await asyncio.sleep(10)
        worker = Worker(world, "w", configure(world, [CONSUMER]))
        worker.start()
        await until(lambda: "dead" in world.cluster.topics, "the topic is made")
        await write(world, "source", ["a", "b"])
        await await_values(world, "out", ["a", "b"])
        await await_values(world, "dead", ["a", "b"])
        await worker.stop()

    world.run(history)
