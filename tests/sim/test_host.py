"""Workers of the service on the simulated cluster: what is delivered, and that a seed tells all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from overlay.config import Loaded

from .host import Worker, read_config, warm_up
from .reading import read_topic
from .world import World

RECORDS = 1_000


def configure(world: World, *, shards: int = 1, consumers: int = 1) -> Loaded:
    return read_config(
        {
            "kafka": {"bootstrap.servers": world.bootstrap},
            "shards": shards,
            "topics": {"replication": len(world.cluster.brokers)},
        },
        [{"name": "ORDERS", "topics": ["orders"], "subject": {"template": "orders.{key}"}}],
        [
            {
                "stream": "ORDERS",
                "durable_name": f"c{number}",
                "deliver_subject": f"out-{number}",
                "ack_policy": "none",
                "delivery": "exactly_once",
            }
            for number in range(consumers)
        ],
    )


async def produce(world: World, count: int, pause_s: float = 0.0) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=world.bootstrap, enable_idempotence=True)
    await producer.start()
    for number in range(count):
        await producer.send("orders", b"v%d" % number, key=b"k%d" % (number % 7), partition=number % 3)
        if pause_s:
            await asyncio.sleep(pause_s)
    await producer.flush()
    await producer.stop()


async def await_output(world: World, topic: str, count: int, seconds: float = 120.0) -> None:
    """Wait until a topic has so many records. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while len(read_topic(world.cluster, topic)) < count:  # noqa: ASYNC110
            await asyncio.sleep(1.0)


def deliver(seed: int, *, kill: bool = False, workers: int = 1) -> World:
    """Run a history of 1,000 records and check its output; with `kill` the first worker is killed and started again."""
    warm_up()
    world = World(seed)

    async def history(world: World) -> None:
        world.cluster.create_topic("orders", 3)
        loaded = configure(world, shards=workers, consumers=workers)
        started = [Worker(world, f"w{number}", loaded) for number in range(workers)]
        for worker in started:
            worker.start()
        world.start("app", produce(world, RECORDS, 0.01))
        if kill:
            await asyncio.sleep(5 + world.loop.chance.random() * 5)
            started[0].kill()
            await asyncio.sleep(3)
            started[0].start()
        for number in range(workers):
            await await_output(world, f"out-{number}", RECORDS)
        for worker in started:
            await worker.stop()

    world.run(history)
    for number in range(workers):
        found = [one.value for one in read_topic(world.cluster, f"out-{number}")]
        assert len(found) == RECORDS
        for partition in range(3):
            of_partition = {b"v%d" % number: number for number in range(partition, RECORDS, 3)}
            assert [of_partition[value] for value in found if value in of_partition] == sorted(of_partition.values())
    return world


def tell(world: World) -> tuple[Any, ...]:
    return world.network.digest, world.network.requests, world.loop.now, world.loop.steps


def test_a_seed_gives_one_history() -> None:
    first, again, other = (tell(deliver(seed)) for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_two_workers_deliver_exactly_once_over_a_kill() -> None:
    first, again = (deliver(seed, kill=True, workers=2) for seed in (3, 3))
    assert tell(first) == tell(again)


def test_an_idle_worker_asks_each_broker_for_records_once_in_a_wait() -> None:
    """One partition on each broker: that others have one as well must not make fetches shorter."""
    warm_up()
    world = World(1)

    async def history(world: World) -> int:
        world.cluster.create_topic("orders", 3)
        worker = Worker(world, "w0", configure(world))
        worker.start()
        await asyncio.sleep(20)
        before = world.network.counts["FetchRequest"]
        await asyncio.sleep(20)
        return world.network.counts["FetchRequest"] - before

    assert world.run(history) < 50


@pytest.mark.parametrize("seed", range(20))
def test_workers_that_are_stopped_in_a_rebalance_end(seed: int) -> None:
    """The group deals out the shards of the one to the other, which is about to leave as well."""
    warm_up()
    world = World(seed)

    async def history(world: World) -> None:
        world.cluster.create_topic("orders", 3)
        loaded = configure(world, shards=3)
        workers = [Worker(world, f"w{number}", loaded) for number in range(2)]
        for worker in workers:
            worker.start()
        await asyncio.sleep(10)
        joined = world.network.counts["JoinGroupRequest"]
        first = asyncio.create_task(workers[0].stop())
        while world.network.counts["JoinGroupRequest"] == joined:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02 * world.loop.chance.random())
        await asyncio.gather(first, workers[1].stop())

    world.run(history)


def test_a_worker_that_joined_while_kafka_restarted_serves_soon() -> None:
    """It leads the group and does not know the state topic's partitions: no member is given a shard until it does."""
    warm_up()
    world = World(1, brokers=1)

    async def history(world: World) -> float:
        world.cluster.create_topic("orders", 3)
        asked = asyncio.Event()
        world.network.watch = lambda _, kind: asked.set() if kind == "FindCoordinatorRequest" else None
        worker = Worker(world, "w0", configure(world))
        worker.start()
        await asked.wait()
        with world.at_cluster("the broker stops") as cluster:
            cluster.stop(0)
        await asyncio.sleep(4)
        with world.at_cluster("the broker starts") as cluster:
            cluster.start(0)
        began = world.loop.now
        async with asyncio.timeout(600):
            while not worker.service.sessions:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        return world.loop.now - began

    assert world.run(history) < 20


@pytest.mark.parametrize("kind", ["HeartbeatRequest", "JoinGroupRequest", "SyncGroupRequest"])
def test_a_worker_stops_while_kafka_is_away(kind: str) -> None:
    """A group's consumer that is in a rebalance waits for its end, for however long that takes."""
    warm_up()
    world = World(1)

    async def history(world: World) -> None:
        world.cluster.create_topic("orders", 3)
        loaded = configure(world, shards=2)
        workers = [Worker(world, f"w{number}", loaded) for number in range(2)]
        workers[0].start()
        await asyncio.sleep(10)
        asked = asyncio.Event()
        world.network.watch = lambda name, found: asked.set() if (name, found) == ("w0", kind) else None
        workers[1].start()
        await asked.wait()
        for broker in world.cluster.brokers:
            with world.at_cluster(f"broker {broker} stops") as cluster:
                cluster.stop(broker)
        await asyncio.sleep(20)
        await workers[0].stop()

    world.run(history)


@pytest.mark.parametrize("later_s", [0.0, 0.002])
@pytest.mark.parametrize("requests", range(1, 25))
def test_a_worker_that_starts_stops_when_kafka_goes_away(requests: int, later_s: float) -> None:
    """Whatever it waits for holds up no end. `requests`: how many it has sent when the network is about to be parted."""
    warm_up()
    world = World(1)
    sent: list[str] = []

    def part() -> None:
        world.faults.parted |= {("w0", broker) for broker in world.cluster.brokers}

    def note(name: str, kind: str) -> None:
        sent.append(kind)
        if len(sent) == requests:
            world.loop.call_later(later_s, part)

    async def history(world: World) -> None:
        world.cluster.create_topic("orders", 3)
        world.network.watch = note
        worker = Worker(world, "w0", configure(world))
        worker.start()
        await asyncio.sleep(2)
        began = world.loop.now
        await worker.stop()
        assert world.loop.now - began < 30

    world.run(history)
