"""What scripted histories share: waiting for what the service makes of things, and reading it (writing.py: what they write)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from .host import Worker
from .kafka.session import Answer
from .reading import Found, read_topic
from .world import World

DAY_S = 86_400.0
PRODUCE = 0
"""The API key of produce requests."""
LIST_OFFSETS = 2
"""The API key of requests for offsets."""


def read_values(world: World, topic: str) -> list[str]:
    """Return the committed values of a topic, by partition and offset."""
    return [(record.value or b"").decode() for record in read_topic(world.cluster, topic)]


def read_sequences(world: World, topic: str) -> list[int]:
    """Return the stream sequences of the deliveries in an output topic, by partition and offset."""
    tokens = [record.header("Nats-Reply-To") or b"" for record in read_topic(world.cluster, topic)]
    return [int(token.split(b".")[-4]) for token in tokens]


async def until(is_so: Callable[[], bool], what: str, seconds: float = 120.0, pause_s: float = 0.5) -> None:
    """Wait until something is so. Raises AssertionError with `what` if that takes longer."""
    try:
        async with asyncio.timeout(seconds):
            while not is_so():  # noqa: ASYNC110
                await asyncio.sleep(pause_s)
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} s: {what}") from None


async def await_records(world: World, topic: str, count: int, seconds: float = 120.0) -> list[Found]:
    """Return the records of a topic once it has `count` of them. Raises AssertionError if it does not get so many."""
    await until(lambda: len(read_topic(world.cluster, topic)) >= count, f"{count} records in {topic}", seconds)
    return read_topic(world.cluster, topic)


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


def intercept(world: World, key: int, handle: Callable[[Answer, Callable[[Answer], None]], None]) -> None:
    """Have `handle` take the requests of an API key, with the broker's own way to handle them."""
    handlers = world.cluster._handlers
    own = handlers[key]
    handlers[key] = lambda answer: handle(answer, own)
