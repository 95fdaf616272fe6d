"""An index topic that loses its end, or rounds from its midst: the stream stops, since sequences are unknown, until an operator
deletes the topic and resets the stream."""

from __future__ import annotations

import asyncio

import pytest

from overlay.config import Loaded
from overlay.kafka.admin import Admin
from overlay.state.amend import amend
from overlay.view.rewind import Where, plan_rewind
from overlay.view.stored import read_memory

from .host import Worker, read_config, warm_up
from .scenes import await_values, read_sequences, read_values, until
from .test_lost_markers import run_as_process
from .world import World
from .writing import write_under_one_key

FIRST = [str(number) for number in range(5)]
LATER = [str(number) for number in range(5, 8)]
INDEX = "overlay.S.index"


def configure(world: World) -> Loaded:
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 1}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}],
        [{"stream": "S", "durable_name": "c", "deliver_subject": "out", "ack_policy": "none"}],
    )


async def reset(loaded: Loaded) -> None:
    """Begin the stream anew at its start, as `overlay stream reset` does."""
    rewind = plan_rewind(loaded, await read_memory(loaded), "S", Where.START)
    async with Admin(loaded.service.kafka) as admin:
        await amend(loaded.service, admin, rewind.change)


def find_reason(worker: Worker) -> str:
    """Return why a worker does not read the stream, empty if it does."""
    manager = worker.service.shard_manager
    sessions = manager.sessions if manager is not None else []
    return next((session.assignment.stopped.get("S", "") for session in sessions), "")


@pytest.mark.parametrize("is_end", [True, False])
def test_a_stream_stops_whose_ledger_has_lost_rounds(is_end: bool) -> None:
    """`is_end`: whether the last rounds are lost; else the marker of one of them is, which an operator then aborts, and the
    worker writes further ones."""
    warm_up()
    world = World(1, brokers=1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source", 2)
        loaded = configure(world)
        worker = Worker(world, "w", loaded)
        worker.start()
        await asyncio.sleep(10)
        await write_under_one_key(world, "source", FIRST[:2], partition=0)
        await await_values(world, "out", FIRST[:2])
        await write_under_one_key(world, "source", FIRST[2:], partition=1)
        await await_values(world, "out", FIRST)
        partition = world.cluster.topics[INDEX].partitions[0]
        await until(lambda: not partition.log.producers.open, "the last round has its marker")
        with world.at_cluster("the index loses its end") as cluster:
            cluster.move_leader(INDEX, 0, 0, unclean=True, lose=4 if is_end else 1)
            cluster.transactions.abort_hanging(partition)
        if not is_end:
            await write_under_one_key(world, "source", LATER, partition=0)
            await await_values(world, "out", LATER)
        worker.kill()
        worker.start()
        await until(lambda: "has lost rounds of the ledger" in find_reason(worker), "the stream is stopped")
        if is_end:
            await write_under_one_key(world, "source", LATER, partition=0)
        before = len(read_values(world, "out"))
        world.cluster.delete_topic(INDEX)
        await run_as_process(world, reset(loaded))
        await until(lambda: len(read_values(world, "out")) == before + len(FIRST) + len(LATER), "all comes once more")
        assert {*read_values(world, "out")[before:]} == {*FIRST, *LATER}
        sequences = read_sequences(world, "out")[before:]
        assert len({*sequences}) == len(sequences)
        assert min(sequences) == 1
        await worker.stop()

    world.run(history)
