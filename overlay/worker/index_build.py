"""`overlay index build`: a worker that serves no consumers and makes the chunk index of one stream
up to the end of its log.

It is made of the service's own parts. The shard that keeps the stream's index runs without
consumers. So the index is written as the service writes it, and crashes and truncated logs are
handled as there. What was committed stays: the next build goes on behind it, and so does the
service.

A shard has one owner, which the group of workers decides. So a build is a member of that group like
any worker. It does not begin while the group has members, since a service keeps the index itself.
It ends as soon as another member joins; that one would otherwise wait for the shards that the build
owns and does not serve.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field

from overlay.config import Loaded
from overlay.errors import OverlayError
from overlay.kafka.admin import Admin
from overlay.kafka.connection import reach
from overlay.kafka.log_position import TopicPartition
from overlay.kafka.own_topics import shard_of, state_topic
from overlay.metrics import Metrics
from overlay.state.takeover import ensure_state_topic, refuse_running_service

from .membership import Membership
from .round.task import Counts
from .service import SWITCH_S
from .session import Session
from .shard import Shard
from .shard_manager import RELEASE_S
from .warmup import load_kernels

LOOK_S = 0.05
"""Seconds between two looks at the progress."""
REACH_S = 5.0
"""Seconds to wait for Kafka at the start."""


@dataclass(slots=True)
class Build:
    """One run of `overlay index build`: makes the chunk index of `stream` up to the end of its log.
    `done`, `fresh` and `total` change while it runs, so that progress can be shown."""

    loaded: Loaded
    stream: str
    done: int = 0
    """Offsets of `total` that are indexed, including those of earlier builds."""
    fresh: int = 0
    """Offsets that this build has indexed."""
    total: int | None = None
    """Offsets of all partitions; None until Kafka has told where the logs end."""
    _bounds: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    _found: int | None = None
    """Offsets that were indexed before, None until that is known."""
    _shard: Shard | None = None
    _serving: asyncio.Task[None] | None = None
    _enough: asyncio.Event = field(default_factory=asyncio.Event)
    _leave: asyncio.Event = field(default_factory=asyncio.Event)
    _reached: bool = False
    _fault: str = ""

    async def run(self, stop: asyncio.Event) -> bool:
        """Index up to the present end of the log, or until `stop`. Return whether the end was reached.

        Raises OverlayError if another worker is in the group or joins it, if the stream or its index is refused, or
        if a corrupt batch stops a partition. Raises SourceUnavailable or CredentialsRefused if Kafka cannot be
        reached, in an exception group once the build has joined the group of workers. What was committed stays.
        """
        service = self.loaded.service
        await reach(service.kafka, REACH_S)
        async with Admin(service.kafka) as admin:
            await self._join(admin, stop)
        if self._fault:
            raise OverlayError(self._fault)
        return self._reached

    async def _join(self, admin: Admin, stop: asyncio.Event) -> None:
        """Prepare the state topic and the kernels, then index as a member of the group of workers.
        Raises OverlayError if the group has members."""
        service = self.loaded.service
        await refuse_running_service(admin, service.topics.prefix)
        await asyncio.to_thread(load_kernels)
        count = await ensure_state_topic(admin, service.topics.prefix, service.shards, service.topics.replication)
        topic = state_topic(service.topics.prefix)
        membership = Membership(service.kafka, service.topics.prefix, topic, is_cooperative=False)
        await membership.start()
        interval = sys.getswitchinterval()
        try:
            sys.setswitchinterval(SWITCH_S)
            await self._work(admin, membership, shard_of((self.stream,), count), stop)
        finally:
            sys.setswitchinterval(interval)

    async def _work(self, admin: Admin, membership: Membership, number: int, stop: asyncio.Event) -> None:
        """Run the shard as a member of the group of workers, until `_end` is called.

        `_end` is called when `stop` is set, the index reaches the end of the log or is refused, or
        another worker joins the group. `number`: of the shard that keeps the stream's index.
        """
        metrics = Metrics()
        async with asyncio.TaskGroup() as group:

            async def take(numbers: frozenset[int]) -> bool:
                """Begin to run the shard if it is among `numbers` and does not run yet. If it is
                not among them, another worker is in the group: make the build fail. Return True: no
                other shard runs."""
                if number not in numbers:
                    self._end("another worker has joined the group and keeps the index itself")
                elif self._serving is None:
                    self._shard = Shard(self.loaded, number, {}, (self.stream,), admin, metrics, membership, _ignore)
                    self._serving = group.create_task(self._shard.run(self._enough), name=f"shard-{number}")
                return True

            watching = group.create_task(self._watch(admin, stop), name="watch")
            try:
                await membership.run(self._leave, take, self._release)
            finally:
                watching.cancel()

    async def _release(self) -> None:
        """Have the shard commit what is under way and end, and wait for that; cancel it after
        RELEASE_S. Unless the build is ending already, another worker has joined the group, so the
        build fails."""
        if self._serving is None:
            return
        if not self._leave.is_set():
            self._end("another worker has joined the group; a service keeps the index itself")
        self._enough.set()
        _, late = await asyncio.wait({self._serving}, timeout=RELEASE_S)
        for task in late:
            task.cancel()

    def _end(self, fault: str = "") -> None:
        """Make the build leave the group of workers, which ends it. May be called repeatedly.

        `fault`: why the build fails, "" if it does not. `run` raises the first fault.
        """
        self._fault = self._fault or fault
        self._leave.set()

    async def _watch(self, admin: Admin, stop: asyncio.Event) -> None:
        """Update the counts every LOOK_S seconds until `_end` is called. If `stop` is set, call `_end`."""
        while not self._leave.is_set():
            if stop.is_set():
                self._end()
            elif self._shard is not None and self._shard.session is not None:
                await self._look(admin, self._shard.session)
            await asyncio.sleep(LOOK_S)

    async def _look(self, admin: Admin, session: Session) -> None:
        """Update the counts. Call `_end` if the index is refused, or if it has reached the log's
        end in every partition.

        The end is that of the first call. A partition that a corrupt batch stops counts as
        finished, but the build then fails with the reason.
        """
        assignment = session.assignment
        if fault := assignment.stopped.get(self.stream) or assignment.unindexed.get(self.stream):
            return self._end(fault)
        if not self._bounds:
            self._bounds = await admin.find_bounds(assignment.sources[self.stream].partitions)
        positions = {
            source: max(cursor.position for cursor in session.cursors.of((self.stream, source)) if cursor.indexed)
            for source in self._bounds
        }
        self.total = sum(end - first for first, end in self._bounds.values())
        self.done = sum(min(positions[s], end) - min(first, end) for s, (first, end) in self._bounds.items())
        self._found = self.done if self._found is None else self._found
        self.fresh = self.done - self._found
        halted = {source: str(why) for (_, source), why in session.cursors.halts.items()}
        if all(positions[source] >= end or source in halted for source, (_, end) in self._bounds.items()):
            self._reached = not halted
            self._end("; ".join(halted.values()))


def _ignore(counts: Counts) -> None:
    """Do nothing after a commit: the cursors' positions tell how far the index is."""
