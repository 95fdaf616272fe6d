"""Our sides of the cases of `consumers` that measure deliveries per second: the whole service, in this process.

The clock starts when each shard has taken over its state and begins to read, and stops when the last delivery is
committed. Making the topics and reading thousands of files is off the clock; other cases measure that. The outputs are
then counted by a read-committed consumer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from bench.crowd import Wants, make_crowd
from bench.errors import WrongAnswer
from bench.orders import Orders
from bench.outputs import count_committed
from bench.service import wait_for
from bench.sides import Tally
from overlay.config import load
from overlay.worker.service import Service

LOOK_S = 0.02
"""Seconds between two looks: each adds up the counts of all consumers."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a side has to do: deliver the orders to these consumers, who share so many output topics in turns.
    `deliveries`: how many there must be in all. `shards`: of the service.
    """

    orders: Orders
    consumers: Mapping[str, Wants]
    outputs: int
    deliveries: int
    shards: int = 1


class Served:
    """Our service with the consumers of its job."""

    warm = True

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, job: Job) -> Tally:
        """Raises WrongAnswer when the outputs have more or fewer records than were delivered."""
        with make_crowd(job.orders, job.consumers, job.outputs, job.shards) as crowd:
            tally = asyncio.run(_deliver(Service(load(crowd.folder)), job.deliveries, job.shards))
            found = sum(count_committed(job.orders.bootstrap, topic) for topic in crowd.outputs)
        if found != tally.matched:
            raise WrongAnswer(f"{self.name}: {found} records committed, {tally.matched} deliveries counted")
        return tally

    def close(self) -> None:
        """Nothing is kept between runs."""


async def _deliver(service: Service, deliveries: int, shards: int) -> Tally:
    if service.loaded.problems:
        raise WrongAnswer(f"the bench's own config was refused: {service.loaded.problems[0]}")
    stop = asyncio.Event()
    running = asyncio.create_task(service.run(stop))
    delivered = service.rates.delivered
    try:
        began = await wait_for(lambda: len(service.sessions) == shards, service, running)
        ended = await wait_for(lambda: delivered.total() >= deliveries, service, running, look_s=LOOK_S)
    finally:
        stop.set()
        await running
    return Tally(deliveries, delivered.total(), ended - began)
