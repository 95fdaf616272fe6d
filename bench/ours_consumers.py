"""Our sides of `consumers`: the whole service, in this process, with as many consumers as the case has.

The clock starts when the shard has taken over its state and begins to read, and stops when the last delivery is
committed. Making the topics and reading thousands of files is off the clock; the cases about starting measure that.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bench.errors import WrongAnswer
from bench.orders import STREAM, Orders, name_customer
from bench.service import wait_for, write_files
from bench.sides import Tally
from overlay.config import load
from overlay.worker.service import Service

LOOK_S = 0.02
"""Seconds between two looks: each adds up the counts of all consumers."""


class OneEach:
    """A consumer for each customer, with the customer's literal subject; several share an output topic."""

    name = "overlay"
    warm = True

    def run(self, orders: Orders, outputs: list[str]) -> Tally:
        customers = map(name_customer, range(orders.customers))
        return _serve(
            orders,
            {name: (f"orders.{name}", outputs[number % len(outputs)]) for number, name in enumerate(customers)},
        )

    def close(self) -> None:
        """Nothing is kept between runs."""


class One:
    """One consumer that takes all orders into one of the output topics."""

    name = "one"
    warm = True

    def run(self, orders: Orders, outputs: list[str]) -> Tally:
        return _serve(orders, {"all": ("orders.>", outputs[0])})

    def close(self) -> None:
        """Nothing is kept between runs."""


def _serve(orders: Orders, consumers: Mapping[str, tuple[str, str]]) -> Tally:
    """Deliver all orders. `consumers`: the subject and the output topic of each, by name. Raises WrongAnswer."""
    files: dict[str, object] = {"streams/orders.yaml": orders.describe_stream()}
    for name, (subject, output) in consumers.items():
        files[f"consumers/{name}.yaml"] = {
            "stream": STREAM,
            "durable_name": name,
            "deliver_subject": output,
            "filter_subject": subject,
            "ack_policy": "none",
        }
    with tempfile.TemporaryDirectory(prefix="bench-overlay-") as name:
        folder = Path(name)
        write_files(folder, orders.bootstrap, files)
        return asyncio.run(_deliver(Service(load(folder)), orders))


async def _deliver(service: Service, orders: Orders) -> Tally:
    if service.loaded.problems:
        raise WrongAnswer(f"the bench's own config was refused: {service.loaded.problems[0]}")
    stop = asyncio.Event()
    running = asyncio.create_task(service.run(stop))
    delivered = service.rates.delivered
    try:
        began = await wait_for(lambda: bool(service.sessions), service, running)
        ended = await wait_for(lambda: delivered.total() >= orders.records, service, running, look_s=LOOK_S)
    finally:
        stop.set()
        await running
    return Tally(orders.records, delivered.total(), ended - began)
