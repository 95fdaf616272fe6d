"""Logs that lose their end, or are created again. The loss of a source stops its stream, and an operator resets the stream to
the start, as `overlay stream reset` does.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping

from overlay.errors import OverlayError
from overlay.kafka.admin import Admin
from overlay.state.amend import amend
from overlay.view.rewind import Where, plan_rewind
from overlay.view.stored import read_memory

from .applications import Run
from .kafka.topics import Partition
from .plan import ACKS, SOURCE, STREAM, Kind

RESET_AFTER_S = 30.0
"""Longest time from a loss to the reset. The log may have grown past the readers' positions by then, or not."""
MOST_LOST = 20
AGAIN_S = 2.0
PATIENCE_S = 240.0


class LogLosses:
    """Losses of the source and of acks. `acts` says how each kind of mishap is carried out."""

    def __init__(self, run: Run) -> None:
        self._run, self._world = run, run.world
        self._lock = asyncio.Lock()
        self._attempts = 0
        self.acts: Mapping[Kind, Callable[[random.Random], Awaitable[None]]] = {
            Kind.CUT: self._cut,
            Kind.RENEW: self._renew,
            Kind.CUT_ACKS: self._cut_acks,
        }

    async def _cut(self, chance: random.Random) -> None:
        """Cut the source, and reset the stream."""
        async with self._lock:
            if self._lose_end(SOURCE, chance):
                await self._reset(chance)

    async def _cut_acks(self, chance: random.Random) -> None:
        """Cut the ack topic. The service goes on by itself."""
        if ACKS in self._world.cluster.topics:
            self._lose_end(ACKS, chance)

    def _lose_end(self, topic: str, chance: random.Random) -> bool:
        """Have a broker lead a partition that lacks its last records. Return False if no broker can lead it."""
        partition = chance.choice(self._world.cluster.topics[topic].partitions)
        heir = self._find_heir(partition)
        if heir is None:
            return False
        self._run.archive.keep_whole(topic)
        lost = chance.randint(1, MOST_LOST)
        with self._world.at_cluster(f"{topic}-{partition.index} loses its last {lost} offsets") as cluster:
            cluster.move_leader(topic, partition.index, heir, unclean=True, lose=lost)
        return True

    def _find_heir(self, partition: Partition) -> int | None:
        """Return a broker that may lead a partition, if possible another one than now."""
        others = [node for node in partition.replicas if node in self._world.cluster.up and node != partition.leader]
        if others:
            return others[0]
        return partition.leader if partition.leader in self._world.cluster.up else None

    async def _renew(self, chance: random.Random) -> None:
        """Delete the topic and create it again."""
        async with self._lock:
            self._run.archive.keep_whole(SOURCE)
            with self._world.at_cluster(f"{SOURCE} is deleted and created again") as cluster:
                cluster.recreate_topic(SOURCE)
            await self._reset(chance)

    async def _reset(self, chance: random.Random) -> None:
        """Begin the stream anew at its start, and try again until that succeeds."""
        await asyncio.sleep(RESET_AFTER_S * chance.random())
        async with asyncio.timeout(PATIENCE_S):
            while not await self._try_reset():  # noqa: ASYNC110
                await asyncio.sleep(AGAIN_S)

    async def _try_reset(self) -> bool:
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._attempts += 1
        self._run.resets.append(self._world.settings.wall_ms0 + self._world.loop.now * 1000)
        self._world.start(f"operator-{self._attempts}", self._work(done))
        return await done

    async def _work(self, done: asyncio.Future[bool]) -> None:
        loaded = self._run.files.read(self._world, self._run.plan)
        try:
            memory = await read_memory(loaded)
            rewind = plan_rewind(loaded, memory, STREAM, Where.START)
            async with Admin(loaded.service.kafka) as admin:
                await amend(loaded.service, admin, rewind.change)
        except OverlayError as error:
            self._world.tell(f"the stream is not reset: {error}")
            done.set_result(False)
        else:
            self._world.tell("the stream is reset")
            done.set_result(True)
