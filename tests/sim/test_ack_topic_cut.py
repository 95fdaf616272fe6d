"""An ack topic that loses its end in an unclean election: the acks that come in the place of the lost ones are heard."""

from __future__ import annotations

import asyncio

import pytest

from overlay.config import Loaded

from .host import Worker, read_config, warm_up
from .reading import read_topic
from .scenes import await_records
from .world import World
from .writing import ack, write_under_one_key

COUNT = 5
ACK_WAIT_S = 30
EARLY = 10
"""Acks that are heard before the election."""


def configure(world: World) -> Loaded:
    waits = {"ack_policy": "explicit", "ack_wait": f"{ACK_WAIT_S}s", "interest": "always"}
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 3}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}],
        [{"stream": "S", "durable_name": "c", "deliver_subject": "out", **waits}],
    )


@pytest.mark.parametrize("meanwhile", ["frozen", "down", "frozen after a restart"])
@pytest.mark.parametrize("lose", [1, 6, EARLY])
@pytest.mark.parametrize("more", [0, EARLY])
def test_acks_behind_the_cut_are_heard(meanwhile: str, lose: int, more: int) -> None:
    """`more`: acks that come besides, so that the topic grows past the place where it was read to, or does not."""
    warm_up()
    world = World(1)

    async def history(world: World) -> dict[bytes | None, int]:
        world.cluster.create_topic("source")
        worker = Worker(world, "w", configure(world))
        worker.start()
        await asyncio.sleep(5)
        await write_under_one_key(world, "source", map(str, range(COUNT)))
        first = await await_records(world, "out", COUNT)
        await ack(world, "S", first[:1] * EARLY)
        await asyncio.sleep(5)
        if meanwhile == "frozen after a restart":
            worker.kill()
            worker.start()
            await asyncio.sleep(5)
        if meanwhile == "down":
            worker.kill()
        else:
            worker.freeze()
        with world.at_cluster(f"an unclean election loses {lose} acks") as cluster:
            cluster.move_leader("overlay.S.acks", 0, unclean=True, lose=lose)
        await ack(world, "S", [*first[1:], *first[:1] * more])
        if meanwhile == "down":
            worker.start()
        else:
            worker.thaw()
        await asyncio.sleep(3 * ACK_WAIT_S)
        await worker.stop()
        values = [one.value for one in read_topic(world.cluster, "out")]
        return {value: values.count(value) for value in values}

    assert set(world.run(history).values()) == {1}
