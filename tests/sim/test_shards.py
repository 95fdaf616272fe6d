"""A shard that has lost its session is served again, whatever ended it; a worker that is stopped ends in good time."""

from __future__ import annotations

import asyncio

import pytest

from overlay.config import Loaded
from overlay.errors import SourceUnavailable
from overlay.kafka.connection import open_client
from overlay.kafka.own_topics import shard_id, workers_group
from overlay.output.transaction import Transactions
from overlay.worker.kept.indexes import open_indexes
from overlay.worker.membership import Membership

from .host import Worker, read_config, warm_up
from .kafka.cluster import GROUP, TRANSACTION
from .scenes import await_values, until
from .world import World
from .writing import write_under_one_key

LOST_S = 20.0
"""Seconds until a cluster gives up a broker of which nothing is heard: longer than a transaction is tried for."""
SOON_S = 10.0
"""Longest time from SIGTERM to the end of a worker that has nothing to commit."""


def configure(world: World) -> Loaded:
    return read_config(
        {
            "kafka": {"bootstrap.servers": world.bootstrap},
            "shards": 1,
            "topics": {"replication": len(world.cluster.brokers)},
        },
        [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}],
        [{"stream": "S", "durable_name": "c", "deliver_subject": "out", "ack_policy": "none"}],
    )


async def start(world: World) -> Worker:
    """Start a worker, and wait until it has delivered something."""
    world.cluster.create_topic("source")
    worker = Worker(world, "w", configure(world))
    worker.start()
    await deliver(world, "first")
    return worker


async def deliver(world: World, value: str) -> None:
    """Write a record, and wait until it is delivered."""
    await write_under_one_key(world, "source", [value])
    await await_values(world, "out", [value])


def test_an_unforeseen_error_ends_a_session_alone() -> None:
    """A fault of the service's own, twice."""
    warm_up()
    raised: list[int] = []

    async def fail_twice(*arguments: object) -> object:
        if len(raised) < 2:
            raised.append(len(raised))
            raise ZeroDivisionError
        return await open_indexes(*arguments)  # type: ignore[arg-type]

    world = World(1, brokers=1, limits={"overlay.worker.shard.open_indexes": fail_twice})

    async def history(world: World) -> None:
        worker = await start(world)
        worker.check_end()
        await worker.stop()

    world.run(history)
    assert len(raised) == 2


def test_a_task_that_another_one_cancels_ends_a_session_alone() -> None:
    warm_up()
    world = World(2, brokers=1)

    async def history(world: World) -> None:
        worker = await start(world)
        tasks = [task for task in asyncio.all_tasks() if task.get_name() == "trim"]
        assert len(tasks) == 1
        tasks[0].cancel()
        await asyncio.sleep(5)
        await deliver(world, "second")
        await worker.stop()

    world.run(history)


def test_a_group_that_kafka_has_forgotten_counts_its_generations_anew() -> None:
    warm_up()
    world = World(3, brokers=1)

    async def history(world: World) -> None:
        worker = await start(world)
        for _ in range(3):
            await worker.stop()
            worker.start()
            await until(lambda: bool(worker.service.sessions), "a session")
        await worker.stop()
        with world.at_cluster("groups without members are forgotten") as cluster:
            generations = {name: group.generation for name, group in cluster.groups.known.items()}
            cluster.groups.forget_empty()
        assert max(generations.values()) > 1
        worker.start()
        await deliver(world, "second")
        await worker.stop()

    world.run(history)


def test_a_coordinator_that_does_not_answer_holds_up_no_end() -> None:
    warm_up()
    world = World(4, brokers=1)

    async def history(world: World) -> float:
        worker = await start(world)
        world.faults.only, world.faults.stalled = {"LeaveGroupRequest"}, 1.0
        began = world.loop.now
        await worker.stop()
        return world.loop.now - began

    assert world.run(history) < SOON_S


def test_a_broker_that_takes_no_bytes_holds_up_no_session() -> None:
    """The host of the output's leader is gone without a word while the worker sends: what is left in the connection's buffer
    can never be sent. Other brokers lead its partitions soon after."""
    warm_up()
    world = World(5, tells=True)

    async def history(world: World) -> float:
        worker = await start(world)
        cluster = world.cluster
        busy = {
            cluster.coordinator(workers_group("overlay"), GROUP),
            cluster.coordinator(shard_id("overlay", 0), TRANSACTION),
        }
        leader = next(broker for broker in cluster.brokers if broker not in busy)
        with world.at_cluster("another leader"):
            cluster.move_leader("out", 0, leader)
        await deliver(world, "second")
        world.faults.parted.add(("w", leader))
        world.faults.clogged.add(("w", leader))
        began = world.loop.now
        await write_under_one_key(world, "source", ["last"])
        await asyncio.sleep(LOST_S)
        with world.at_cluster("the controller gives the broker up") as cluster:
            cluster.stop(leader)
        await await_values(world, "out", ["last"], 600)
        found = world.loop.now - began
        await worker.stop()
        return found

    assert world.run(history) < 60
    ends = [line for line in world.story if "beginning again" in line]
    assert len(ends) == 1 and "out-0: not taken within" in ends[0], "the session says why it has ended"


def test_a_broker_that_its_controller_does_not_hear_is_waited_for() -> None:
    """It answers all the while, and lists no broker. Workers that start meanwhile find none to ask."""
    warm_up()
    world = World(9, brokers=1)

    async def history(world: World) -> None:
        worker = await start(world)
        for pause_s in (1.0, 15.0, 60.0):
            with world.at_cluster("no broker is heard") as cluster:
                cluster.lapse(cluster.brokers[0])
            await asyncio.sleep(pause_s / 2)
            world.kill("w")
            worker.start()
            await asyncio.sleep(pause_s / 2)
            with world.at_cluster("the broker is heard again") as cluster:
                cluster.rejoin(cluster.brokers[0])
            await deliver(world, f"after {pause_s}")
        worker.check_end()
        await worker.stop()

    world.run(history)


def test_nothing_starts_at_a_broker_that_its_controller_does_not_hear() -> None:
    world = World(10, brokers=1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source")
        world.cluster.lapse(world.cluster.brokers[0])
        kafka = {"bootstrap.servers": world.bootstrap}
        transactions = Transactions(kafka, "t", "source", 0)
        membership = Membership(kafka, "overlay", "overlay.state")
        for start in (open_client(kafka), transactions.start(["source"]), membership.start()):
            with pytest.raises(SourceUnavailable, match="lists no broker"):
                await start
        world.cluster.rejoin(world.cluster.brokers[0])
        transactions = Transactions(kafka, "t", "source", 0)
        await transactions.start(["source"])
        await transactions.close()

    world.run(history)
