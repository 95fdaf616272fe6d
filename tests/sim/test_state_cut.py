"""A state topic that loses its end: what the lost records had said is done again, and nothing is passed over."""

from __future__ import annotations

import asyncio

import pytest

from overlay.config import Loaded
from overlay.output.entry import Entry, press_entries
from overlay.output.record import Record
from overlay.output.transaction import Transactions

from .host import Worker, read_config, warm_up
from .reading import read_topic
from .scenes import await_records, await_values, read_values, until
from .test_lost_markers import run_as_process
from .world import World
from .writing import write_under_one_key

ACK_WAIT_S = 30
FIRST = [str(number) for number in range(5)]
LATER = [str(number) for number in range(5, 8)]
STATE = "overlay.state"


def configure(world: World, policy: str) -> Loaded:
    waits = {"ack_wait": f"{ACK_WAIT_S}s", "interest": "always"} if policy != "none" else {}
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 1}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}],
        [{"stream": "S", "durable_name": "c", "deliver_subject": "out", "ack_policy": policy, **waits}],
    )


def cut(world: World, lost: int | None = None) -> None:
    """Have the state lose its last offsets, all if None is given, and an operator abort what hangs then."""
    partition = world.cluster.topics[STATE].partitions[0]
    with world.at_cluster("an unclean election takes the end of the state") as cluster:
        cluster.move_leader(STATE, 0, 0, unclean=True, lose=partition.log.end if lost is None else lost)
    with world.at_cluster("an operator aborts what hangs") as cluster:
        cluster.transactions.abort_hanging(partition)


def is_settled(world: World) -> bool:
    """Return whether all transactions in the state have their markers."""
    return not world.cluster.topics[STATE].partitions[0].log.producers.open


async def deliver(world: World, values: list[str]) -> None:
    await write_under_one_key(world, "source", values)
    await await_values(world, "out", values)
    await until(lambda: is_settled(world), "the transaction has its marker in the state")


@pytest.mark.parametrize("lost", [None, 1])
def test_messages_that_wait_for_an_ack_come_again_after_a_loss(lost: int | None) -> None:
    """The owner goes on with what it has in memory, and writes what the next one reads. `lost`: all of the state, or the marker
    of the delivery alone, whose record an operator then aborts."""
    warm_up()
    world = World(1, brokers=1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source")
        worker = Worker(world, "w", configure(world, "explicit"))
        worker.start()
        await asyncio.sleep(10)
        await deliver(world, FIRST)
        cut(world, lost)
        await deliver(world, LATER)
        worker.kill()
        before = len(read_topic(world.cluster, "out"))
        worker.start()
        await asyncio.sleep(10 + 2 * ACK_WAIT_S)
        again = read_values(world, "out")[before:]
        assert {*FIRST, *LATER} <= {*again}
        await worker.stop()

    world.run(history)


def test_an_owner_that_notices_the_loss_goes_on_from_what_is_left() -> None:
    """All of the state is gone, so the consumer begins anew, and delivers each record once more in order."""
    warm_up()
    world = World(2, brokers=1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source")
        worker = Worker(world, "w", configure(world, "none"))
        worker.start()
        await asyncio.sleep(10)
        await deliver(world, FIRST)
        cut(world)
        await write_under_one_key(world, "source", LATER)
        await await_records(world, "out", len(FIRST) + len(FIRST) + len(LATER))
        await asyncio.sleep(10)
        assert read_values(world, "out") == [*FIRST, *FIRST, *LATER]
        await worker.stop()

    world.run(history)


@pytest.mark.parametrize("is_older", [True, False])
def test_a_state_record_of_an_earlier_owner_is_not_committed_as_the_last_one_was(is_older: bool) -> None:
    """The first owner's record is aborted, the second owner commits one. Then the state loses the second record and the marker
    of the abort. `is_older`: whether that is so; else the second owner's record alone is there, without its marker."""
    warm_up()
    world = World(3, brokers=1)
    kafka = {"bootstrap.servers": world.bootstrap}

    async def own(is_first: bool) -> Transactions:
        owner = Transactions(kafka, "overlay.shard.0", "state", 0)
        await owner.start(["state"])
        if is_first:
            await owner.begin()
            await owner.send(press_entries([Entry("state", Record(None, b"aborted"), 0)], 0))
            await owner.abort()
        else:
            await owner.begin()
            await owner.finish(b"committed")
        return owner

    async def write(world: World) -> None:
        owners = [await own(True), await own(False)]
        await until(lambda: world.cluster.topics["state"].partitions[0].log.last_stable == 4, "both have their markers")
        with world.at_cluster("the state loses its end") as cluster:
            cluster.move_leader("state", 0, 0, unclean=True, lose=3 if is_older else 1)
        heir = Transactions(kafka, "overlay.shard.0", "state", 0)
        await heir.start(["state"])
        await heir.end_lost([("state", 0)])
        await until(lambda: not world.cluster.topics["state"].partitions[0].log.producers.open, "its marker is written")
        assert read_values(world, "state") == ([] if is_older else ["committed"])
        for each in (*owners, heir):
            await each.close()

    async def history(world: World) -> None:
        world.cluster.create_topic("state")
        await run_as_process(world, write(world))

    world.run(history)
