"""Logs that lose their end, or are created again. The loss of a source stops its stream, and an operator resets the stream to
the start, as `overlay stream reset` does.

A loss may take the marker of a transaction and leave its records. Readers of committed records wait behind them until an
operator aborts the transaction. After a loss of the control topic the operator asks again for all that was asked for, and puts
files back that say what is refused.
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

from .applications import CONTROL, Run
from .kafka.topics import Partition
from .orders import Operator
from .plan import ACKS, INDEX, SOURCE, STATE, STREAM, Kind

RESET_AFTER_S = 30.0
"""Longest time from a loss to the reset. The log may have grown past the readers' positions by then, or not."""
MOST_LOST = 20
ABORT_AFTER_S = 10.0
"""Longest time from a loss until an operator aborts the transactions whose markers are lost."""
REPAIR_AFTER_S = 20.0
"""Longest time from then until the operator asks again for what the control topic has lost."""
AGAIN_S = 2.0
PATIENCE_S = 240.0


class LogLosses:
    """Losses of the source, of outputs and dead letters, and of the service's own topics. `acts` says how each kind of mishap
    is carried out."""

    def __init__(self, run: Run, operator: Operator, put_back: Callable[[random.Random], Awaitable[None]]) -> None:
        """`put_back`: has files say again what was taken up of them."""
        self._run, self._world, self._operator, self._put_back = run, run.world, operator, put_back
        self._lock = asyncio.Lock()
        self._attempts = 0
        self.acts: Mapping[Kind, Callable[[random.Random], Awaitable[None]]] = {
            Kind.CUT: self._cut,
            Kind.RENEW: self._renew,
            Kind.CUT_ACKS: self._cut_acks,
            Kind.CUT_OUTPUT: self._cut_output,
            Kind.CUT_CONTROL: self._cut_control,
            Kind.CUT_STATE: self._cut_state,
            Kind.CUT_INDEX: self._cut_index,
            Kind.CUT_LETTERS: self._cut_letters,
        }

    async def _cut(self, chance: random.Random) -> None:
        """Cut the source, and reset the stream."""
        async with self._lock:
            if (partition := self._lose_end(SOURCE, chance)) is not None:
                await self._reset(chance)
                self._abort_hanging(partition)

    async def _cut_acks(self, chance: random.Random) -> None:
        """Cut the ack topic. The service goes on by itself."""
        if ACKS in self._world.cluster.topics:
            self._lose_end(ACKS, chance)

    async def _cut_output(self, chance: random.Random) -> None:
        """Cut an output, or the topic of answers to pulls. The service goes on by itself."""
        names = [each.output for each in self._run.plan.consumers if each.output in self._world.cluster.topics]
        if names:
            await self._cut_and_abort(chance.choice(names), chance)

    async def _cut_control(self, chance: random.Random) -> None:
        """Cut the control topic, and ask again for what was asked for."""
        if CONTROL in self._world.cluster.topics and await self._cut_and_abort(CONTROL, chance):
            await asyncio.sleep(REPAIR_AFTER_S * chance.random())
            await self._put_back(chance)
            await self._operator.repair()

    async def _cut_letters(self, chance: random.Random) -> None:
        """Cut a dead-letter topic. The service goes on by itself."""
        names = [each.letters for each in self._run.plan.consumers if each.letters in self._world.cluster.topics]
        if names:
            await self._cut_and_abort(chance.choice(names), chance)

    async def _cut_state(self, chance: random.Random) -> None:
        """Cut the state of a shard. The service goes on by itself, from an earlier state."""
        if STATE in self._world.cluster.topics and (partition := self._lose(STATE, chance)) is not None:
            self._run.rewound[partition.index] += 1
            await asyncio.sleep(ABORT_AFTER_S * chance.random())
            self._abort_hanging(partition)

    async def _cut_index(self, chance: random.Random) -> None:
        """Cut the index. If it holds the sequences of the stream, delete it, and reset the stream."""
        async with self._lock:
            partition = self._lose(INDEX, chance) if INDEX in self._world.cluster.topics else None
            if partition is not None:
                await asyncio.sleep(ABORT_AFTER_S * chance.random())
                self._abort_hanging(partition)
                if self._run.plan.partitions > 1:
                    await self._lose_rounds(chance)

    async def lose_rounds(self, chance: random.Random) -> None:
        """Do what an operator does about a ledger that has lost rounds: delete the index, and reset the stream."""
        async with self._lock:
            await self._lose_rounds(chance)

    async def _lose_rounds(self, chance: random.Random) -> None:
        await asyncio.sleep(REPAIR_AFTER_S * chance.random())
        if INDEX in self._world.cluster.topics:
            with self._world.at_cluster(f"an operator deletes {INDEX}") as cluster:
                cluster.delete_topic(INDEX)
        await self._reset(chance)

    async def _cut_and_abort(self, topic: str, chance: random.Random) -> bool:
        """Cut a topic, and have an operator abort the transactions whose markers are lost."""
        partition = chance.choice(self._world.cluster.topics[topic].partitions)
        heir, lost = self._find_heir(partition), chance.randint(1, MOST_LOST)
        if heir is None:
            return False
        self._run.archive.cut(topic, partition.index, lambda: self._elect(partition, heir, lost))
        await asyncio.sleep(ABORT_AFTER_S * chance.random())
        self._abort_hanging(partition)
        return True

    def _abort_hanging(self, partition: Partition) -> None:
        """Have an operator abort the transactions whose markers are lost."""
        topic = partition.topic.name
        with self._world.at_cluster(f"an operator looks for transactions that hang in {topic}") as cluster:
            if count := cluster.transactions.abort_hanging(partition):
                self._world.tell(f"{count} transactions are aborted in {topic}-{partition.index}")

    def _lose_end(self, topic: str, chance: random.Random) -> Partition | None:
        """Have a broker lead a partition that lacks its last records, which are kept for the judge. Return the partition,
        None if no broker can lead it."""
        return self._lose(topic, chance, keep=self._run.archive.keep_whole)

    def _lose(
        self, topic: str, chance: random.Random, keep: Callable[[str], None] = lambda topic: None
    ) -> Partition | None:
        """Have a broker lead a partition that lacks its last records. Return the partition, None if no broker can lead it.
        `keep`: called just before with the topic."""
        partition = chance.choice(self._world.cluster.topics[topic].partitions)
        heir = self._find_heir(partition)
        if heir is None:
            return None
        keep(topic)
        self._elect(partition, heir, chance.randint(1, MOST_LOST))
        return partition

    def _elect(self, partition: Partition, heir: int, lost: int) -> None:
        """Have a broker lead a partition that lacks its last offsets."""
        topic, index = partition.topic.name, partition.index
        with self._world.at_cluster(f"{topic}-{index} loses its last {lost} offsets") as cluster:
            cluster.move_leader(topic, index, heir, unclean=True, lose=lost)

    def _find_heir(self, partition: Partition) -> int | None:
        """Return a broker that may lead a partition, if possible another one than now."""
        running = self._world.cluster.up & self._world.cluster.alive
        others = [node for node in partition.replicas if node in running and node != partition.leader]
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
