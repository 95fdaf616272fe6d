"""Requests to the service, as records of the control topic, and their answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiokafka import AIOKafkaProducer

from overlay.kafka.header_names import CORRELATION, REPLY_TOPIC

from .applications import HANG_S, VALID_S, Run, started
from .reading import read_topic
from .world import World
from .writing import PREFIX

ANSWER_S = 10.0


CONTROL = f"{PREFIX}.control"


async def ask(
    world: World, id: str, op: str, stream: str, *, inbox: str = "", topic: str = CONTROL, **body: Any
) -> None:
    """Put a request into the control topic, or into another one. `inbox`: the topic that is answered to, if it is not the
    overlay's own."""
    async with AIOKafkaProducer(bootstrap_servers=world.bootstrap, enable_idempotence=True) as producer:
        await _put(producer, id, op, stream, inbox, body, topic)


async def _put(
    producer: AIOKafkaProducer, id: str, op: str, stream: str, inbox: str, body: dict[str, Any], topic: str = CONTROL
) -> None:
    value, key = json.dumps({"op": op, "stream": stream, **body}).encode(), f"request {id}".encode()
    headers = [(REPLY_TOPIC, inbox.encode())] if inbox else []
    await producer.send_and_wait(topic, value, key=key, partition=0, headers=headers)


def find_answers(world: World, id: str) -> list[dict[str, Any]]:
    """Return the answers to a request so far."""
    found = read_topic(world.cluster, f"{PREFIX}.replies")
    return [json.loads(one.value or b"") for one in found if one.header(CORRELATION) == id.encode()]


async def await_answer(world: World, id: str, seconds: float = 60.0) -> dict[str, Any]:
    """Wait for the answer to a request. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not (found := find_answers(world, id)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return found[0]


async def inquire(run: Run, op: str, *, stream: str, **fields: Any) -> dict[str, Any] | None:
    """Send a request of a storm, and return its answer, None if none comes within ANSWER_S, or if the client hangs."""
    id = f"ask-{next(run.correlations)}"
    producer = AIOKafkaProducer(bootstrap_servers=run.world.bootstrap, enable_idempotence=True)
    try:
        # aiokafka waits for minutes if no broker was listed when it started
        async with started(run, producer), asyncio.timeout(HANG_S):
            await _put(producer, id, op, stream, "", {"timeout": f"{VALID_S}s", **fields})
        return await await_answer(run.world, id, ANSWER_S)
    except TimeoutError:
        return None
