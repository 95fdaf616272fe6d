"""Which shards this worker owns: its membership in the consumer group `<prefix>.workers` on the
state topic.

A shard is a partition of the state topic, so Kafka's own group protocol assigns the shards. It
handles workers that come and go, and moves the shards of a killed worker after a session timeout.
If there is one shard only, a second process stands by. Nothing is consumed through the group; its
partitions stay paused.

An assignment may be outdated when the worker acts on it. A worker that was delayed between the
assignment and InitProducerId would fence the rightful owner. So `confirm` asks the group's
coordinator with a heartbeat of our generation, before a shard is taken and again before anything is
written to it (docs/exactly-once.md#takeover). Comparing generations alone would not do: Kafka
forgets a group that was empty for a while, and then counts from 1 again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import GroupAuthorizationFailedError, KafkaError, TopicAuthorizationFailedError
from aiokafka.structs import TopicPartition

from overlay.clock import monotonic
from overlay.errors import CredentialsRefused, SourceUnavailable
from overlay.kafka.connection import BOOTSTRAP_S, for_aiokafka, mend_client
from overlay.kafka.own_topics import workers_group
from overlay.kafka.properties import Properties
from overlay.logs import get_logger
from overlay.waits import finish_within, unless

from .assignor import make_assignor

log = get_logger(__name__)

SESSION_MS = 6_000
HEARTBEAT_MS = 1_500
POLL_S = 1.0
LEAVE_S = 5.0
CONFIRM_S = SESSION_MS / 1000
"""Seconds that the coordinator has to confirm an assignment. A worker that it has not heard for so long is no member."""
LEASE_S = CONFIRM_S / 2
"""Seconds for which a confirmation counts: the coordinator removes no member before the session timeout."""
METADATA_MS = 5_000
"""How old the state topic's metadata may be. The member that leads the group deals out the partitions that it knows; where its
first question for them was lost, no worker is given a shard until it asks again."""
FETCH_MS = 10_000
"""How often the consumer looks for something to fetch. All of its partitions are paused, so there never is."""


Take = Callable[[set[int]], Awaitable[None]]
"""Serves the shards with these numbers."""
Release = Callable[[], Awaitable[None]]
"""Commits what is under way and releases all shards."""


class Membership(ConsumerRebalanceListener):  # type: ignore[misc]
    """This worker's membership in the consumer group that assigns the shards. `owned`: the shards
    that are assigned to this worker, empty during a rebalance."""

    def __init__(self, kafka: Properties, prefix: str, topic: str, *, drained: bool = False) -> None:
        """`topic`: the state topic. `drained`: whether this worker wants no shards as long as others do (`drain`)."""
        self.owned: set[int] = set()
        self.drained = drained
        self._told_drained = drained
        """What the group was told of that when we joined it last."""
        self._confirmed_at = -math.inf
        """When the last heartbeat was sent that confirmed the present assignment, monotonic seconds."""
        self._topic = topic
        self._take: Take | None = None
        self._release: Release | None = None
        self._changed = asyncio.Event()
        self._heartbeats: set[asyncio.Future[bool]] = set()
        """Those of `confirm` that are under way."""
        self._consumer = AIOKafkaConsumer(
            **for_aiokafka(kafka),
            group_id=workers_group(prefix),
            enable_auto_commit=False,
            auto_offset_reset="latest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            rebalance_timeout_ms=30_000,
            metadata_max_age_ms=METADATA_MS,
            consumer_timeout_ms=FETCH_MS,
            partition_assignment_strategy=(make_assignor(self._tell_drained),),
        )
        mend_client(self._consumer._client, kafka)

    async def start(self) -> None:
        """Connect to Kafka; `run` joins the group. Raises SourceUnavailable."""
        try:
            await finish_within(self._consumer.start(), BOOTSTRAP_S)
        except asyncio.CancelledError:
            await self._leave()
            raise
        except (KafkaError, OSError) as error:
            await self._consumer.stop()
            raise SourceUnavailable(f"cannot join the group of workers: {error}") from error

    async def run(self, stop: asyncio.Event, take: Take, release: Release) -> None:
        """Join the group and stay a member until `stop`; then release the shards and leave. Raises
        CredentialsRefused.

        After each rebalance, `take` is awaited with the shards assigned to us, all of them.
        `release` is awaited before shards are assigned anew, within the rebalance, and at the end.
        """
        self._take, self._release = take, release
        try:
            self._consumer.subscribe([self._topic], listener=self)
            while not stop.is_set():
                # the poll returns no records, only the coordinator's errors, and proves that we are
                # alive; within a rebalance it does not return, whatever its timeout
                if await unless(stop, self._poll()):
                    await _wait(stop, POLL_S)
        finally:
            # a rebalance under way may still assign shards, which would then run forever
            self._take = None
            await self.on_partitions_revoked([])
            await self._leave()

    async def _leave(self) -> None:
        """Leave the group and close the connections. The wait is limited to LEAVE_S: a coordinator
        that does not answer must not delay the end, and it notices by itself that a member is
        missing."""
        try:
            async with asyncio.timeout(LEAVE_S):
                if self._heartbeats:
                    # a heartbeat that is under way might connect anew, after all connections are closed
                    await asyncio.wait(self._heartbeats)
                await self._consumer.stop()
        except TimeoutError:
            log.warning("the group of workers does not answer; left without its leave", seconds=LEAVE_S)

    async def _poll(self) -> None:
        """Call the consumer's poll, so that it takes part in rebalances. It returns no records.
        Errors of Kafka are logged, but a refused access raises CredentialsRefused."""
        try:
            await self._consumer.getmany()
        except (GroupAuthorizationFailedError, TopicAuthorizationFailedError) as error:
            raise CredentialsRefused(f"Kafka does not let us join the group of workers: {error}") from error
        except KafkaError as error:
            log.warning("the group of workers cannot be reached", reason=str(error))

    async def on_partitions_revoked(self, revoked: Any) -> None:
        """Release all shards before a rebalance, and wait for it, so that everything is committed
        when the next owners read the state. aiokafka calls it."""
        self.owned = set()
        self._confirmed_at = -math.inf
        if self._release is not None:
            await self._release()

    async def on_partitions_assigned(self, assigned: Any) -> None:
        """Record the assigned partitions as the shards that we own, and wait until `take` has taken
        them. aiokafka calls it after a rebalance."""
        self._consumer.pause(*assigned)
        self.owned = {tp.partition for tp in assigned if isinstance(tp, TopicPartition)}
        self._changed.set()
        log.info("shards assigned", shards=sorted(self.owned), generation=self._coordinator.generation)
        if self._take is not None:
            await self._take(self.owned)
        # what was said while the group was being joined came too late for it
        self._join_if_changed()

    def drain(self, *, drained: bool) -> None:
        """Have the group give our shards to other members, or give us some again. Returns at once; the group deals the
        shards out anew. A group whose members are all drained deals them out as if none was.
        """
        self.drained = drained
        self._join_if_changed()

    def _tell_drained(self) -> bool:
        """Return whether we want no shards, for the group that is being joined."""
        self._told_drained = self.drained
        return self.drained

    def _join_if_changed(self) -> None:
        """Join the group anew if it was told something else than we want now."""
        if self._told_drained != self.drained:
            self._coordinator.request_rejoin()

    async def confirm(self, shard: int) -> int | None:
        """Send the group's coordinator a heartbeat, to learn whether the shard is still assigned to
        us. Return the group's generation if it is. Return None if not, or if there is no answer
        within CONFIRM_S."""
        if shard not in self.owned:
            return None
        asked_at = monotonic()
        try:
            async with asyncio.timeout(CONFIRM_S):
                heartbeat = asyncio.ensure_future(self._coordinator._do_heartbeat())
                self._heartbeats.add(heartbeat)
                heartbeat.add_done_callback(self._heartbeats.discard)
                is_member = await heartbeat
        except TimeoutError:
            return None
        if not is_member or shard not in self.owned:
            return None
        self._confirmed_at = asked_at
        return int(self._coordinator.generation)

    async def is_owner(self, shard: int) -> bool:
        """Return whether the shard is assigned to us. The coordinator is asked (`confirm`) unless
        it has confirmed that within the last LEASE_S."""
        if shard in self.owned and monotonic() < self._confirmed_at + LEASE_S:
            return True
        return await self.confirm(shard) is not None

    async def await_ownership(self, shard: int) -> int:
        """Wait, without limit, until the coordinator confirms that the shard is assigned to us.
        Return the group's generation."""
        while True:
            self._changed.clear()
            generation = await self.confirm(shard)
            if generation is not None:
                return generation
            await _wait(self._changed, POLL_S)

    @property
    def _coordinator(self) -> Any:
        # aiokafka has no public access to the generation, to a heartbeat or to joining anew; the contract
        # test checks that these names exist
        return self._consumer._coordinator


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, or until the seconds have passed."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
