"""A Faust application for tests, run by `faust worker`. It reads a consumer and writes a line for each message.

Environment: OVERLAY_CONFIG is the config folder, FAUST_ID the application's id, FAUST_BROKER its Kafka, CONSUMER the consumer,
RECORDED the file for the lines, MANNER a function of this module that handles the messages, SESSION_S how long a worker may be
silent before its messages go to another one.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import faust
from faust.streams import Stream
from faust.types import StreamT

from overlay.faust import AgentMessage, agent_topic

app = faust.App(
    os.environ["FAUST_ID"],
    broker=f"kafka://{os.environ['FAUST_BROKER']}",
    broker_session_timeout=float(os.environ["SESSION_S"]),
    broker_commit_interval=0.5,
    datadir=os.environ["FAUST_DATADIR"],
    store="memory://",
    web_enabled=False,
)
topic = agent_topic(app, os.environ["OVERLAY_CONFIG"], os.environ["CONSUMER"])
FILE = os.open(os.environ["RECORDED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def record(message: AgentMessage, **more: object) -> None:
    """Append a line. It is in the kernel then, so that a kill does not take it away."""
    meta = message.metadata
    line = {
        "sequence": meta.sequence,
        "consumer_sequence": meta.consumer_sequence,
        "deliveries": meta.num_delivered,
        "subject": message.subject,
        "value": message.data.decode(),
        "pid": os.getpid(),
        **more,
    }
    os.write(FILE, json.dumps(line).encode() + b"\n")


def fails(message: AgentMessage) -> bool:
    """Whether an agent fails at a message: at the first delivery of two of them. Faust may take five seconds to start an
    agent again.
    """
    return message.metadata.num_delivered == 1 and int(message.data) in (10, 60)


async def take_each(stream: StreamT[AgentMessage]) -> None:
    """Record each message, after a moment's work."""
    async for message in stream:
        await asyncio.sleep(0.002)
        record(message)


async def fail_sometimes(stream: StreamT[AgentMessage]) -> None:
    async for message in stream:
        if fails(message):
            raise RuntimeError(f"cannot handle {message.data!r}")
        record(message)


async def take_batches(stream: StreamT[AgentMessage]) -> None:
    async for messages in stream.take(7, within=0.2):
        record(messages[0], batch=[message.metadata.sequence for message in messages])


async def fail_at_batches(stream: StreamT[AgentMessage]) -> None:
    async for messages in stream.take(7, within=0.2):
        if any(map(fails, messages)):
            raise RuntimeError("cannot handle the batch")
        for message in messages:
            record(message)


async def ack_by_hand(stream: Stream[AgentMessage]) -> None:
    """Acknowledge events by `async with`, which fails sometimes."""
    async for event in stream.noack().events():
        try:
            async with event:
                if fails(event.value):
                    raise RuntimeError
                record(event.value)
        except RuntimeError:
            continue


async def say(stream: StreamT[AgentMessage]) -> None:
    """Settle messages by verbs, by the last digit of their values."""
    async for message in stream:
        record(message, properties=message.properties["doubled"], content=message.content)
        digit = int(message.data) % 10
        if digit == 1 and message.metadata.num_delivered == 1:
            await message.nak()
        elif digit == 2:
            await message.term("a two")
        elif digit == 3:
            await message.in_progress()
        elif digit == 4:
            await message.ack_sync()
        elif digit == 5 and message.metadata.num_delivered == 1:
            message.abandon()


async def forward(stream: StreamT[AgentMessage]) -> AsyncIterator[bytes]:
    """Yield the values, which a sink sends to another topic."""
    async for message in stream:
        record(message)
        yield message.data


MANNERS: dict[str, Any] = {
    "each": take_each,
    "fail": fail_sometimes,
    "batches": take_batches,
    "fail_batches": fail_at_batches,
    "by_hand": ack_by_hand,
    "verbs": say,
    "forward": forward,
}
SINKS = [app.topic(os.environ["SINK"], value_serializer="raw")] if "SINK" in os.environ else []
concurrency = int(os.environ.get("CONCURRENCY", "1"))
app.agent(topic, name="reader", concurrency=concurrency, sink=SINKS)(MANNERS[os.environ["MANNER"]])
