"""Transactions that have ended without their marker.

A transaction ends in two steps. The coordinator decides, and writes the decision down. Then it has a
marker, commit or abort, written to each partition of the transaction. Readers of committed records
stop before the first record without one.

Kafka loses markers. A coordinator that finds no leader for a partition in its metadata takes the
partition for deleted, and leaves its marker out (seen with Kafka 4.3, in `TransactionMarkerChannelManager`
and `KRaftMetadataCache.getPartitionLeaderEndpoint`). A partition without replicas elsewhere has no
leader while its broker stops, and while the controller misses the heartbeats of a starved broker. The
coordinator may run on that very broker. Of twelve writers whose broker was restarted, five lost a
marker. An unclean election can take a marker away as well.

The producer is told that its transaction has ended, and it has. But the partition has it open. Nothing
behind it can be read, and no timeout of Kafka ends it. A state partition like this keeps its shard from
every new owner. In an output the next commit of the same producer would make the records visible, also
if the decision was to abort.

The mend needs no right beyond those of a producer. A marker of a producer id ends whatever this id has
open in a partition, under this epoch or an earlier one. So a new owner asks which partitions are open
under its producer id, adds them to a transaction of its own, writes nothing, and ends the transaction as
the former one was decided. Three things make that sound:

- **The decision is known.** The coordinator is asked for it (DescribeTransactions) before InitProducerId,
  which makes it forget. Without a decision nothing is done, and the caller is told.
- **The decision is that of the open transaction.** A partition may have open what an earlier transaction
  left there. Then three cases differ. If the last transaction has not ended, the coordinator tells all of its
  partitions. What is open in another partition, under the same epoch, is of an earlier transaction of the same
  producer, and was committed: a producer writes no more after an abort. In the state, an unclean election may
  have taken the marker of an earlier transaction, together with all later ones. If the last transaction was
  committed, and the open one is of an earlier epoch, the open one may have been aborted. Its state record
  would pass over what was not delivered, so it is aborted: then messages may be delivered again. Any other is
  ended as the last one was decided.
- **InitProducerId loses no marker itself.** It aborts what is still open. So it is sent only when each
  partition of the open transaction has a leader, and so does the state partition.

A broker is not asked with a request that it does not know: DescribeTransactions before Kafka 3.0,
DescribeProducers before 2.8. Partitions that this client may not read are passed over: Kafka does not
tell about them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.errors import KafkaError, for_code
from aiokafka.structs import TopicPartition

from overlay.kafka.protocol import Code, TopicsRequest, Unsupported
from overlay.kafka.transaction_requests import DescribeProducersRequest, DescribeTransactionsRequest
from overlay.waits import run_all

from .ending import Ending

NO_LEADER = -1


class Outcome(Enum):
    """How a transaction was decided, or will be by the InitProducerId that follows."""

    COMMITTED = "committed"
    ABORTED = "aborted"


_ONGOING = "Ongoing"
_OUTCOMES = {
    "PrepareCommit": Outcome.COMMITTED,
    "CompleteCommit": Outcome.COMMITTED,
    _ONGOING: Outcome.ABORTED,
    "PrepareEpochFence": Outcome.ABORTED,
    "PrepareAbort": Outcome.ABORTED,
    "CompleteAbort": Outcome.ABORTED,
}
"""By the coordinator's name of a state. The others (Empty, Dead) tell of no transaction."""


_NEVER_TELLS = {Code.TRANSACTIONAL_ID_NOT_FOUND, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
"""A new id, and one that InitProducerId will refuse with a better message."""


class OpenTransaction(NamedTuple):
    """A transaction that a producer has open in a partition: its first offset, and the producer's epoch."""

    offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class LastTransaction:
    """The last transaction of a transactional id. `outcome`: None if the coordinator does not know
    of one. `unmarked`: the partitions whose markers are still to be written. `epoch`: of its
    producer, -1 if unknown. `is_ongoing`: it has not ended, so that `unmarked` are all of its
    partitions. `began`: when, ms since 1970; -1 if unknown. `producer`: its id, -1 if unknown.
    """

    outcome: Outcome | None
    unmarked: frozenset[TopicPartition] = frozenset()
    epoch: int = -1
    is_ongoing: bool = False
    began: int = -1
    producer: int = -1

    def find_ending(self) -> Ending | None:
        """Return what later owners have to know of this transaction; None if it is not known how it was decided."""
        if self.outcome is None:
            return None
        is_committed = self.outcome is Outcome.COMMITTED
        places = frozenset((tp.topic, tp.partition) for tp in self.unmarked) if self.is_ongoing else None
        return Ending(self.producer, self.epoch, is_committed, places)

    def follow(self, later: LastTransaction) -> LastTransaction:
        """Return which of two looks at the same id counts, this one or the `later` one. An answer to InitProducerId
        may be lost: then the later look finds nothing, and this one counts. It also counts if it found the transaction
        ongoing and the later one finds the same transaction aborted, since this one tells its partitions. Otherwise the
        later one counts.
        """
        is_same = self.is_ongoing and later.outcome is Outcome.ABORTED and later.began == self.began
        return self if is_same or later.outcome is None else later

    def decide(self, tp: TopicPartition, opened: OpenTransaction, state: TopicPartition) -> Outcome | None:
        """Return how to end the transaction `opened`, which the producer has open in the partition `tp`. `state`: the
        partition of the producer's state.

        If the last transaction is ongoing without `tp`, and `opened` has the same epoch, that is an earlier one and was
        committed. If the last one was committed, and `opened` is in the state's partition with another epoch, that is
        aborted. Any other is ended as the last one was decided; None if that is not known.
        """
        if self.is_ongoing and tp not in self.unmarked and opened.epoch == self.epoch:
            return Outcome.COMMITTED
        if self.outcome is Outcome.COMMITTED and tp == state and opened.epoch != self.epoch:
            return Outcome.ABORTED
        return self.outcome


async def find_last(client: AIOKafkaClient, coordinator: int, transactional_id: str) -> LastTransaction:
    """Ask the coordinator, a node id, for the last transaction of a transactional id. Return one without an outcome
    if there was none, if the broker does not know the request, or if this client may not ask. Raises KafkaError if
    the coordinator does not answer, or answers with another error, such as while it still loads: it would soon obey
    InitProducerId, and forget.
    """
    request = DescribeTransactionsRequest(transactional_id)
    try:
        response = await client.send(coordinator, request, group=ConnectionGroup.COORDINATION)
    except Unsupported:
        return LastTransaction(None)
    ((code, _, state, _, began, producer, epoch, topics, _),) = response.transactions
    if code in _NEVER_TELLS:
        return LastTransaction(None)
    if code:
        raise for_code(code)(transactional_id)
    unmarked = frozenset(TopicPartition(topic, index) for topic, indexes, _ in topics for index in indexes)
    return LastTransaction(_OUTCOMES.get(state), unmarked, epoch, state == _ONGOING, began, producer)


async def find_leaderless(
    client: AIOKafkaClient, node: int, partitions: Collection[TopicPartition]
) -> set[TopicPartition]:
    """Return those of the partitions that have no leader, as the broker with the node id `node` knows it.
    Partitions that do not exist are not among them. Raises KafkaError if the broker does not answer."""
    request = TopicsRequest({tp.topic for tp in partitions})
    response = await client.send(node, request, group=ConnectionGroup.COORDINATION)
    leaderless = {
        TopicPartition(topic, index)
        for _, topic, _, _, found, _, _ in response.topics
        for _, index, leader, *_ in found
        if leader == NO_LEADER
    }
    return leaderless & set(partitions)


@dataclass(slots=True)
class OpenPartitions:
    """Where a producer has a transaction open, as far as the leaders have told. `open`: that transaction, by
    partition. `unknown`: why a partition has not told, for partitions that may still tell. `gone`: partitions that do not
    exist, as far as their leaders know."""

    open: dict[TopicPartition, OpenTransaction]
    unknown: dict[TopicPartition, str]
    gone: set[TopicPartition] = field(default_factory=set)

    @classmethod
    def before_asking(cls, partitions: Iterable[TopicPartition]) -> OpenPartitions:
        """Return what is known of these partitions before their leaders are asked."""
        return cls({}, dict.fromkeys(partitions, "its leader has not answered"))


_FOR_GOOD = {Code.TOPIC_AUTHORIZATION_FAILED, Code.UNKNOWN_TOPIC_OR_PARTITION}
"""Answers that stay as they are: a topic that we may not read, or that is gone."""


async def find_open(client: AIOKafkaClient, producer_id: int, found: OpenPartitions) -> None:
    """Ask the leaders of the partitions in `found.unknown`, all at once, whether a producer has a transaction open
    there. The client has to know the topics. `found` receives what each leader tells as soon as it has answered, so
    that a caller which cancels this keeps the answers so far.

    A partition leaves `found.unknown` when its leader tells what is open there. It also leaves if its leader says
    that it does not exist (`found.gone`) or that this client may not read it, or if the leader does not know the request.

    The client opens one connection after the other. So a leader that does not answer while it is being connected to
    holds up those to which there is no connection yet.
    """
    by_leader: dict[int, dict[str, list[int]]] = {}
    for tp in found.unknown:
        leader = client.cluster.leader_for_partition(tp)
        if leader is None or leader == NO_LEADER:
            found.unknown[tp] = "it has no leader"
        else:
            by_leader.setdefault(leader, {}).setdefault(tp.topic, []).append(tp.partition)
    await run_all(_ask(client, leader, topics, producer_id, found) for leader, topics in by_leader.items())


async def _ask(
    client: AIOKafkaClient, leader: int, topics: dict[str, list[int]], producer_id: int, found: OpenPartitions
) -> None:
    """Ask one leader as `find_open` does. `topics`: indexes of its partitions, by topic."""
    asked = [TopicPartition(topic, index) for topic, indexes in topics.items() for index in indexes]
    try:
        response = await client.send(leader, DescribeProducersRequest(topics))
    except Unsupported:
        for tp in asked:
            del found.unknown[tp]
        return
    except KafkaError as error:
        found.unknown |= dict.fromkeys(asked, str(error) or type(error).__name__)
        return
    for topic, rows, _ in response.topics:
        for index, code, _, producers, _ in rows:
            _note(found, TopicPartition(topic, index), code, producers, producer_id)


async def find_gone(client: AIOKafkaClient, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
    """Return those of the partitions that never tell whether a transaction is open: a broker says that they do not
    exist, or that this client may not describe their topic. A partition that the client knows from its metadata is not
    among them. Return none if no broker answers.
    """
    unlisted = {tp for tp in partitions if client.cluster.leader_for_partition(tp) is None}
    if not unlisted:
        return unlisted
    try:
        response = await client.send(client.get_random_node(), TopicsRequest({tp.topic for tp in unlisted}))
    except KafkaError:
        return set()
    # of a topic with another error, such as one that is being created, nothing is known
    topics = {
        topic: {index for _, index, *_ in rows}
        for code, topic, _, _, rows, *_ in response.topics
        if not code or code in _FOR_GOOD
    }
    return {tp for tp in unlisted if tp.topic in topics and tp.partition not in topics[tp.topic]}


def _note(found: OpenPartitions, tp: TopicPartition, code: int, producers: list[Any], producer_id: int) -> None:
    """Note in `found` what the leader of `tp` answers: an error code, or the producers of the partition."""
    if code and code not in _FOR_GOOD:
        found.unknown[tp] = str(for_code(code).__name__)
        return
    found.unknown.pop(tp, None)
    if code:
        if code == Code.UNKNOWN_TOPIC_OR_PARTITION:
            found.gone.add(tp)
        return
    for id, epoch, _, _, _, open_since, _ in producers:
        if id == producer_id and open_since >= 0:
            found.open[tp] = OpenTransaction(open_since, epoch)
