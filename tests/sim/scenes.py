"""What scripted histories share: records written one by one, and waiting for what the service makes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from aiokafka import AIOKafkaProducer

from .host import Worker
from .reading import read_topic
from .world import World

DAY_S = 86_400.0


async def write(world: World, topic: str, values: Iterable[str], *, partition: int = 0, key: str = "k") -> None:
    """Produce one batch for each value, whose key is `key` followed by the value, and wait until all are acknowledged."""
    done = asyncio.Event()

    async def produce() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=world.bootstrap, enable_idempotence=True)
        await producer.start()
        for value in values:
            await producer.send_and_wait(topic, value.encode(), key=f"{key}{value}".encode(), partition=partition)
        await producer.stop()
        done.set()

    name = f"app-{sum(each.startswith('app-') for each in world.processes)}"
    world.start(name, produce())
    await done.wait()


async def write_together(
    world: World, topic: str, values: Sequence[str], *, partition: int = 0, key: str = "k"
) -> None:
    """Produce one batch with all values, under one key, and wait until it is acknowledged."""
    done = asyncio.Event()

    async def produce() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=world.bootstrap, enable_idempotence=True)
        await producer.start()
        batch = producer.create_batch()
        for value in values:
            assert batch.append(key=key.encode(), value=value.encode(), timestamp=None) is not None
        await (await producer.send_batch(batch, topic, partition=partition))
        await producer.stop()
        done.set()

    name = f"app-{sum(each.startswith('app-') for each in world.processes)}"
    world.start(name, produce())
    await done.wait()


def read_values(world: World, topic: str) -> list[str]:
    """Return the committed values of a topic, by partition and offset."""
    return [(record.value or b"").decode() for record in read_topic(world.cluster, topic)]


def read_sequences(world: World, topic: str) -> list[int]:
    """Return the stream sequences of the deliveries in an output topic, by partition and offset."""
    tokens = [record.header("Nats-Reply-To") or b"" for record in read_topic(world.cluster, topic)]
    return [int(token.split(b".")[-4]) for token in tokens]


async def until(is_so: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    """Wait until something is so. Raises AssertionError with `what` if that takes longer."""
    try:
        async with asyncio.timeout(seconds):
            while not is_so():  # noqa: ASYNC110
                await asyncio.sleep(0.5)
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} s: {what}") from None


async def await_values(world: World, topic: str, values: Iterable[str], seconds: float = 120.0) -> None:
    """Wait until a topic has each of these values. Raises AssertionError with those that are missing."""
    wanted = set(values)
    try:
        async with asyncio.timeout(seconds):
            while not wanted <= set(read_values(world, topic)):  # noqa: ASYNC110
                await asyncio.sleep(0.5)
    except TimeoutError:
        missing = sorted(wanted - set(read_values(world, topic)))
        raise AssertionError(f"{topic} lacks {missing} after {seconds:g} s") from None


async def run_for(worker: Worker, seconds: float) -> None:
    """Start a worker, and kill it after so long."""
    worker.start()
    await asyncio.sleep(seconds)
    worker.kill()
