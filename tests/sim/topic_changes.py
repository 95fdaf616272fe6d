"""What happens to topics in a history: they refuse records for a while, grow, lose records, and are created again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence

from overlay.index.skip.encode import RUNS

from .applications import Run
from .kafka.cluster import Cluster
from .kafka.codes import Code
from .kafka.topics import Partition
from .plan import ACKS, INDEX, SOURCE, Kind
from .reading import Found, read_topic

REFUSAL_S = ((0.0, 1.0), (0.0, 10.0), (10.0, 40.0))
"""Least and longest times for which a topic refuses. A consumer is left out after 20 s: two transactions in a row have
waited 10 s for its output."""
REFUSALS = (Code.TOPIC_AUTHORIZATION_FAILED, Code.KAFKA_STORAGE_ERROR, Code.NOT_LEADER_OR_FOLLOWER)
"""For want of rights or of a disk, or as if another broker were about to lead."""
TIGHT_BYTES = (300, 500, 700, 2_000)
"""Limits on the size of a batch: some are too small for a single delivery, the largest for several."""
MAX_BYTES = "max.message.bytes"
MOST_PARTITIONS = 5
CLEANED_OFTEN = {"segment.ms": "1000", "min.cleanable.dirty.ratio": "0.01"}


class TopicChanges:
    """Changes of the topics of a history. `acts` says how each kind of mishap is carried out."""

    def __init__(self, run: Run) -> None:
        self._run, self._world = run, run.world
        self._rounds: list[tuple[list[int], int]] = []
        """Ends of the source's partitions, and where the index ended then: below that it numbers records below those."""
        self.acts: Mapping[Kind, Callable[[random.Random], Awaitable[None]]] = {
            Kind.REFUSE: self._refuse,
            Kind.NO_LEADER: self._remove_leader,
            Kind.TIGHTEN: self._tighten,
            Kind.GROW: self._grow,
            Kind.EXPIRE: self._expire,
            Kind.FORGET: self._forget,
            Kind.COMPACT: self._compact,
            Kind.RECREATE: self._recreate,
        }

    def _list_outputs(self, *, with_letters: bool) -> list[str]:
        """Return the topics that consumers are pushed to, as far as they are there."""
        consumers = [consumer for consumer in self._run.plan.consumers if not consumer.is_pulled]
        names = [consumer.output for consumer in consumers]
        if with_letters:
            names += [consumer.letters for consumer in consumers]
        return [name for name in names if name in self._world.cluster.topics]

    async def _refuse(self, chance: random.Random) -> None:
        """Let an output, a dead-letter topic or a topic of answers to pulls take no records."""
        names = self._list_outputs(with_letters=True)
        names += [consumer.output for consumer in self._run.plan.consumers if consumer.is_pulled]
        if not names:
            return
        name, code = chance.choice(names), chance.choice(REFUSALS)
        with self._world.at_cluster(f"{name} refuses with {code.name}") as cluster:
            cluster.refuse_produce(name, code)
        await self._sleep(chance)
        with self._world.at_cluster(f"{name} takes records again") as cluster:
            if name in cluster.topics:
                cluster.refuse_produce(name, Code.NONE)

    async def _remove_leader(self, chance: random.Random) -> None:
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

    async def _grow(self, chance: random.Random) -> None:
        """Add a partition to an output, to the ack topic, or to the source of a stream that has a ledger."""
        names = [*self._list_outputs(with_letters=False), ACKS]
        if self._run.plan.partitions > 1:
            names.append(SOURCE)
        name = chance.choice(names)
        if name not in self._world.cluster.topics:
            return
        count = len(self._world.cluster.topics[name].partitions) + 1
        if count <= MOST_PARTITIONS:
            with self._world.at_cluster(f"{name} has {count} partitions") as cluster:
                cluster.add_partitions(name, count)

    async def _expire(self, chance: random.Random) -> None:
        """Delete the oldest records of the source, and what of the index has numbered none but records that are gone."""
        share = chance.choice((0.3, 0.7, 1.0))
        topics = self._world.cluster.topics
        self._run.archive.keep(SOURCE)
        with self._world.at_cluster(f"retention takes {share} of the source") as cluster:
            for partition in topics[SOURCE].partitions:
                _trim(cluster, partition, share)
        logs = [partition.log for partition in topics[SOURCE].partitions]
        index = topics.get(INDEX)
        if index is None:
            return
        past = [at for ends, at in self._rounds if all(log.start >= end for log, end in zip(logs, ends, strict=False))]
        if past:
            with self._world.at_cluster(f"retention takes the index up to {past[-1]}") as cluster:
                newest = _find_newest_round(read_topic(cluster, INDEX))
                cluster.delete_before(INDEX, 0, past[-1] if newest is None else min(past[-1], newest))
        self._rounds.append(([log.end for log in logs], index.partitions[0].log.end))

    async def _forget(self, chance: random.Random) -> None:
        """Delete the oldest acks, whether the service has read them or not."""
        share, acks = chance.random(), self._world.cluster.topics.get(ACKS)
        if acks is not None:
            self._run.archive.keep(ACKS)
            with self._world.at_cluster(f"retention takes {share:.2f} of the acks") as cluster:
                for partition in acks.partitions:
                    _trim(cluster, partition, share)

    async def _compact(self, chance: random.Random) -> None:
        """Clean the compacted topics of the service now and every few seconds from now on, perhaps with the tombstones."""
        config = CLEANED_OFTEN if chance.random() < 0.5 else {**CLEANED_OFTEN, "delete.retention.ms": "1"}
        own = [topic for _, topic in sorted(self._world.cluster.topics.items()) if topic.config.is_compacted]
        for topic in own:
            with self._world.at_cluster(f"{topic.name} is compacted") as cluster:
                cluster.configure(topic.name, config)
                for partition in topic.partitions:
                    cluster.compact(topic.name, partition.index, roll=False)

    async def _recreate(self, chance: random.Random) -> None:
        """Delete an output or the ack topic, and create it again at once, or after a while if the service has not."""
        name = chance.choice([*self._list_outputs(with_letters=False), ACKS])
        topic = self._world.cluster.topics.get(name)
        if topic is None:
            return
        count, config = len(topic.partitions), topic.config.overrides
        self._run.archive.keep_whole(name)
        with self._world.at_cluster(f"{name} is deleted") as cluster:
            cluster.delete_topic(name)
        await asyncio.sleep(chance.choice((0.0, 1.0, 10.0)) * chance.random())
        if name not in self._world.cluster.topics:
            with self._world.at_cluster(f"{name} is created again") as cluster:
                cluster.create_topic(name, count, config)

    async def _sleep(self, chance: random.Random) -> None:
        await asyncio.sleep(chance.uniform(*chance.choice(REFUSAL_S)))


def _find_newest_round(index: Sequence[Found]) -> int | None:
    """Return the offset of the index topic's last round of a ledger, None if there is none.

    Rounds are renewed far more often than the topic's retention is long, so that it always has one.
    """
    return max((one.offset for one in index if one.value is not None and one.value[1] == RUNS), default=None)


def _trim(cluster: Cluster, partition: Partition, share: float) -> None:
    """Delete the first records of a partition: a share of those that consumers may read."""
    log = partition.log
    cluster.delete_before(partition.topic.name, partition.index, log.start + int((log.last_stable - log.start) * share))
