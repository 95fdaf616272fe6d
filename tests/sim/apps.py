"""Applications of a scripted history: they write records and ack deliveries, each with a client of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple

from aiokafka import AIOKafkaProducer

from .reading import Found, read_topic
from .world import World

TOKEN = "Nats-Reply-To"


class New(NamedTuple):
    """A record to be written. `timestamp`: ms since 1970, None for now."""

    partition: int
    key: bytes
    value: bytes
    timestamp: int | None = None


async def send(world: World, topic: str, records: Iterable[New]) -> None:
    """Write records and wait until the brokers have all of them."""
    producer = AIOKafkaProducer(bootstrap_servers=world.bootstrap, enable_idempotence=True)
    await producer.start()
    for each in records:
        await producer.send(topic, each.value, key=each.key, partition=each.partition, timestamp_ms=each.timestamp)
    await producer.flush()
    await producer.stop()


async def ack(world: World, topic: str, deliveries: Iterable[Found], body: bytes = b"+ACK") -> None:
    """Write an ack for each of these deliveries to an ack topic."""
    producer = AIOKafkaProducer(bootstrap_servers=world.bootstrap, enable_idempotence=True)
    await producer.start()
    for each in deliveries:
        await producer.send(topic, body, headers=[(TOKEN, each.header(TOKEN) or b"")])
    await producer.flush()
    await producer.stop()


async def await_that(holds: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    """Wait until something holds. Raises AssertionError with `what` after so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} s: {what}") from None


async def await_records(world: World, topic: str, count: int, seconds: float = 120.0) -> list[Found]:
    """Return the records of a topic once it has `count` of them. Raises AssertionError if it does not get so many."""
    await await_that(lambda: len(read_topic(world.cluster, topic)) >= count, f"{count} records in {topic}", seconds)
    return read_topic(world.cluster, topic)
