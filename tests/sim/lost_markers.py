"""Markers that get lost: partitions of a transaction have no leader when it ends, and Kafka leaves their markers out.

The product ends such transactions when the shard is taken over. Where Kafka has forgotten how one was decided, the product says
so, and an operator aborts it, as docs/operations.md tells.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence

from .applications import Run
from .host import Worker
from .kafka.session import Answer
from .kafka.transactions import State, Transactional
from .network import WORLD
from .plan import INDEX, SHARDS, STATE, Kind
from .scenes import intercept

END = 26
"""The API key of EndTxn."""
MOST_AWAY_S = 5.0
"""Longest time for which the partitions have no leader. A takeover passes over an output that has none for ten seconds."""
LOOK_S = 5.0
LACKS_ROUNDS = "has lost rounds of the ledger"
FORGOTTEN = "does not know any more whether it was committed"
"""What the product says of a transaction whose decision Kafka has forgotten."""


class LostMarkers:
    """Takes leaders away at the ends of transactions, and aborts what the product cannot end. `acts` says how the kind of
    mishap is carried out."""

    def __init__(
        self, run: Run, workers: Sequence[Worker], lose_rounds: Callable[[random.Random], Awaitable[None]]
    ) -> None:
        """`lose_rounds`: does what an operator does about a ledger that has lost rounds."""
        self._run, self._world, self._workers, self._lose_rounds = run, run.world, workers, lose_rounds
        self._armed: list[random.Random] = []
        self._restoring: set[asyncio.Task[None]] = set()
        self.acts: Mapping[Kind, Callable[[random.Random], Awaitable[None]]] = {Kind.BLINK: self._arm}
        if run.plan.settings.loses_markers_of:
            intercept(self._world, END, self._end)

    async def _arm(self, chance: random.Random) -> None:
        """Have the next transaction of the service end without some of its leaders."""
        self._armed.append(chance)

    def _end(self, answer: Answer, handle: Callable[[Answer], None]) -> None:
        cluster = self._world.cluster
        known = cluster.transactions.known.get(answer.request.transactional_id)
        if self._run.is_calm:
            self._armed.clear()
        if self._armed and known is not None and known.name.startswith(SHARDS) and known.partitions:
            chance = self._armed.pop()
            places = chance.sample(sorted(known.partitions), chance.randint(1, len(known.partitions)))
            self._world.tell(f"a transaction of {known.name} ends while {places} have no leader")
            for topic, index in places:
                self._note(topic)
                cluster.remove_leader(topic, index)
            restoring = self._restore(places, MOST_AWAY_S * chance.random())
            self._restoring.add(task := self._world.loop.create_task(restoring, context=WORLD))
            task.add_done_callback(self._restoring.discard)
        handle(answer)

    async def _restore(self, places: Sequence[tuple[str, int]], after_s: float) -> None:
        await asyncio.sleep(after_s)
        with self._world.at_cluster(f"{places} have leaders again") as cluster:
            for topic, index in places:
                if topic in cluster.topics:
                    cluster.restore_leader(topic, index)

    async def tend(self) -> None:
        """Abort what workers say they cannot end, for ever."""
        chance = self._run.draw_chance()
        while True:
            await asyncio.sleep(LOOK_S)
            for number in sorted(self._find_stuck()):
                known = self._world.cluster.transactions.known.get(f"{SHARDS}{number}")
                if known is not None and known.state is State.EMPTY:
                    await self._abort(known, number, chance)
            if self._lacks_rounds():
                await self._lose_rounds(chance)

    def _lacks_rounds(self) -> bool:
        """Return whether a worker has stopped the stream since its ledger has lost rounds."""
        managers = [worker.service.shard_manager for worker in self._workers]
        sessions = [session for manager in managers if manager is not None for session in manager.sessions]
        return any(LACKS_ROUNDS in reason for each in sessions for reason in each.assignment.stopped.values())

    def _find_stuck(self) -> set[int]:
        """Return the shards that a worker cannot take over, since a decision is forgotten."""
        managers = [worker.service.shard_manager for worker in self._workers]
        shards = [shard for manager in managers if manager is not None for shard in manager.shards.values()]
        return {shard.number for shard in shards if FORGOTTEN in shard.trouble}

    async def _abort(self, known: Transactional, shard: int, chance: random.Random) -> None:
        """Abort what a shard's producer has open. The state goes back, and what an output held may be missing."""
        topics = self._world.cluster.topics
        partitions = [each for topic in topics.values() for each in topic.partitions]
        hanging = [each for each in partitions if known.producer in each.log.producers.open]
        for partition in hanging:
            self._note(partition.topic.name)
            with self._world.at_cluster(f"an operator aborts a transaction in {partition.topic.name}") as cluster:
                cluster.transactions.abort_hanging(partition)
        if any(partition.topic.name == STATE for partition in hanging):
            self._run.rewound[shard] += 1
        if any(partition.topic.name == INDEX for partition in hanging) and self._run.plan.partitions > 1:
            await self._lose_rounds(chance)

    def _note(self, topic: str) -> None:
        """Have the judge know what may be aborted of an output or a dead-letter topic: by the operator, or with the worker
        that dies while it commits a transaction without its marker (docs/exactly-once.md#where-it-ends)."""
        consumers = self._run.files.consumers
        if topic in {name for consumer in consumers for name in (consumer.output, consumer.letters)}:
            self._run.archive.note_undecided(topic)
