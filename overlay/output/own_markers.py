"""The markers of a producer's own transactions, looked for before its next transaction begins.

A marker ends all that a producer has open in a partition. If Kafka has lost the marker of a committed
transaction (lost_markers.py), the next transaction of this producer in the same partition ends it as well. If
that one is aborted, the committed one is aborted with it: by a new owner of the shard, by the coordinator after
the timeout, or by us. So a transaction begins only when each partition of the last one has its marker, as far
as its leader tells. A partition whose leader does not tell is added to no transaction.

When to ask. DescribeProducers right after the coordinator's answer to AddPartitionsToTxn would be too late, although
only then the last transaction is known to be over: by then the new transaction has the partition, and a
worker that dies while it waits for the leader has it aborted. So the leaders are asked before. An answer that
nothing is open holds for good, at whatever time: the transaction was decided before, and this producer writes
nothing until the next one. An answer that something is open says nothing yet, as the marker may be on its way. It is
asked again, and after PATIENCE_S an empty transaction is committed. The coordinator adds partitions to that one
only when all markers are written or lost, so it completes what was lost, and harms nothing if nothing was.

That an answer holds for good has one exception: a leader may have a marker that its followers lack when it fails. The
coordinator writes it to the next leader, but it may lose it there for want of a leader: two faults within milliseconds.

What it costs. One request per leader and transaction, which names all partitions of the transaction there. It is
sent LOOK_S after the commit, while the commit loop pauses, so no record waits for it: a marker takes about as long.
If it is still under way, the next transaction waits here instead of at the coordinator, which does not begin it
either while markers are missing.

There is no cheaper sign. Kafka leaves a marker out if the coordinator's broker knows of no leader. Each loss
of a leader raises the leader epoch, but neither answers to Produce nor to the coordinator's requests tell an epoch.
A broker that missed its heartbeats leads again without a broken connection or a refused batch, under a later
epoch; only a request after the end of the last transaction could tell of it, at the price of this one. Even that
would not do: the coordinator's broker may hear late of a leader to which the batches were already sent, and lose the
marker while the epoch stays the same. The last stable offset is in answers to Fetch and ListOffsets alone, and
nothing here reads outputs. Produce requests that are verified with the coordinator (KIP-890) are let in: the
producer and its epoch have a transaction open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Set

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from overlay.clock import monotonic
from overlay.logs import get_logger
from overlay.waits import Backoff, is_cancelled, is_set_within

from .lost_markers import NO_LEADER, OpenPartitions, OpenTransaction, find_gone, find_open

log = get_logger(__name__)

LOOK_S = (0.002, 1.0)
"""Pauses before a leader is asked: the first one, and the longest between two questions."""
PATIENCE_S = 1.0
"""Seconds for which the marker of a transaction that is told to be open may be on its way, from the commit on; and for
which the next transaction waits for a leader that does not tell."""
GONE_S = 5.0
"""Seconds for which brokers have to say that a partition does not exist, before it is asked no more. A broker that has
just started may not know of it yet."""


class OwnMarkers:
    """The partitions in which a producer's last transaction may be open still. Each leader is asked on its own, so that
    one that does not answer holds up no other.
    """

    def __init__(self, client: AIOKafkaClient, find_producer: Callable[[], tuple[int, int]]) -> None:
        """`client` has to know the topics of the partitions. `find_producer`: returns the producer's id and epoch."""
        self._client, self._find_producer = client, find_producer
        self._since: dict[TopicPartition, float] = {}
        """Partitions that may be open, and when that began to be asked, monotonic seconds."""
        self._open: dict[TopicPartition, OpenTransaction] = {}
        """Those of them whose leader has told that they are."""
        self._gone: dict[TopicPartition, float] = {}
        """Those of them that do not exist by the last answer, and since when that is said, monotonic seconds."""
        self._changed = asyncio.Event()
        self._watches: dict[int, asyncio.Task[None]] = {}
        """By leader, NO_LEADER for partitions without one."""

    @property
    def unseen(self) -> Set[TopicPartition]:
        """The partitions that may have a transaction of the producer open."""
        return self._since.keys()

    def note(self, partitions: Collection[TopicPartition]) -> None:
        """Begin to ask for the markers of a transaction that has ended in these partitions."""
        self._since |= dict.fromkeys(partitions, monotonic())
        for tp in partitions:
            self._open.pop(tp, None)
        leaders = {self._find_leader(tp) for tp in partitions}
        for leader in leaders & self._watches.keys():
            self._watches.pop(leader).cancel()  # its pause may be a long one
        self._start(leaders)

    async def await_told(self, needed: Set[TopicPartition], deadline: float) -> dict[TopicPartition, OpenTransaction]:
        """Wait until all markers are there, at most until PATIENCE_S after the last partition was noted. While one of
        `needed` does not tell, wait until `deadline`, monotonic seconds. Return the transactions that are open then, as far
        as the leaders have told."""
        while self._since:
            until = max(self._since.values()) + PATIENCE_S
            if needed & (self._since.keys() - self._open.keys()):
                until = max(until, deadline)
            if (left := until - monotonic()) <= 0:
                break
            await self._await_change(left)
        return dict(self._open)

    async def await_marked(self, partitions: Set[TopicPartition], patience_s: float) -> Set[TopicPartition]:
        """Wait until none of these partitions has a transaction of the producer open, at most `patience_s` seconds, and no
        longer than PATIENCE_S from when one is told to be open. Return those that have, or may have."""
        deadline = monotonic() + patience_s
        while left := partitions & self._since.keys():
            if left & self._open.keys():
                deadline = min(deadline, monotonic() + PATIENCE_S)
            if (rest := deadline - monotonic()) <= 0:
                break
            await self._await_change(rest)
        return left

    async def close(self) -> None:
        """Ask no more."""
        watches = list(self._watches.values())
        self._watches.clear()
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    async def _await_change(self, patience_s: float) -> None:
        self._changed.clear()
        await is_set_within(self._changed, patience_s)

    def _find_leader(self, tp: TopicPartition) -> int:
        leader = self._client.cluster.leader_for_partition(tp)
        return NO_LEADER if leader is None else int(leader)

    def _start(self, leaders: Iterable[int]) -> None:
        for leader in leaders:
            self._watches[leader] = asyncio.create_task(self._watch(leader), name=f"markers-{leader}")

    async def _watch(self, leader: int) -> None:
        """Ask a leader until it has none of the partitions left. If they have moved to others, have those asked."""
        backoff, me = Backoff(*LOOK_S), asyncio.current_task()
        while self._watches.get(leader) is me:  # a cancellation may have got lost in aiokafka
            self._start({self._find_leader(tp) for tp in self._since} - self._watches.keys())
            asked = {tp: since for tp, since in self._since.items() if self._find_leader(tp) == leader}
            if not asked:
                del self._watches[leader]
                return
            await backoff.rest()
            try:
                await self._ask(asked)
            except asyncio.CancelledError:
                # a request of the client's own that was cancelled ends no watch: its partitions would be silent for good
                if is_cancelled():
                    raise
            except (KafkaError, OSError) as error:
                log.info("a leader was not asked for markers", leader=leader, reason=str(error) or type(error).__name__)
            except Exception:
                # unforeseen; a watch that has ended would be taken for one that asks
                log.exception("a leader was not asked for markers", leader=leader)

    async def _ask(self, asked: Mapping[TopicPartition, float]) -> None:
        """Ask the leader of these partitions once, and note what it tells. `asked`: since when each is asked for."""
        found = OpenPartitions.before_asking(asked)
        producer, epoch = self._find_producer()
        await find_open(self._client, producer, found)
        # what is open under a later epoch is of an owner that has fenced this one
        open = {tp: each for tp, each in found.open.items() if each.epoch <= epoch}
        self._take(asked, asked.keys() - found.unknown.keys() - found.gone, open)
        gone = found.gone | (await find_gone(self._client, found.unknown) if found.unknown else set())
        self._take(asked, self._find_gone_for_long(asked, gone), {})
        if found.unknown or gone:
            await self._client.force_metadata_update()

    def _find_gone_for_long(self, asked: Iterable[TopicPartition], gone: Set[TopicPartition]) -> set[TopicPartition]:
        """Return those of the partitions `asked` that have been said not to exist for GONE_S. `gone`: of which the last
        answers say so."""
        now = monotonic()
        for tp in asked:
            if tp in gone:
                self._gone.setdefault(tp, now)
            else:
                self._gone.pop(tp, None)
        return {tp for tp in gone if now - self._gone[tp] >= GONE_S}

    def _take(
        self,
        asked: Mapping[TopicPartition, float],
        told: Iterable[TopicPartition],
        open: Mapping[TopicPartition, OpenTransaction],
    ) -> None:
        """Take in that the partitions `told` have nothing open but `open`. For one that was noted again since it was asked,
        that says nothing."""
        for tp in told:
            if self._since.get(tp) != asked[tp]:
                continue
            if tp in open:
                self._open[tp] = open[tp]
            else:
                del self._since[tp]
                self._open.pop(tp, None)
                self._gone.pop(tp, None)
        self._changed.set()
