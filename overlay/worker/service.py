"""`overlay run`: a config folder's consumers in one process, with HTTP for operators, until told to stop.

The process is one worker of a group. It serves the shards that the group gives it; a second process with the same config
takes its part of them, or stands by when there is one shard only.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Any

import mmh3
import structlog
from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from overlay.admin import Admin
from overlay.clock import now_ms
from overlay.config import Loaded
from overlay.connection import check_reachable
from overlay.deliver.state import ConsumerId
from overlay.errors import SourceUnavailable
from overlay.metrics import Metrics

from .http import make_app, start_http
from .membership import Membership
from .pipeline import Outcome
from .report import Rates, report_service
from .shard import Shard, unless
from .takeover import ensure_state_topic, state_topic
from .warmup import load_kernels

log = structlog.get_logger(__name__)

RELEASE_S = 20.0
"""How long a shard may take to commit what is under way when it is given up."""


def shard_of(consumer: ConsumerId, shards: int) -> int:
    """The shard that owns a consumer: murmur3 of `stream/consumer`, modulo the shards."""
    return mmh3.hash("/".join(consumer), signed=False) % shards


@dataclass(slots=True)
class Service:
    """Runs what a config folder says. `port` is where HTTP listens once `run` has started it."""

    loaded: Loaded
    metrics: Metrics = field(default_factory=Metrics)
    shards: dict[int, Shard] = field(default_factory=dict)
    rates: Rates = field(default_factory=Rates)
    port: int = 0
    trouble: str = "starting"
    _serving: dict[asyncio.Task[None], asyncio.Event] = field(default_factory=dict)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`. Raises CredentialsRefused, or OverlayError when the HTTP address is taken."""
        service = self.loaded.service
        runner, self.port = await start_http(make_app(self.metrics, self.report), service.http.address)
        log.info("http listens", url=f"http://{service.http.address[0]}:{self.port}/metrics")
        try:
            self.trouble = "loading kernels"
            if await unless(stop, asyncio.to_thread(load_kernels)):
                await self._work_on(stop)
        finally:
            await runner.cleanup()

    async def _work_on(self, stop: asyncio.Event) -> None:
        """Work, and wait for Kafka however long it takes; wrong credentials are another matter and end the service."""

        async def rest(seconds: float) -> None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), seconds)

        again, pauses = retry_if_exception_type(SourceUnavailable), wait_random_exponential(multiplier=0.5, max=15)
        async for attempt in AsyncRetrying(retry=again, wait=pauses, sleep=rest, reraise=True):
            if stop.is_set():
                return
            with attempt:
                try:
                    await unless(stop, asyncio.to_thread(check_reachable, self.loaded.service.kafka))
                    await self._work(stop)
                except SourceUnavailable as error:
                    self.trouble = str(error)
                    log.warning("waiting for Kafka", reason=str(error))
                    raise

    async def _work(self, stop: asyncio.Event) -> None:
        """Be a worker of the group until `stop`."""
        service = self.loaded.service
        prefix = service.topics.prefix
        admin = Admin(service.kafka)
        count = await ensure_state_topic(admin, prefix, service.shards, service.topics.replication)
        self.trouble = "waiting for the group of workers to hand out shards"
        membership = Membership(service.kafka, prefix, state_topic(prefix))
        await membership.start()
        async with asyncio.TaskGroup() as group:

            async def take(numbers: set[int]) -> None:
                self.trouble = ""
                for number in sorted(numbers):
                    mine = {c: config for c, config in self.loaded.consumers.items() if shard_of(c, count) == number}
                    if mine:
                        shard = Shard(self.loaded, number, mine, admin, self.metrics, membership, self._commit_seen)
                        self.shards[number] = shard
                        enough = asyncio.Event()
                        self._serving[group.create_task(shard.run(enough), name=f"shard-{number}")] = enough

            await membership.run(stop, take, self._release)

    async def _release(self) -> None:
        """Give up all shards: commit what is under way, and stop."""
        for enough in self._serving.values():
            enough.set()
        if self._serving:
            _, late = await asyncio.wait(self._serving, timeout=RELEASE_S)
            for task in late:
                log.warning("shard given up with a transaction under way", shard=task.get_name())
                task.cancel()
        self._serving.clear()
        self.shards.clear()

    def _commit_seen(self, outcome: Outcome) -> None:
        now = now_ms()
        for consumer, records in outcome.delivered.items():
            self.metrics.records_delivered.labels(*consumer).inc(records)
            age = max(0, now - outcome.oldest[consumer]) / 1000
            self.metrics.delivery_latency_seconds.labels(*consumer).observe(age)
        self.rates.note(outcome, now)

    def report(self) -> dict[str, Any]:
        """What the HTTP endpoints and the CLI show."""
        return report_service(self.loaded, self.shards.values(), self.rates, self.metrics, self.trouble)
