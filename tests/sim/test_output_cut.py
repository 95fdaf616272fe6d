"""An output that loses its end in an unclean election: what its readers may not have seen, and wait for an ack, comes again."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from overlay.config import Loaded

from .host import Worker, read_config, warm_up
from .reading import read_topic
from .scenes import await_records
from .world import World
from .writing import ack, write_under_one_key

COUNT = 10
ACK_WAIT_S = 10


def configure(world: World) -> Loaded:
    waits = {"ack_policy": "explicit", "ack_wait": f"{ACK_WAIT_S}s", "interest": "group"}
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 3}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}],
        [{"stream": "S", "durable_name": "c", "deliver_subject": "out", **waits}],
    )


async def commit(world: World, offset: int) -> None:
    """Have the consumer's reader group commit an offset of its output."""
    done = asyncio.Event()

    async def run() -> None:
        reader = AIOKafkaConsumer(bootstrap_servers=world.bootstrap, group_id="c", enable_auto_commit=False)
        await reader.start()
        reader.assign([TopicPartition("out", 0)])
        await reader.commit({TopicPartition("out", 0): offset})
        await reader.stop()
        done.set()

    world.start(f"reader-{offset}-{world.loop.now:g}", run())
    await done.wait()


@pytest.mark.parametrize("more", [0, 2])
def test_messages_of_lost_deliveries_come_again(more: int) -> None:
    """`more`: messages that are delivered and acked in the place of the lost ones. They do not fill it."""
    warm_up()
    world = World(1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source")
        worker = Worker(world, "w", configure(world))
        worker.start()
        await asyncio.sleep(5)
        for number in range(COUNT):
            await write_under_one_key(world, "source", [str(number)])
            await await_records(world, "out", number + 1)
        first = read_topic(world.cluster, "out")
        await ack(world, "S", first[:4])
        await commit(world, first[3].offset + 1)
        with world.at_cluster("an unclean election loses six deliveries") as cluster:
            cluster.move_leader(
                "out", 0, unclean=True, lose=cluster.topics["out"].partitions[0].log.end - first[4].offset
            )
        assert len(read_topic(world.cluster, "out")) == 4
        if more:
            await write_under_one_key(world, "source", [f"more{number}" for number in range(more)])
            found = await await_records(world, "out", 4 + more)
            await ack(world, "S", found[4:])
            await commit(world, found[-1].offset + 1)
        await asyncio.sleep(5 * ACK_WAIT_S)
        again = {one.value for one in read_topic(world.cluster, "out")[4 + more :]}
        assert again == {one.value for one in first[4:]}
        await worker.stop()

    world.run(history)
