"""JetStream consumers with filter subjects, over the same orders in nats-server's file storage.

Each order is published under the subject `orders.CUSTOMER`, with its value and without headers. Every consumer is an ordered
consumer of nats-py with the filter subjects of ours; the client counts what all of them receive. The clock runs from the
first subscription to the last message. Copying the orders into NATS is not counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import cast

import nats
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig

from bench.errors import PeerUnavailable
from bench.orders import Orders
from bench.ours_consumers import Job
from bench.peers.nats import DEADLINE_S, Message, Server, copy
from bench.sides import Tally

STREAM = "orders"
"""The first token of the subjects as well."""


class NatsConsumers:
    """A server that keeps the orders of one job."""

    name = "nats"
    warm = False

    def __init__(self) -> None:
        self._server: Server | None = None

    def run(self, job: Job) -> Tally:
        """Raises PeerUnavailable when there is no server, or when not all comes."""
        if self._server is None:
            self._server = Server()
            asyncio.run(copy(self._server.url, STREAM, _list_messages(job.orders), job.orders.records))
        return asyncio.run(_receive(self._server.url, job))

    def close(self) -> None:
        if self._server is not None:
            self._server.stop()


def _list_messages(orders: Orders) -> Iterable[Message]:
    return ((headers[0][1].decode(), value, dict[str, str]()) for value, headers in orders.list_rows())


async def _receive(url: str, job: Job) -> Tally:
    client = await nats.connect(url)
    done = asyncio.Event()
    matched = 0

    async def receive(_: Msg) -> None:
        nonlocal matched
        matched += 1
        if matched >= job.deliveries:
            done.set()

    try:
        stream, began = client.jetstream(), time.perf_counter()
        for wants in job.consumers.values():
            config = ConsumerConfig(filter_subjects=cast("list[str]", wants["filter_subjects"]))
            await stream.subscribe(f"{STREAM}.>", stream=STREAM, ordered_consumer=True, cb=receive, config=config)
        async with asyncio.timeout(DEADLINE_S):
            await done.wait()
        return Tally(job.deliveries, matched, time.perf_counter() - began)
    except TimeoutError as error:
        raise PeerUnavailable(f"nats: {matched} of {job.deliveries} came within {DEADLINE_S:.0f} s") from error
    finally:
        await client.close()
