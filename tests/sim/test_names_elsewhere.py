"""Acks of a consumer that one shard serves, in the other shards, which read the same ack topic."""

from __future__ import annotations

import asyncio
from typing import Any

from overlay.kafka.own_topics import shard_of

from .host import Worker, read_config, warm_up
from .reading import read_topic
from .scenes import await_values, until
from .test_changes import change
from .world import World
from .writing import ack, write

SHARDS = 2
NAMES = [next(f"c{n}" for n in range(99) if shard_of(("S", f"c{n}"), SHARDS) == shard) for shard in range(SHARDS)]


def describe(name: str) -> dict[str, Any]:
    return {"durable_name": name, "deliver_subject": f"out-{name}", "ack_policy": "explicit", "interest": "always"}


def test_acks_of_a_new_consumer_are_refused_by_no_shard() -> None:
    """The first was there from the beginning; the second comes to the other shard while both run."""
    warm_up()
    world, (old, new) = World(1, brokers=1), NAMES

    async def history(world: World) -> None:
        world.cluster.create_topic("source")
        service = {
            "kafka": {"bootstrap.servers": world.bootstrap},
            "shards": SHARDS,
            "fleet": {"publish": False},
            "topics": {"replication": 1},
        }
        stream: dict[str, Any] = {"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}
        worker = Worker(world, "w", read_config(service, [stream], [{"stream": "S", **describe(old)}]))
        worker.start()
        await write(world, "source", ["0", "1"])
        await await_values(world, f"out-{old}", ["0", "1"])
        await change(world, "r", config=describe(new))
        await await_values(world, f"out-{new}", ["0", "1"])
        manager = worker.service.shard_manager
        assert manager is not None
        for name in (new, old):
            await ack(world, "S", read_topic(world.cluster, f"out-{name}"))
        for name in NAMES:
            await until(lambda n=name: manager.find_info(("S", n)).num_ack_pending == 0, f"{name} has its acks")  # type: ignore[misc,union-attr]
        await asyncio.sleep(1)
        refused = worker.service.metrics.registry.get_sample_value
        assert not refused("overlay_acks_refused_total", {"reason": "unknown"})
        await worker.stop()

    world.run(history)
