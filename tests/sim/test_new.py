"""`deliver_policy: new`: what was produced after the creation, whenever the consumer is first served."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from overlay.config import Loaded

from .asking import ask, await_answer
from .host import Worker, read_config, warm_up
from .reading import read_topic
from .scenes import await_values, until
from .world import World
from .writing import write_under_one_key

EARLIER, LATER, LAST = ["e0", "e1"], ["l0", "l1", "l2"], ["z"]
OWN = "overlay.control", "overlay.replies", "overlay.events", "overlay.S.index"
CONFIG: dict[str, Any] = {"durable_name": "c", "deliver_subject": "out", "ack_policy": "none", "filter_subject": "s.*"}


def configure(world: World, **more: Any) -> Loaded:
    """Return a folder with a stream, and with a consumer if there is more to say of it."""
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 1}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}],
        [{"stream": "S", **CONFIG, **more}] if more else [],
    )


@pytest.mark.parametrize("is_file", [True, False])
@pytest.mark.parametrize(
    ("policy", "expected"),
    [("new", LATER + LAST), ("last", EARLIER[-1:] + LATER + LAST), ("last_per_subject", EARLIER[-1:] + LATER + LAST)],
)
def test_a_consumer_that_is_served_late_begins_where_it_was_created(
    policy: str, expected: list[str], is_file: bool
) -> None:
    """Its output topic has no leader at first, and a broker that is away leads it."""
    warm_up()
    world = World(1, brokers=2)

    async def history(world: World) -> list[str]:
        at_home, away = world.cluster.brokers
        world.cluster.create_topic("out", assignment=[[away]])
        for name in ("source", "overlay.state", *OWN):
            world.cluster.create_topic(name, assignment=[[at_home]])
        world.cluster.coordinators = [at_home] * len(world.cluster.coordinators)
        await write_under_one_key(world, "source", EARLIER)
        with world.at_cluster("the output is away") as cluster:
            cluster.stop(away)
        worker = Worker(world, "w", configure(world, deliver_policy=policy) if is_file else configure(world))
        worker.start()
        await asyncio.sleep(15)
        if not is_file:
            await ask(world, "c1", "consumer.create", "S", config={**CONFIG, "deliver_policy": policy})
            assert "error" not in await await_answer(world, "c1")
        await write_under_one_key(world, "source", LATER)
        with world.at_cluster("the output is back") as cluster:
            cluster.start(away)
        await asyncio.sleep(90)
        await write_under_one_key(world, "source", LAST)
        await asyncio.sleep(20)
        await worker.stop()
        return [(one.value or b"").decode() for one in read_topic(world.cluster, "out")]

    assert world.run(history) == expected


def test_records_of_a_transaction_that_is_open_at_the_creation_are_not_new() -> None:
    """Those of it that are produced later are."""
    warm_up()
    world = World(2, brokers=1)

    async def history(world: World) -> list[str]:
        world.cluster.create_topic("source")
        worker = Worker(world, "w", configure(world))
        worker.start()
        await asyncio.sleep(10)
        bank = AIOKafkaProducer(bootstrap_servers=world.bootstrap, transactional_id="bank")
        async with bank:
            await bank.begin_transaction()
            for value in EARLIER:
                await bank.send_and_wait("source", value.encode(), key=b"k", partition=0)
            await ask(world, "c1", "consumer.create", "S", config={**CONFIG, "deliver_policy": "new"})
            assert "error" not in await await_answer(world, "c1")
            for value in LATER:
                await bank.send_and_wait("source", value.encode(), key=b"k", partition=0)
            await bank.commit_transaction()
        await write_under_one_key(world, "source", LAST)
        await asyncio.sleep(20)
        await worker.stop()
        return [(one.value or b"").decode() for one in read_topic(world.cluster, "out")]

    assert world.run(history) == LATER + LAST


async def begin_transaction(world: World) -> None:
    """Write the earlier records to the source in a transaction that does not end."""

    async def write() -> None:
        bank = AIOKafkaProducer(
            bootstrap_servers=world.bootstrap, transactional_id="bank", transaction_timeout_ms=900_000
        )
        await bank.start()
        await bank.begin_transaction()
        for value in EARLIER:
            await bank.send_and_wait("source", value.encode(), key=b"k", partition=0)

    log = world.cluster.topics["source"].partitions[0].log
    world.start("bank", write())
    await until(lambda: log.end == len(EARLIER), "the transaction has records")
    world.kill("bank")


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("is_served_late", [False, True])
def test_records_in_the_place_of_lost_ones_are_new(is_served_late: bool, partitions: int) -> None:
    """A transaction was open when the consumer was created, so that nothing was read that the log then loses. `is_served_late`:
    whether the consumer is served only after the loss."""
    warm_up()
    world = World(3, brokers=1)

    async def history(world: World) -> list[str]:
        world.cluster.create_topic("source", partitions)
        world.cluster.create_topic("out")
        worker = Worker(world, "w", configure(world))
        worker.start()
        await asyncio.sleep(10)
        await begin_transaction(world)
        if is_served_late:
            world.cluster.remove_leader("out", 0)
        await ask(world, "c1", "consumer.create", "S", config={**CONFIG, "deliver_policy": "new"})
        assert "error" not in await await_answer(world, "c1")
        worker.kill()
        with world.at_cluster("the source loses its end") as cluster:
            cluster.move_leader("source", 0, 0, unclean=True, lose=len(EARLIER))
            if is_served_late:
                cluster.restore_leader("out", 0)
        worker.start()
        await asyncio.sleep(30)
        await write_under_one_key(world, "source", LATER + LAST)
        await await_values(world, "out", LATER + LAST, 30.0)
        await worker.stop()
        return [(one.value or b"").decode() for one in read_topic(world.cluster, "out")]

    assert world.run(history) == LATER + LAST
