"""Our side of `push`: the whole service, in this process, on a fresh config folder whose topic is full already.

The clock starts when the shard has taken over its state and begins to read, as the peer's starts after
`init_transactions`, and stops when the transaction with the last matching record is committed. The service then stops
cleanly, off the clock.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from bench.errors import WrongAnswer
from bench.service import CONSUMER, STREAM, wait_for, write_config
from bench.sides import Tally, Work
from overlay.config import load
from overlay.worker.service import Service


class OverlayPush:
    """Filter into an output topic, exactly once. `expected` tells how many records must come out."""

    name = "overlay"
    warm = True

    def run(self, work: Work, out_topic: str, expected: int) -> Tally:
        with tempfile.TemporaryDirectory(prefix="bench-overlay-") as name:
            folder = Path(name)
            write_config(folder, work, out_topic, "exactly_once")
            return asyncio.run(_push(Service(load(folder)), work, expected))

    def close(self) -> None:
        """Nothing is kept between runs."""


async def _push(service: Service, work: Work, expected: int) -> Tally:
    if service.loaded.problems:
        raise WrongAnswer(f"the bench's own config was refused: {service.loaded.problems[0]}")
    stop = asyncio.Event()
    running = asyncio.create_task(service.run(stop))
    try:
        began = await wait_for(lambda: bool(service.sessions), service, running)
        delivered = service.rates.delivered
        ended = await wait_for(lambda: delivered[STREAM, CONSUMER] >= expected, service, running)
    finally:
        stop.set()
        await running
    return Tally(work.records, delivered[STREAM, CONSUMER], ended - began)
