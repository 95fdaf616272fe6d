"""Which shards this worker owns: membership in the consumer group `<prefix>.workers` over the state topic's partitions.

A shard is a partition of the state topic, so Kafka's own group protocol deals them out: workers that come and go, a killed
one whose shards move after a session timeout, a second process that stands by when there is one shard only. Nothing is
consumed through the group; its partitions stay paused.

Being told that a shard is ours is news from the past. A worker that was held up between the news and InitProducerId would
fence the rightful owner, so `confirm` asks the group's coordinator with a heartbeat of our generation: before a shard is
taken, and again before anything is written to it. A generation alone would not do, since a group that was empty for a while
is forgotten by Kafka and counts from 1 again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import GroupAuthorizationFailedError, KafkaError, TopicAuthorizationFailedError
from aiokafka.structs import TopicPartition

from overlay.errors import CredentialsRefused, SourceUnavailable
from overlay.kafka.connection import Properties, for_aiokafka
from overlay.logs import get_logger
from overlay.waits import unless

log = get_logger(__name__)

SESSION_MS = 6_000
HEARTBEAT_MS = 1_500
POLL_S = 1.0
LEAVE_S = 5.0
METADATA_MS = 5_000
"""How old the state topic's metadata may be. The member that leads the group deals out the partitions that it knows; where its
first question for them was lost, no worker is given a shard until it asks again."""
FETCH_MS = 10_000
"""How often the consumer looks for something to fetch. All of its partitions are paused, so there never is."""


Take = Callable[[set[int]], Awaitable[None]]
Release = Callable[[], Awaitable[None]]


class Membership(ConsumerRebalanceListener):  # type: ignore[misc]
    """This worker's place in the group."""

    def __init__(self, kafka: Properties, prefix: str, topic: str) -> None:
        self.owned: set[int] = set()
        self._topic = topic
        self._take: Take | None = None
        self._release: Release | None = None
        self._changed = asyncio.Event()
        self._consumer = AIOKafkaConsumer(
            **for_aiokafka(kafka),
            group_id=f"{prefix}.workers",
            enable_auto_commit=False,
            auto_offset_reset="latest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            rebalance_timeout_ms=30_000,
            metadata_max_age_ms=METADATA_MS,
            consumer_timeout_ms=FETCH_MS,
        )

    async def start(self) -> None:
        """Connect. Raises SourceUnavailable."""
        try:
            await self._consumer.start()
        except (KafkaError, OSError) as error:
            await self._consumer.stop()
            raise SourceUnavailable(f"cannot join the group of workers: {error}") from error

    async def run(self, stop: asyncio.Event, take: Take, release: Release) -> None:
        """Be a member until `stop`; then release what is owned and leave. Raises CredentialsRefused.

        `take` is awaited with the shards that we are given; `release`, within a rebalance, before any are given anew.
        """
        self._take, self._release = take, release
        try:
            self._consumer.subscribe([self._topic], listener=self)
            while not stop.is_set():
                # nothing comes of it but errors of the coordinator, and the proof that we are alive; within a rebalance it does
                # not return, whatever its timeout
                if await unless(stop, self._poll()):
                    await _wait(stop, POLL_S)
        finally:
            # a rebalance that is under way may still give us shards, which nothing would stop again
            self._take = None
            await self.on_partitions_revoked([])
            await self._leave()

    async def _leave(self) -> None:
        """Tell the group. A coordinator that does not answer must not hold up the end: it will miss us by itself."""
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._consumer.stop()
        except TimeoutError:
            log.warning("the group of workers does not answer; left without its leave", seconds=LEAVE_S)

    async def _poll(self) -> None:
        try:
            await self._consumer.getmany(timeout_ms=100)
        except (GroupAuthorizationFailedError, TopicAuthorizationFailedError) as error:
            raise CredentialsRefused(f"Kafka does not let us join the group of workers: {error}") from error
        except KafkaError as error:
            log.warning("the group of workers cannot be reached", reason=str(error))

    async def on_partitions_revoked(self, revoked: Any) -> None:
        """Called before a rebalance: stop what is running, so that it is committed when the next owner reads it."""
        self.owned = set()
        if self._release is not None:
            await self._release()

    async def on_partitions_assigned(self, assigned: Any) -> None:
        """Called after a rebalance."""
        self._consumer.pause(*assigned)
        self.owned = {tp.partition for tp in assigned if isinstance(tp, TopicPartition)}
        self._changed.set()
        log.info("shards assigned", shards=sorted(self.owned), generation=self._coordinator.generation)
        if self._take is not None:
            await self._take(self.owned)

    async def confirm(self, shard: int) -> int | None:
        """Ask the group, now, whether the shard is ours: the generation by which it is, or None."""
        held = shard in self.owned and await self._coordinator._do_heartbeat()
        return int(self._coordinator.generation) if held and shard in self.owned else None

    async def await_ownership(self, shard: int) -> int:
        """Wait until the group says that the shard is ours."""
        while True:
            self._changed.clear()
            generation = await self.confirm(shard)
            if generation is not None:
                return generation
            await _wait(self._changed, POLL_S)

    @property
    def _coordinator(self) -> Any:
        # aiokafka shows neither the generation nor a heartbeat in public; the contract test holds both names
        return self._consumer._coordinator


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
