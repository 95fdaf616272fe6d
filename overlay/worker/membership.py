"""Which shards this worker owns: its membership in the consumer group `<prefix>.workers` on the
state topic.

A shard is a partition of the state topic, so Kafka's own group protocol assigns the shards. It
handles workers that come and go, and moves the shards of a killed worker after a session timeout.
If there is one shard only, a second process stands by. Nothing is consumed through the group; its
partitions stay paused.

A rebalance stops no shard that stays where it is. One that moves is released by its owner first,
and only then assigned to the next one (assignor.py); all workers send heartbeats quickly meanwhile.
A worker that is asked to stop lets the others take its shards in this way before it leaves
(docs/exactly-once.md#moving-shards).

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
from overlay.credentials import stamp
from overlay.errors import CredentialsRefused, SourceUnavailable
from overlay.kafka.connection import BOOTSTRAP_S, for_aiokafka, mend_client
from overlay.kafka.own_topics import workers_group
from overlay.kafka.properties import Properties
from overlay.logs import get_logger
from overlay.waits import finish_within, is_cancelled, unless

from .assignor import Member, make_assignor

log = get_logger(__name__)

SESSION_MS = 6_000
HEARTBEAT_MS = 750
POLL_S = 1.0
LEAVE_S = 5.0
GIVE_UP_S = 3.0
"""Seconds that the other workers have to join the group anew before a worker leaves: some heartbeats."""
HURRY_S = 0.1
"""Seconds between two heartbeats while shards are between two owners."""
HURRIES = 100
"""How many such heartbeats are sent for one assignment at most."""
CONFIRM_S = SESSION_MS / 1000
"""Seconds that the coordinator has to confirm an assignment. A worker that it has not heard for so long is no member."""
LEASE_S = CONFIRM_S / 2
"""Seconds for which a confirmation counts: the coordinator removes no member before the session timeout."""
METADATA_MS = 5_000
"""How old the state topic's metadata may be. The member that leads the group deals out the partitions that it knows; where its
first question for them was lost, no worker is given a shard until it asks again."""
FETCH_MS = 10_000
"""How often the consumer looks for something to fetch. All of its partitions are paused, so there never is."""


Take = Callable[[frozenset[int]], Awaitable[bool]]
"""Begins to serve those of the shards with these numbers that are not served yet, then stops all others. Returns whether that
was done; False if these are not the shards of the last assignment any more."""
Release = Callable[[], Awaitable[None]]
"""Commits what is under way and releases all shards."""


class Membership(ConsumerRebalanceListener):  # type: ignore[misc]
    """This worker's membership in the consumer group that assigns the shards. `owned`: the shards
    that are assigned to this worker, empty during a rebalance. They are served on meanwhile."""

    def __init__(
        self, kafka: Properties, prefix: str, topic: str, *, drained: bool = False, is_cooperative: bool = True
    ) -> None:
        """`topic`: the state topic. `drained`: whether this worker wants no shards as long as others do (`drain`).
        `is_cooperative`: whether shards are served on in a rebalance; otherwise all are released before it."""
        self.owned: frozenset[int] = frozenset()
        self.drained = drained
        self._is_leaving = False
        self._is_cooperative = is_cooperative
        self._told = Member()
        """What the group was told when we joined it last."""
        self._held: frozenset[int] = frozenset()
        """Shards that are assigned to us, and those that still run here though they are not any more."""
        self._generation = -1
        """Of the group when shards were assigned to us last."""
        self._is_lost = False
        """Whether the group has lost us since, so that other workers may run what we hold."""
        self._confirmed_at = -math.inf
        """When the last heartbeat was sent that confirmed the present assignment, monotonic seconds."""
        self._topic = topic
        self._take: Take | None = None
        self._release: Release | None = None
        self._changed = asyncio.Event()
        """Set at each assignment, for waits that clear it before."""
        self._is_assigned = asyncio.Event()
        """Set from an assignment to the next rebalance."""
        self._dealt = asyncio.Event()
        """Set at an assignment, until `_follow` has seen it."""
        self._moving = asyncio.Event()
        """Set while shards wait for their present owners to let go of them: the next rebalance is near."""
        self._settled = asyncio.Event()
        """Set while no shards run here but those that are assigned to us."""
        self._heartbeats: set[asyncio.Future[bool]] = set()
        """Those of ours, beside those of the consumer, that are under way."""
        seen = stamp(kafka)
        self._consumer = self._make_consumer(kafka, workers_group(prefix))
        mend_client(self._consumer._client, kafka, seen)

    def _make_consumer(self, kafka: Properties, group: str) -> AIOKafkaConsumer:
        """Return the consumer that joins the group; it fetches nothing."""
        return AIOKafkaConsumer(
            **for_aiokafka(kafka),
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="latest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            rebalance_timeout_ms=30_000,
            metadata_max_age_ms=METADATA_MS,
            consumer_timeout_ms=FETCH_MS,
            partition_assignment_strategy=(make_assignor(self._topic, self._describe, self._note_moving),),
        )

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
        """Join the group and stay a member until `stop`; then hand the shards over and leave. Raises
        CredentialsRefused.

        After a rebalance, unless the next one has begun, `take` is awaited with the shards assigned to us, all of
        them; calls do not overlap. `release` is awaited if the group has lost us, before each rebalance if this
        member is not cooperative, and at the end.
        """
        self._take, self._release = take, release
        helpers = [asyncio.create_task(self._follow()), asyncio.create_task(self._hurry())]
        try:
            self._consumer.subscribe([self._topic], listener=self)
            while not stop.is_set():
                # the poll returns no records, only the coordinator's errors, and proves that we are
                # alive; within a rebalance it does not return, whatever its timeout
                if await unless(stop, self._poll()):
                    await _wait(stop, POLL_S)
            await self._give_up()
        finally:
            # a rebalance under way may still assign shards, which would then run forever
            self._take = None
            self.owned = frozenset()
            self._is_assigned.set()  # a takeover that waits to be confirmed is to end
            try:
                await release()
            finally:
                for helper in helpers:
                    helper.cancel()
                try:
                    await asyncio.gather(*helpers, return_exceptions=True)
                finally:
                    # otherwise a member that serves nothing would keep its shards from the others
                    await self._leave()

    async def _give_up(self) -> None:
        """Have the other workers take our shards before we leave, so that each is without an owner as
        short as can be. Return when we hold none any more, after GIVE_UP_S, or as soon as the group
        assigns shards to us all the same, since no other worker takes them."""
        if not self._held or not self._is_cooperative:
            return
        self._is_leaving = True
        self._join_if_changed()
        try:
            async with asyncio.timeout(GIVE_UP_S):
                while not (self._told.drained and self._is_assigned.is_set()):
                    self._changed.clear()
                    await self._changed.wait()
                if not self.owned:
                    await self._settled.wait()
        except TimeoutError:
            log.info("leaving before other workers have taken the shards", shards=sorted(self._held))

    async def _follow(self) -> None:
        """Have the shards of each assignment taken, and join the group anew when others that we held
        are released, for then their next owners can have them. Runs until it is cancelled."""
        while True:
            await self._dealt.wait()
            self._dealt.clear()
            try:
                await self._catch_up()
            except (Exception, asyncio.CancelledError) as error:
                if is_cancelled():
                    raise
                # if this ended silently, no shard would be taken or given up any more
                log.exception("the shards could not be taken", shards=sorted(self.owned), cause=type(error).__name__)
                await asyncio.sleep(POLL_S)
                self._dealt.set()

    async def _catch_up(self) -> None:
        """Let go of everything if the group has lost us; then have the shards of the last assignment
        taken, unless the group deals out shards again already."""
        if self._is_lost:
            await self._let_go()
        numbers = self.owned
        if not self._is_assigned.is_set() or self._take is None or not await self._take(numbers):
            return
        # an assignment that came meanwhile is taken next
        self._held = numbers | self.owned
        if not self._dealt.is_set():
            self._settled.set()
        # to leave the group has the same effect, and is done next
        if not self._is_leaving:
            self._join_if_changed()

    async def _let_go(self) -> None:
        """Release all shards, since other workers may have them or are about to: the group has lost us, or this
        member is not cooperative. Shards that are assigned to us again meanwhile count as held.
        """
        if self._release is not None:
            await self._release()
        self._held, self._is_lost = self.owned, False

    async def _hurry(self) -> None:
        """Send the coordinator a heartbeat every HURRY_S, up to HURRIES times, while shards wait for their
        present owners to let go of them. So we hear of the next rebalance at once: a shard that was let
        go of has no owner until all members have joined it. Runs until it is cancelled."""
        while True:
            await self._moving.wait()
            try:
                for _ in range(HURRIES):
                    await asyncio.sleep(HURRY_S)
                    if not self._moving.is_set():
                        break
                    await self._beat()
                self._moving.clear()
            except (Exception, asyncio.CancelledError) as error:
                if is_cancelled():
                    raise
                # if this ended silently, shards between two owners would wait for the next usual heartbeat
                log.exception("a heartbeat failed", cause=type(error).__name__)
                await asyncio.sleep(POLL_S)

    async def _beat(self) -> bool:
        """Send the group's coordinator a heartbeat of our generation. Return whether it knows us; False
        also for an error, or for no answer within CONFIRM_S. If the answer says that we have to join
        anew, aiokafka's consumer does that."""
        try:
            async with asyncio.timeout(CONFIRM_S):
                heartbeat = asyncio.ensure_future(self._coordinator._do_heartbeat())
                self._heartbeats.add(heartbeat)
                heartbeat.add_done_callback(self._heartbeats.discard)
                return bool(await heartbeat)
        except (TimeoutError, KafkaError, OSError):
            return False

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
        """Note that a rebalance begins; aiokafka calls it before the group is joined. Shards are
        served on, since the group gives them to no other worker before we have let go of them. If the
        group has lost us, or if this member is not cooperative, wait until all are released.
        """
        self.owned = frozenset()
        self._confirmed_at = -math.inf
        self._moving.clear()
        if not self._is_cooperative or not self._is_known:
            await self._let_go()
        # only now, and not at the end: a takeover under way would wait to be confirmed, and hold up its own end
        if self._take is not None:
            self._is_assigned.clear()

    async def on_partitions_assigned(self, assigned: Any) -> None:
        """Record the assigned partitions as the shards that we own. `_follow` takes them, since no
        heartbeats are sent before this returns. aiokafka calls it after a rebalance."""
        self._consumer.pause(*assigned)
        if self._take is None:
            return
        self.owned = frozenset(tp.partition for tp in assigned if isinstance(tp, TopicPartition))
        self._generation = self._coordinator.generation
        self._held |= self.owned
        log.info("shards assigned", shards=sorted(self.owned), generation=self._generation)
        self._settled.clear()
        for event in (self._changed, self._is_assigned, self._dealt):
            event.set()
        # what was said while the group was being joined came too late for it
        self._join_if_changed()

    def drain(self, *, drained: bool) -> None:
        """Have the group give our shards to other members, or, if not `drained`, give us some again. Does not wait until the
        group has dealt the shards out anew. A group whose members are all drained deals them out as if none was.
        """
        self.drained = drained
        self._join_if_changed()

    @property
    def generation(self) -> int:
        """The group's generation when it assigned shards to us last, -1 before."""
        return self._generation

    def is_assigned(self, numbers: frozenset[int]) -> bool:
        """Return whether exactly these shards are assigned to us; False within a rebalance and at the end."""
        return self._take is not None and self._is_assigned.is_set() and numbers == self.owned

    @property
    def is_moving(self) -> bool:
        """Whether shards wait for their present owners to let go of them, by the last assignment. False within a
        rebalance, and once HURRIES heartbeats were sent since the assignment."""
        return self._moving.is_set()

    @property
    def _wants_none(self) -> bool:
        """Whether this worker wants no shards as long as others do: it is drained, or about to leave."""
        return self.drained or self._is_leaving

    @property
    def _is_known(self) -> bool:
        """Whether the group knows us, as far as we have heard: aiokafka forgets its generation when the
        coordinator does not."""
        return bool(self._coordinator.generation >= 0)

    def _describe(self) -> Member:
        """Return what to tell the group that is being joined. A worker that the group has lost holds
        nothing, even if it still runs shards: `_follow` stops them now."""
        if self._held and not self._is_known:
            self._is_lost = True
            self._dealt.set()
        holds = frozenset[int]() if self._is_lost or not self._is_cooperative else self._held
        self._told = Member(holds, self._generation if holds else -1, self._wants_none)
        return self._told

    def _note_moving(self, is_under_way: bool) -> None:
        """Set `_moving` if shards wait for their present owners to let go of them. If not, leave it as
        it is: the beginning of each rebalance clears it."""
        if is_under_way:
            self._moving.set()

    def _join_if_changed(self) -> None:
        """Join the group anew if what we told it last does not hold any more: whether we want shards, or
        that we hold shards which we have released since. Does not wait for it."""
        if self._told.drained != self._wants_none or self._told.holds - self._held:
            self._coordinator.request_rejoin()

    async def confirm(self, shard: int) -> int | None:
        """Send the group's coordinator a heartbeat, to learn whether the shard is still assigned to us; within a
        rebalance, wait for its end first. Return the group's generation if it is. Return None if it is not, if the
        heartbeat fails, or if all this takes longer than CONFIRM_S.
        """
        try:
            async with asyncio.timeout(CONFIRM_S):
                await self._is_assigned.wait()
                if shard not in self.owned:
                    return None
                asked_at = monotonic()
                is_member = await self._beat()
        except TimeoutError:
            return None
        if not is_member or shard not in self.owned:
            return None
        self._confirmed_at = asked_at
        return int(self._coordinator.generation)

    async def is_owner(self, shard: int) -> bool:
        """Return whether the shard is assigned to us; within a rebalance, wait for its end first, for
        CONFIRM_S at most. The coordinator is asked (`confirm`) unless it has confirmed that within
        the last LEASE_S."""
        if self._is_assigned.is_set() and shard not in self.owned:
            return False
        if shard in self.owned and monotonic() < self._confirmed_at + LEASE_S:
            return True
        # a False within each rebalance would have the request server close the journals of all shards
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
