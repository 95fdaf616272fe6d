"""`overlay run`: a config folder's consumers in one process, with HTTP for operators, until told to stop.

The process is one worker of a group. It serves the shards that the group gives it; a second process with the same config
takes its part of them, or stands by when there is one shard only.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

import mmh3
import structlog
from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from overlay.admin import Admin
from overlay.clock import now_ms
from overlay.config import Loaded
from overlay.connection import check_reachable
from overlay.deliver.outlets import find_fault
from overlay.deliver.state import ConsumerId
from overlay.errors import SourceUnavailable
from overlay.metrics import Metrics

from .http import make_app, start_http
from .identity import Identity, identify
from .membership import Membership
from .pipeline import Outcome
from .report import Rates, report_service
from .shard import Shard, unless
from .takeover import ensure_state_topic, state_topic
from .warmup import load_kernels

log = structlog.get_logger(__name__)

SWITCH_S = 0.0002
"""How long a thread waits for the GIL before it asks for it. The event loop and the pipeline hand bytes to each other all
the time; with Python's 5 ms each would stand still while the other has work for a moment."""
RELEASE_S = 20.0
"""How long a shard may take to commit what is under way when it is given up."""
PAUSE_S = 2.0
"""Longest pause between two tries to reach Kafka: how late a Kafka that is back may be noticed."""


def shard_of(owned: tuple[str, ...], shards: int) -> int:
    """The shard that owns a consumer, or with the stream's name alone its index: murmur3 of `stream/consumer`, modulo the
    shards."""
    return mmh3.hash("/".join(owned), signed=False) % shards


@dataclass(slots=True)
class Service:
    """Runs what a config folder says. `port` is where HTTP listens once `run` has started it."""

    loaded: Loaded
    metrics: Metrics = field(default_factory=Metrics)
    shards: dict[int, Shard] = field(default_factory=dict)
    rates: Rates = field(default_factory=Rates)
    port: int = 0
    trouble: str = "starting"
    identity: Identity = field(init=False)
    cluster: str = ""
    """Kafka's id of the cluster, once it has been reached."""
    shard_count: int = 0
    owned: frozenset[int] = frozenset()
    """The shards that the group has given to this worker."""
    _serving: dict[asyncio.Task[None], asyncio.Event] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.identity = identify(self.loaded)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`. Raises CredentialsRefused, or OverlayError when the HTTP address is taken."""
        service = self.loaded.service
        runner, self.port = await start_http(make_app(self.metrics, self.report), service.http.address)
        log.info("http listens", url=f"http://{service.http.address[0]}:{self.port}/metrics")
        interval = sys.getswitchinterval()
        try:
            sys.setswitchinterval(SWITCH_S)
            self.trouble = "loading kernels"
            if await unless(stop, asyncio.to_thread(load_kernels)):
                await self._work_on(stop)
        finally:
            sys.setswitchinterval(interval)
            await runner.cleanup()

    async def _work_on(self, stop: asyncio.Event) -> None:
        """Work, and wait for Kafka however long it takes; wrong credentials are another matter and end the service."""

        async def rest(seconds: float) -> None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), seconds)

        again, pauses = retry_if_exception_type(SourceUnavailable), wait_random_exponential(multiplier=0.5, max=PAUSE_S)
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
        self.cluster = await admin.find_cluster()
        count = await ensure_state_topic(admin, prefix, service.shards, service.topics.replication)
        await check_writable(admin, state_topic(prefix))
        self.shard_count = count
        self.trouble = "waiting for the group of workers to hand out shards"
        membership = Membership(service.kafka, prefix, state_topic(prefix))
        await membership.start()
        async with asyncio.TaskGroup() as group:

            async def take(numbers: set[int]) -> None:
                self.trouble, self.owned = "", frozenset(numbers)
                for number in sorted(numbers):
                    mine = {c: config for c, config in self.loaded.consumers.items() if shard_of(c, count) == number}
                    keeps = tuple(name for name in self.loaded.streams if shard_of((name,), count) == number)
                    if mine or keeps:
                        shard = Shard(
                            self.loaded, number, mine, keeps, admin, self.metrics, membership, self._commit_seen
                        )
                        self.shards[number] = shard
                        enough = asyncio.Event()
                        self._serving[group.create_task(shard.run(enough), name=f"shard-{number}")] = enough

            await membership.run(stop, take, self._release)

    async def _release(self) -> None:
        """Give up all shards: commit what is under way, and stop."""
        self.trouble, self.owned = "the group of workers is dealing out shards", frozenset()
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
        found = report_service(
            self.loaded, self.shards.values(), self.rates, self.metrics, self.trouble, self._find_elsewhere()
        )
        place = {"cluster": self.cluster, "shards": sorted(self.owned), "shard_count": self.shard_count}
        return found | {"service": asdict(self.identity) | place}

    def _find_elsewhere(self) -> frozenset[ConsumerId]:
        """Consumers whose shards the group has not given to this worker; nobody while it has given none yet."""
        if self.trouble:
            return frozenset()
        return frozenset(c for c in self.loaded.consumers if shard_of(c, self.shard_count) not in self.owned)


async def check_writable(admin: Admin, topic: str) -> None:
    """Raises SourceUnavailable while Kafka would take no record for a topic without which nothing works."""
    facts = (await admin.find_topics([topic])).get(topic)
    if facts and (fault := find_fault(facts)):
        raise SourceUnavailable(f"topic {topic}: {fault}")
