"""A fleet's application in this process, on a real broker, and a client that writes to its topics."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from overlay.clock import monotonic, now_ms
from overlay.config.service import ServiceConfig
from overlay.fleet import app, screening
from overlay.fleet.live import LivePicture
from overlay.fleet.status import encode
from overlay.kafka.admin import Admin, new_topic
from overlay.kafka.own_topics import (
    CONTROL_CONFIG,
    EVENTS_CONFIG,
    FLEET_CONFIG,
    control_topic,
    events_topic,
    fleet_topic,
)
from tests.support.kafka import SureProducer
from tests.support.raw import send_batch
from tests.support.waiting import wait_until

from .statuses import make_consumer, make_status
from .test_screening import make, make_bomb

DEADLINE_S = 90.0


class Scene:
    """A fleet's application, in this process, and a client that writes to its topics."""

    def __init__(self, bootstrap: str, live: LivePicture) -> None:
        self.bootstrap, self.live = bootstrap, live
        self.prefix = f"ov-{uuid.uuid4().hex[:8]}"
        self.letters = f"{self.prefix}-letters"
        self.service = ServiceConfig.model_validate(
            {"kafka": {"bootstrap.servers": bootstrap}, "topics": {"prefix": self.prefix, "replication": 1}}
        )
        self.producer = SureProducer(bootstrap)
        self._numbers = count()

    async def make_topics(self, *names: str) -> None:
        configs = {
            fleet_topic(self.prefix): FLEET_CONFIG,
            events_topic(self.prefix): EVENTS_CONFIG,
            control_topic(self.prefix): CONTROL_CONFIG,
            self.letters: {},
        }
        async with Admin({"bootstrap.servers": self.bootstrap}) as admin:
            _, refused = await admin.create_topics(new_topic(name, 1, 1, configs[name]) for name in names or configs)
            assert not refused
            await admin.await_topics(names or configs)

    def tell(self, worker: str = "a", **fields: Any) -> None:
        """Write a status."""
        status = make_status(worker, prefix=self.prefix, number=next(self._numbers), clock=now_ms(), **fields)
        (value,) = encode(status, [make_consumer()], [])
        self.write(fleet_topic(self.prefix), worker.encode(), value)

    def write(self, topic: str, key: bytes | None, value: bytes | None, headers: Any = ()) -> None:
        self.producer.produce(topic, value, key, headers=list(headers))
        self.producer.flush()

    def attack(self, topic: str) -> None:
        """Write a batch that decompresses to a lot, and one with a header that is no text."""
        for batch in (make_bomb(0, 4 * screening.MOST_BATCH_BYTES), make(0, b"x", name=b"\xff")):
            assert send_batch(self.bootstrap, topic, batch) == 0

    def find(self) -> dict[str, Any]:
        return self.live.describe(int(monotonic() * 1000))

    async def until(self, holds: Callable[[], object], what: str) -> None:
        await asyncio.to_thread(wait_until, holds, DEADLINE_S, what)


@asynccontextmanager
async def following(scene: Scene) -> AsyncIterator[None]:
    stop = asyncio.Event()
    running = asyncio.create_task(app.run_app(scene.service, scene.live, stop))
    try:
        yield
        assert not running.done()
    finally:
        stop.set()
        await running


def list_workers(found: dict[str, Any]) -> list[str]:
    return [row["worker"] for row in found.get("workers", ())]
