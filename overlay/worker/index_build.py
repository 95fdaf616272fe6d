"""`overlay index build`: a worker that serves nobody and makes the chunk index of one stream, up to the end of its log.

It is made of the service's own parts. The shard that keeps the stream's index is run with no consumers, so what is written,
what happens after a crash and what becomes of a log that was cut are as ever. Whatever has been committed stays: the next
build goes on behind it, and so does the service.

A shard has one owner, and who that is the group of workers says. So a build is a member of that group like any worker. It
does not begin where the group has members, since a service keeps the index itself; and it ends as soon as another one joins,
which would otherwise wait for the shards that we hold and do not serve.
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
from overlay.metrics import Metrics
from overlay.state.takeover import ensure_state_topic, state_topic

from .membership import Membership
from .round.pipeline import RoundResult
from .service import SWITCH_S
from .session import Session
from .shard import Shard
from .shard_manager import RELEASE_S, shard_of
from .warmup import load_kernels

LOOK_S = 0.05
REACH_S = 5.0


@dataclass(slots=True)
class Build:
    """Good for one run. The counts change while it goes on."""

    loaded: Loaded
    stream: str
    done: int = 0
    """Offsets that have been read, of `total`, those of earlier builds included."""
    fresh: int = 0
    """Those of them that this one has read."""
    total: int | None = None
    """None until Kafka has said where the log ends."""
    _bounds: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    _found: int | None = None
    """What was done before."""
    _shard: Shard | None = None
    _serving: asyncio.Task[None] | None = None
    _enough: asyncio.Event = field(default_factory=asyncio.Event)
    _leave: asyncio.Event = field(default_factory=asyncio.Event)
    _reached: bool = False
    _fault: str = ""

    async def run(self, stop: asyncio.Event) -> bool:
        """Index until the present end of the log, or until `stop`; whether it came to the end.

        Raises OverlayError when a worker is there or comes, when the stream or its index is refused, and
        SourceUnavailable or CredentialsRefused when Kafka is not to be reached. What was committed stays.
        """
        service = self.loaded.service
        await reach(service.kafka, REACH_S)
        async with Admin(service.kafka) as admin:
            await self._join(admin, stop)
        if self._fault:
            raise OverlayError(self._fault)
        return self._reached

    async def _join(self, admin: Admin, stop: asyncio.Event) -> None:
        """Become a member of the group of workers, and work."""
        service = self.loaded.service
        await refuse_company(admin, service.topics.prefix)
        await asyncio.to_thread(load_kernels)
        count = await ensure_state_topic(admin, service.topics.prefix, service.shards, service.topics.replication)
        membership = Membership(service.kafka, service.topics.prefix, state_topic(service.topics.prefix))
        await membership.start()
        interval = sys.getswitchinterval()
        try:
            sys.setswitchinterval(SWITCH_S)
            await self._work(admin, membership, shard_of((self.stream,), count), stop)
        finally:
            sys.setswitchinterval(interval)

    async def _work(self, admin: Admin, membership: Membership, number: int, stop: asyncio.Event) -> None:
        metrics = Metrics()
        async with asyncio.TaskGroup() as group:

            async def take(numbers: set[int]) -> None:
                if number not in numbers:
                    self._end("another worker has joined the group and keeps the index itself")
                elif self._serving is None:
                    self._shard = Shard(self.loaded, number, {}, (self.stream,), admin, metrics, membership, _ignore)
                    self._serving = group.create_task(self._shard.run(self._enough), name=f"shard-{number}")

            watching = group.create_task(self._watch(admin, stop), name="watch")
            try:
                await membership.run(self._leave, take, self._release)
            finally:
                watching.cancel()

    async def _release(self) -> None:
        """Commit what is under way and let go of the shard: we are through, or somebody else has joined the group."""
        if self._serving is None:
            return
        if not self._leave.is_set():
            self._end("another worker has joined the group; a service keeps the index itself")
        self._enough.set()
        _, late = await asyncio.wait({self._serving}, timeout=RELEASE_S)
        for task in late:
            task.cancel()

    def _end(self, fault: str = "") -> None:
        self._fault = self._fault or fault
        self._leave.set()

    async def _watch(self, admin: Admin, stop: asyncio.Event) -> None:
        """Look at how far it is until there is a reason to leave."""
        while not self._leave.is_set():
            if stop.is_set():
                self._end()
            elif self._shard is not None and self._shard.session is not None:
                await self._look(admin, self._shard.session)
            await asyncio.sleep(LOOK_S)

    async def _look(self, admin: Admin, session: Session) -> None:
        assignment = session.assignment
        if fault := assignment.stopped.get(self.stream) or assignment.unindexed.get(self.stream):
            return self._end(fault)
        if not self._bounds:
            self._bounds = await admin.find_bounds(assignment.sources[self.stream].partitions)
        positions = {
            source: max(cursor.position for cursor in session.positions.cursors[self.stream, source] if cursor.indexed)
            for source in self._bounds
        }
        self.total = sum(end - first for first, end in self._bounds.values())
        self.done = sum(min(positions[s], end) - min(first, end) for s, (first, end) in self._bounds.items())
        self._found = self.done if self._found is None else self._found
        self.fresh = self.done - self._found
        halted = {source: why for (_, source), why in session.halted.items()}
        if all(positions[source] >= end or source in halted for source, (_, end) in self._bounds.items()):
            self._reached = not halted
            self._end("; ".join(halted.values()))


def _ignore(outcome: RoundResult) -> None:
    """Nobody asks what was committed: positions tell how far it is."""


async def refuse_company(admin: Admin, prefix: str) -> None:
    """Raises OverlayError while the group of workers has members."""
    count = await admin.count_members(f"{prefix}.workers")
    if count:
        raise OverlayError(
            f"a service with topics.prefix {prefix!r} is running ({count} member{'s' if count > 1 else ''} in the group"
            f" {prefix}.workers), and it keeps the indexes of its streams itself; see `overlay index status`. One that was"
            " killed is forgotten after some seconds"
        )
