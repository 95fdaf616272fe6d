"""What happens to topics in a history: outputs that refuse records for a while."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping

from .applications import Run
from .kafka.codes import Code
from .plan import Kind

REFUSAL_S = (1.0, 10.0, 40.0)
"""Longest times for which a topic refuses: the service gives a batch up that is not taken within 20 s."""
TIGHT_BYTES = (300, 500, 700, 2_000)
"""Limits on the size of a batch: some are too small for a single delivery, the largest for several."""
MAX_BYTES = "max.message.bytes"


class TopicChanges:
    """Changes of the topics of a history. `acts` says how each kind of mishap is carried out."""

    def __init__(self, run: Run) -> None:
        self._run, self._world = run, run.world
        self.acts: Mapping[Kind, Callable[[random.Random], Awaitable[None]]] = {
            Kind.DENY: self._deny,
            Kind.BEHEAD: self._behead,
            Kind.TIGHTEN: self._tighten,
        }

    def _list_outputs(self, *, with_letters: bool) -> list[str]:
        """Return the topics that consumers are pushed to, as far as they are there."""
        consumers = [consumer for consumer in self._run.plan.consumers if not consumer.is_pulled]
        names = [consumer.output for consumer in consumers]
        if with_letters:
            names += [consumer.letters for consumer in consumers]
        return [name for name in names if name in self._world.cluster.topics]

    async def _deny(self, chance: random.Random) -> None:
        """Let a topic take no records, for want of rights or of a disk."""
        names = self._list_outputs(with_letters=True)
        if not names:
            return
        name, code = chance.choice(names), chance.choice((Code.TOPIC_AUTHORIZATION_FAILED, Code.KAFKA_STORAGE_ERROR))
        with self._world.at_cluster(f"{name} refuses with {code.name}") as cluster:
            cluster.refuse_produce(name, code)
        await self._sleep(chance)
        with self._world.at_cluster(f"{name} takes records again") as cluster:
            if name in cluster.topics:
                cluster.refuse_produce(name, Code.NONE)

    async def _behead(self, chance: random.Random) -> None:
        """Take the leader away from a partition."""
        names = self._list_outputs(with_letters=True)
        if not names:
            return
        name = chance.choice(names)
        index = chance.randrange(len(self._world.cluster.topics[name].partitions))
        with self._world.at_cluster(f"{name}-{index} has no leader") as cluster:
            cluster.remove_leader(name, index)
        await self._sleep(chance)
        with self._world.at_cluster(f"{name}-{index} has a leader again") as cluster:
            if name in cluster.topics:
                cluster.restore_leader(name, index)

    async def _tighten(self, chance: random.Random) -> None:
        """Let an output take small batches only."""
        names = self._list_outputs(with_letters=False)
        if not names:
            return
        name, limit = chance.choice(names), chance.choice(TIGHT_BYTES)
        self._run.tightened.add(name)
        with self._world.at_cluster(f"{name} takes batches of up to {limit} bytes") as cluster:
            cluster.configure(name, {MAX_BYTES: str(limit)})
        await self._sleep(chance)
        with self._world.at_cluster(f"{name} takes batches as large as before") as cluster:
            if name in cluster.topics:
                cluster.configure(name, {MAX_BYTES: None})

    async def _sleep(self, chance: random.Random) -> None:
        await asyncio.sleep(chance.choice(REFUSAL_S) * chance.random())
