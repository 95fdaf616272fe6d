"""Readers of a simulation: what was delivered, and what they say of it in the ack topic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from aiokafka import AIOKafkaProducer

from overlay.consumer.acks import acks_topic
from overlay.deliver.assemble import TOKEN

from .reading import Found, read_topic
from .world import World

PREFIX = "overlay"
"""`topics.prefix` by default."""


async def await_count(world: World, topic: str, count: int, seconds: float = 120.0) -> list[Found]:
    """Wait until a topic has so many records, and return its records. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while len(found := read_topic(world.cluster, topic)) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
    return found


async def await_true(is_so: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait until something is so. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.5)


async def produce(world: World, topic: str, values: Iterable[str], partition: int = 0) -> None:
    """Write records to a partition, whose key is `k`."""
    async with AIOKafkaProducer(bootstrap_servers=world.bootstrap, enable_idempotence=True) as producer:
        for value in values:
            await producer.send_and_wait(topic, value.encode(), key=b"k", partition=partition)


async def tell(
    world: World, stream: str, deliveries: Iterable[Found], word: bytes = b"+ACK", partition: int = 0
) -> None:
    """Say something of these deliveries, each in a record of the stream's ack topic."""
    topic = acks_topic(PREFIX, stream)
    async with AIOKafkaProducer(bootstrap_servers=world.bootstrap, enable_idempotence=True) as producer:
        for one in deliveries:
            token = one.header(TOKEN)
            assert token is not None
            await producer.send_and_wait(topic, word, headers=[(TOKEN, token)], partition=partition)
