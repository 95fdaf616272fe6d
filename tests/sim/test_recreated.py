"""Topics that are deleted and created again, and what is believed of the index of the old one."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from overlay.config import Loaded
from overlay.kafka.admin import Admin
from overlay.kafka.log_position import TopicPartition
from overlay.state.amend import amend, reset_stream

from .host import Worker, read_config, warm_up
from .kafka.codes import Code
from .scenes import await_records, await_values, read_sequences, read_values
from .world import World
from .writing import write, write_together

WANTED: dict[str, Any] = {"filter_subject": "s.wanted"}
CHUNK = 100


def configure(world: World, consumers: dict[str, dict[str, Any]], *, shards: int = 1) -> Loaded:
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": shards, "topics": {"replication": 3}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}, "index": {"chunk_records": CHUNK}}],
        [
            {"stream": "S", "durable_name": name, "deliver_subject": f"out-{name}", "ack_policy": "none", **more}
            for name, more in consumers.items()
        ],
    )


async def reset(world: World, loaded: Loaded, positions: dict[TopicPartition, int]) -> None:
    """What `overlay stream reset` does."""
    done = asyncio.Event()

    async def run() -> None:
        async with Admin(loaded.service.kafka) as admin:
            change = functools.partial(reset_stream, stream="S", positions=positions, snapshots={})
            await amend(loaded.service, admin, change)
        done.set()

    world.start("operator", run())
    await done.wait()


@pytest.mark.parametrize("seed", range(2))
def test_a_shard_waits_until_the_ledger_of_another_one_knows_of_the_new_topic(seed: int) -> None:
    """The ledger as it was numbers records of the old topic, at the same offsets."""
    warm_up()
    world = World(seed)

    async def history(world: World) -> None:
        world.cluster.create_topic("source", 2)
        loaded = configure(world, {f"c{number}": {} for number in range(4)}, shards=2)
        worker = Worker(world, "w", loaded)
        worker.start()
        for partition in range(2):
            await write(world, "source", [f"old{partition}-{number}" for number in range(5)], partition=partition)
        for number in range(4):
            await await_records(world, f"out-c{number}", 10)
        await worker.stop()
        world.cluster.recreate_topic("source")
        for partition in range(2):
            await write(world, "source", [f"new{partition}-{number}" for number in range(8)], partition=partition)
        await reset(world, loaded, {("source", partition): 0 for partition in range(2)})
        world.cluster.refuse_produce("overlay.S.index", Code.TOPIC_AUTHORIZATION_FAILED)
        worker.start()
        await asyncio.sleep(30)
        world.cluster.refuse_produce("overlay.S.index", Code.NONE)
        for number in range(4):
            await await_records(world, f"out-c{number}", 26)
        values = [value for number in range(4) for value in read_values(world, f"out-c{number}")]
        sequences = [sequence for number in range(4) for sequence in read_sequences(world, f"out-c{number}")]
        assert len(set(zip(sequences, values, strict=True))) == len(set(sequences)) == 26
        await worker.stop()

    world.run(history)


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
