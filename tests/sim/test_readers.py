"""Readers of histories: they go on after a failure of Kafka although aiokafka's consumers miss a new leader in some cases."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from .applications import Reader, Run
from .files import Files
from .host import Worker, warm_up
from .plan import ACKS, KEYS, SOURCE, STREAM, Consumer, Deed, Plan
from .scenes import await_records
from .world import World
from .writing import write_under_one_key

LOST = 5
HEARD_S = 60.0
"""Longest time until the reader takes messages again, in virtual seconds. A storm waits 180 s for progress."""


def test_a_pull_reader_goes_on_after_its_topic_lost_its_end() -> None:
    """The former leader follows the log that was cut: the reader's position is out of its range. aiokafka asks that broker
    where the log ends, and does not look for the new leader when the broker refuses."""
    warm_up()
    acked = {"ack_policy": "explicit", "delivery": "exactly_once", "ack_wait": "2s"}
    keys = frozenset(b"k%d" % number for number in range(KEYS))
    consumer = Consumer("c", {"stream": STREAM, "durable_name": "c", **acked}, keys, readers=1, deeds={Deed.ACK: 1.0})
    plan = replace(Plan.draw(0), brokers=3, partitions=1, shards=1, consumers=(consumer,), index={})
    world = World(1)

    async def history(world: World) -> None:
        for topic in (SOURCE, ACKS, consumer.output):
            world.cluster.create_topic(topic)
        run = Run(world, plan, Files({consumer.name: [consumer]}))
        worker = Worker(world, "w", run.files.read(world, plan))
        worker.start()
        Reader(run, consumer, 0).start()
        await asyncio.sleep(5)
        await write_under_one_key(world, SOURCE, ["0"])
        await await_records(world, ACKS, 1)
        with world.at_cluster(f"an unclean election loses {LOST} offsets") as cluster:
            cluster.move_leader(consumer.output, 0, unclean=True, lose=LOST)
        await write_under_one_key(world, SOURCE, ["1"])
        await await_records(world, ACKS, 2, HEARD_S)
        await worker.stop()

    world.run(history)
