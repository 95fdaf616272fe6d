"""Tokens on their way from Faust's acknowledgements to the sender of acks: none stays behind. Without Kafka."""

from __future__ import annotations

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest
from faust import App

from overlay.client.subscribe.acking import Head
from overlay.client.subscribe.target import Target
from overlay.config.consumer import AckPolicy
from overlay.faust.acknowledger import Acknowledger
from overlay.waits import until

KAFKA = {"bootstrap.servers": "127.0.0.1:1"}


class Sender:
    """What sends acks."""

    def __init__(self) -> None:
        self.acked: list[bytes] = []

    def ack(self, token: bytes) -> None:
        self.acked.append(token)

    def close(self) -> None:
        pass


class HeldProducer:
    """Faust's producer. `gate`: what a flush waits for."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.flushes = 0

    async def flush(self) -> None:
        self.flushes += 1
        await self.gate.wait()


async def open_acknowledger(producer: HeldProducer) -> tuple[Acknowledger, Sender]:
    target, sender = Target(Head("S", "c"), "out", "c", AckPolicy.EXPLICIT), Sender()
    found = Acknowledger(cast(App, SimpleNamespace(producer=producer)), KAFKA, "overlay", target)
    found._sender, found._home = cast(Any, sender), asyncio.get_running_loop()
    return found, sender


class Crowded(deque[bytes]):
    """Tokens, with another thread that adds one right after each first one."""

    other: Acknowledger | None = None

    def append(self, token: bytes) -> None:
        super().append(token)
        if (other := self.other) is not None:
            self.other = None
            other.ack_later(b"second")


async def test_tokens_of_two_threads_are_sent() -> None:
    producer = HeldProducer()
    producer.gate.set()
    acknowledger, sender = await open_acknowledger(producer)
    acknowledger._waiting = waiting = Crowded()
    waiting.other = acknowledger
    async with acknowledger:
        await asyncio.to_thread(acknowledger.ack_later, b"first")
        async with asyncio.timeout(60):
            await until(lambda: sender.acked == [b"first", b"second"], pause_s=0.01)


async def test_tokens_of_a_flush_that_was_cancelled_are_sent_after_the_next() -> None:
    producer = HeldProducer()
    acknowledger, sender = await open_acknowledger(producer)
    acknowledger.ack_later(b"first")
    passing = asyncio.ensure_future(acknowledger._pass_on())
    async with asyncio.timeout(60):
        await until(lambda: producer.flushes == 1, pause_s=0.01)
    acknowledger.ack_later(b"second")
    passing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await passing
    producer.gate.set()
    await acknowledger._pass_on()
    assert sender.acked == [b"first", b"second"]
