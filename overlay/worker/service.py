"""`overlay run`: all shards of a config folder in one process, with HTTP for operators, until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

import mmh3
import structlog
from tenacity import AsyncRetrying, retry_if_exception_type, wait_exponential_jitter

from overlay.admin import Admin
from overlay.clock import now_ms
from overlay.config import Loaded
from overlay.connection import check_reachable
from overlay.deliver.state import ConsumerId
from overlay.errors import SourceUnavailable
from overlay.metrics import Metrics

from .http import make_app, start_http
from .pipeline import Outcome
from .report import Rates, report_service
from .shard import Shard
from .takeover import ensure_state_topic

log = structlog.get_logger(__name__)


def shard_of(consumer: ConsumerId, shards: int) -> int:
    """The shard that owns a consumer: murmur3 of `stream/consumer`, modulo the shards."""
    return mmh3.hash("/".join(consumer), signed=False) % shards


@dataclass(slots=True)
class Service:
    """Runs what a config folder says. `port` is where HTTP listens once `run` has started it."""

    loaded: Loaded
    metrics: Metrics = field(default_factory=Metrics)
    shards: list[Shard] = field(default_factory=list)
    rates: Rates = field(default_factory=Rates)
    port: int = 0
    trouble: str = "starting"

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`. Raises CredentialsRefused, or OverlayError when the HTTP address is taken."""
        service = self.loaded.service
        runner, self.port = await start_http(make_app(self.metrics, self.report), service.http.address)
        log.info("http listens", url=f"http://{service.http.address[0]}:{self.port}/metrics")
        try:
            await self._until(stop, self._reach_kafka())
            if not stop.is_set():
                await self._run_shards(stop)
        finally:
            await runner.cleanup()

    async def _reach_kafka(self) -> None:
        """Wait for Kafka, however long it takes; wrong credentials are another matter and end the service."""
        kafka = self.loaded.service.kafka
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(SourceUnavailable), wait=wait_exponential_jitter(0.5, 15), reraise=True
        ):
            with attempt:
                try:
                    await asyncio.to_thread(check_reachable, kafka)
                except SourceUnavailable as error:
                    self.trouble = str(error)
                    log.warning("waiting for Kafka", reason=str(error))
                    raise

    async def _run_shards(self, stop: asyncio.Event) -> None:
        service = self.loaded.service
        admin = Admin(service.kafka)
        count = await ensure_state_topic(admin, service.topics.prefix, service.shards, service.topics.replication)
        self.shards = [self._make_shard(admin, number, count) for number in range(count)]
        self.trouble = ""
        async with asyncio.TaskGroup() as group:
            for shard in self.shards:
                if shard.mine:
                    group.create_task(shard.run(stop))

    def _make_shard(self, admin: Admin, number: int, count: int) -> Shard:
        mine = {c: config for c, config in self.loaded.consumers.items() if shard_of(c, count) == number}
        return Shard(self.loaded, number, mine, admin, self.metrics, _standalone, self._commit_seen)

    def _commit_seen(self, outcome: Outcome) -> None:
        now = now_ms()
        for consumer, records in outcome.delivered.items():
            self.metrics.records_delivered.labels(*consumer).inc(records)
            age = max(0, now - outcome.newest[consumer]) / 1000
            self.metrics.delivery_latency_seconds.labels(*consumer).observe(age)
        self.rates.note(outcome, now)

    def report(self) -> dict[str, Any]:
        """What the HTTP endpoints and the CLI show."""
        return report_service(self.loaded, self.shards, self.rates, self.metrics, self.trouble)

    async def _until(self, stop: asyncio.Event, work: Awaitable[None]) -> None:
        """Await `work`, or give up on it when `stop` is set."""
        working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
        done, _ = await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        for task in (working, stopping):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            if working in done:
                working.result()


async def _standalone() -> int:
    return 0

