"""What scripted histories write, each time as an application with a client of its own: records, and acks of deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from aiokafka import AIOKafkaProducer

from overlay.kafka.header_names import CORRELATION, REPLY_TOPIC, TOKEN
from overlay.kafka.own_topics import acks_topic

from .reading import Found
from .world import World

PREFIX = "overlay"
"""`topics.prefix` by default."""


class New(NamedTuple):
    """A record to be written. `timestamp`: ms since 1970, None for now."""

    partition: int
    key: bytes
    value: bytes
    timestamp: int | None = None


async def send(world: World, topic: str, records: Iterable[New]) -> None:
    """Write records, several to a batch, and wait until the brokers have all of them."""

    async def produce(producer: AIOKafkaProducer) -> None:
        for each in records:
            await producer.send(topic, each.value, key=each.key, partition=each.partition, timestamp_ms=each.timestamp)
        await producer.flush()

    await _run(world, produce)


async def write(world: World, topic: str, values: Iterable[str], *, partition: int = 0, key: str = "k") -> None:
    """Write a batch for each value, whose key is `key` followed by the value, and wait until all are acknowledged."""

    async def produce(producer: AIOKafkaProducer) -> None:
        for value in values:
            await producer.send_and_wait(topic, value.encode(), key=f"{key}{value}".encode(), partition=partition)

    await _run(world, produce)


async def write_under_one_key(world: World, topic: str, values: Iterable[str], *, partition: int = 0) -> None:
    """Write a batch for each value, whose key is `k`, and wait until all are acknowledged."""

    async def produce(producer: AIOKafkaProducer) -> None:
        for value in values:
            await producer.send_and_wait(topic, value.encode(), key=b"k", partition=partition)

    await _run(world, produce)


async def write_together(
    world: World, topic: str, values: Sequence[str], *, partition: int = 0, key: str = "k"
) -> None:
    """Write one batch with all values, under one key, and wait until it is acknowledged."""

    async def produce(producer: AIOKafkaProducer) -> None:
        batch = producer.create_batch()
        for value in values:
            assert batch.append(key=key.encode(), value=value.encode(), timestamp=None) is not None
        await (await producer.send_batch(batch, topic, partition=partition))

    await _run(world, produce)


async def ack(
    world: World,
    stream: str,
    deliveries: Iterable[Found],
    word: bytes = b"+ACK",
    *,
    partition: int = 0,
    correlation: str = "",
) -> None:
    """Say something of each of these deliveries, one after the other, in the stream's ack topic.

    `correlation`: of the answers that are wanted, in the overlay's own reply topic; empty for none.
    """

    async def produce(producer: AIOKafkaProducer) -> None:
        for each in deliveries:
            token = each.header(TOKEN)
            assert token is not None
            headers = [(TOKEN, token), *_ask(correlation)]
            await producer.send_and_wait(acks_topic(PREFIX, stream), word, headers=headers, partition=partition)

    await _run(world, produce)


async def say(
    world: World, stream: str, token: bytes, body: bytes, *, partition: int = 0, correlation: str = ""
) -> None:
    """Write one record of the stream's ack topic, with this token. `correlation`: as `ack` has it."""
    await say_all(world, stream, [(token, body)], partition=partition, correlation=correlation)


async def say_all(
    world: World, stream: str, said: Iterable[tuple[bytes, bytes]], *, partition: int = 0, correlation: str = ""
) -> None:
    """Write a record of the stream's ack topic for each pair of a token and a body. `correlation`: as `ack` has it."""

    async def produce(producer: AIOKafkaProducer) -> None:
        for token, body in said:
            headers = [(TOKEN, token), *_ask(correlation)]
            await producer.send(acks_topic(PREFIX, stream), body, headers=headers, partition=partition)
        await producer.flush()

    await _run(world, produce)


def _ask(correlation: str) -> list[tuple[str, bytes]]:
    """Return the headers that ask for an answer with this correlation; none for an empty one."""
    topic = f"{PREFIX}.replies".encode()
    return [(REPLY_TOPIC, topic), (CORRELATION, correlation.encode())] if correlation else []


async def _run(world: World, produce: Callable[[AIOKafkaProducer], Awaitable[None]]) -> None:
    """Start a process that produces, and wait for its end."""
    done = asyncio.Event()

    async def run() -> None:
        async with AIOKafkaProducer(bootstrap_servers=world.bootstrap, enable_idempotence=True) as producer:
            await produce(producer)
        done.set()

    world.start(f"app-{sum(each.startswith('app-') for each in world.processes)}", run())
    await done.wait()
