"""A worker that is drained gives its shards to the others within a hand-over, and takes none until it is started anew."""

from __future__ import annotations

import asyncio
import itertools

from aiokafka import AIOKafkaProducer

from overlay.config import Loaded
from overlay.kafka.own_topics import shard_of

from .asking import ask, await_answer
from .host import Worker, read_config, warm_up
from .reading import read_topic
from .scenes import read_values, until
from .world import World

NAMES = ("a", "b", "f", "g")
"""Two consumers for each of two shards."""
HANDOVER_S = 3.0
"""Longest time without a delivery while shards move: a heartbeat of the other worker, the last commit, a takeover."""
EVERY_S = 0.1
"""Seconds between two records."""


def configure(world: World, worker: str) -> Loaded:
    consumers = [{"stream": "S", "durable_name": n, "deliver_subject": f"out-{n}", "ack_policy": "none"} for n in NAMES]
    service = {
        "kafka": {"bootstrap.servers": world.bootstrap},
        "shards": 2,
        "fleet": {"publish": False, "worker": worker},
    }
    return read_config(service, [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}], consumers)


def find_owned(worker: Worker) -> set[int]:
    """The shards that a worker has, as far as it knows."""
    manager = worker.service.shard_manager
    return set() if manager is None else set(manager.owned)


async def order(world: World, id: str, op: str, worker: Worker) -> None:
    """Drain a worker, or have it take shards again, and wait for the answer."""
    boot = worker.service._start.boot
    await ask(world, id, op, "", worker=worker.name, boot=boot)
    answer = await await_answer(world, id)
    assert answer["drained"] == (op == "worker.drain"), answer


def measure_gap(world: World, topic: str) -> float:
    """The longest time between two deliveries, by the broker's time on them, in seconds."""
    times = [record.timestamp for record in read_topic(world.cluster, topic)]
    return max(later - earlier for earlier, later in itertools.pairwise(times)) / 1000


async def write(world: World, enough: asyncio.Event, partitions: int = 1) -> int:
    """Write a record every EVERY_S until `enough`, into one partition after the other. Return how many there are."""
    count = 0
    async with AIOKafkaProducer(bootstrap_servers=world.bootstrap, enable_idempotence=True) as producer:
        while not enough.is_set():
            await producer.send_and_wait("source", str(count).encode(), key=b"k", partition=count % partitions)
            count += 1
            await asyncio.sleep(EVERY_S)
    return count


def test_a_drained_worker_hands_its_shards_over() -> None:
    warm_up()
    assert {shard_of(("S", name), 2) for name in NAMES} == {0, 1}
    world = World(31, brokers=1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source")
        first, second = (Worker(world, name, configure(world, name)) for name in ("first", "second"))
        first.start()
        second.start()
        await asyncio.sleep(1)

        async def await_owners(*wanted: int) -> None:
            """Wait until the workers have so many shards each, and all are served."""
            await until(
                lambda: (
                    [len(find_owned(each)) for each in (first, second)] == [*wanted]
                    and sum(len(each.service.sessions) for each in (first, second)) == 2
                ),
                f"{wanted} shards",
            )

        await await_owners(1, 1)
        enough = asyncio.Event()
        writing = asyncio.create_task(write(world, enough))
        await asyncio.sleep(5)
        await order(world, "one", "worker.drain", first)
        await await_owners(0, 2)
        await asyncio.sleep(5)
        await order(world, "two", "worker.undrain", first)
        await await_owners(1, 1)
        await asyncio.sleep(5)
        enough.set()
        count = await writing
        for name in NAMES:
            await until(lambda name=name: len(read_values(world, f"out-{name}")) >= count, name)  # type: ignore[misc]
            assert read_values(world, f"out-{name}") == [str(number) for number in range(count)], "each once, in order"
            assert measure_gap(world, f"out-{name}") < HANDOVER_S, name

        # a note about one start of a worker is none about the next
        await order(world, "three", "worker.drain", first)
        await await_owners(0, 2)
        await first.stop()
        first.start()
        await await_owners(1, 1)
        # drained workers serve what no other worker takes
        await order(world, "four", "worker.drain", first)
        await await_owners(0, 2)
        await order(world, "five", "worker.drain", second)
        await await_owners(1, 1)
        second.kill()
        await until(lambda: len(first.service.sessions) == 2, "the drained worker takes over")
        await first.stop()

    world.run(history)
