"""Topics that are deleted and created again, and what is believed of the index of the old one."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from overlay.admin import Admin
from overlay.config import Loaded
from overlay.source.mark import Source
from overlay.worker.amend import amend, reset_stream

from .host import Worker, read_config, warm_up
from .scenes import await_values, read_values
from .world import World
from .writing import write_together

WANTED: dict[str, Any] = {"filter_subject": "s.wanted"}
CHUNK = 100


def configure(world: World, consumers: dict[str, dict[str, Any]]) -> Loaded:
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 3}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}, "index": {"chunk_records": CHUNK}}],
        [
            {"stream": "S", "durable_name": name, "deliver_subject": f"out-{name}", "ack_policy": "none", **more}
            for name, more in consumers.items()
        ],
    )


async def reset(world: World, loaded: Loaded, positions: dict[Source, int]) -> None:
    """What `overlay stream reset` does."""
    done = asyncio.Event()

    async def run() -> None:
        async with Admin(loaded.service.kafka) as admin:
            change = functools.partial(reset_stream, stream="S", positions=positions, snapshots={})
            await amend(loaded.service, admin, change)
        done.set()

    world.start("operator", run())
    await done.wait()


async def fill(world: World, keys: list[str]) -> None:
    """Write a chunk of records for each of these keys, one batch each; all of one chunk have its key."""
    for number, key in enumerate(keys):
        await write_together(world, "source", [f"{key}{number}-{each}" for each in range(CHUNK)], key=key)


def test_the_index_of_a_compacted_topic_that_was_created_again_is_made_anew() -> None:
    """Its chunks end where those of the old one did, and in the same epoch: nothing of the log tells the two apart."""
    warm_up()
    world = World(1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source", 1, {"cleanup.policy": "compact"})
        worker = Worker(world, "w", configure(world, {"old": {}}))
        worker.start()
        await fill(world, ["a", "b", "c"])
        await await_values(world, "out-old", ["c2-99"])
        await asyncio.sleep(20)
        await worker.stop()
        with world.at_cluster("the topic is created again") as cluster:
            cluster.recreate_topic("source")
        await fill(world, ["a", "wanted", "c"])
        loaded = configure(world, {"old": {}, "new": WANTED})
        await reset(world, loaded, {("source", 0): 3 * CHUNK})
        worker = Worker(world, "w", loaded)
        worker.start()
        wanted = [f"wanted1-{each}" for each in range(CHUNK)]
        await await_values(world, "out-new", wanted)
        assert read_values(world, "out-new") == wanted
        await worker.stop()

    world.run(history)
