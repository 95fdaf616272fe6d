"""The transaction coordinator: producer ids, fencing, and the two steps in which a transaction ends.

One object stands for the coordinators of all transactional ids. Its state survives brokers; which broker is asked for an id is
the cluster's matter. Markers are written `Settings.marker_s` after the decision, and until then a new transaction is
refused with CONCURRENT_TRANSACTIONS. The protocol is the one that aiokafka speaks: epochs rise with InitProducerId and with
transactions that the coordinator aborts by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from math import floor
from typing import TYPE_CHECKING, Any

from .batches import ABORT, COMMIT, Batch, make_marker
from .codes import Code
from .session import Answer
from .topics import NO_LEADER, Partition

if TYPE_CHECKING:
    from .cluster import Cluster

LAST_EPOCH = (1 << 15) - 1
RETRY_S = 0.1
"""Between two tries to write a marker."""
TRANSACTION = 1


class State(Enum):
    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


_ENDING = (State.PREPARE_COMMIT, State.PREPARE_ABORT)


@dataclass(slots=True)
class Transactional:
    """A transactional id. Times are in seconds of the simulation."""

    name: str
    producer: int
    epoch: int
    timeout_ms: int
    state: State = State.EMPTY
    partitions: dict[tuple[str, int], None] = field(default_factory=dict)
    groups: dict[str, None] = field(default_factory=dict)
    began: float = 0.0


class Transactions:
    """The transactions of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.known: dict[str, Transactional] = {}
        self.fenced: dict[tuple[int, int], float] = {}
        """When the requests of a producer id and an epoch began to be refused, ms since 1970."""
        self._next_producer = 1000
        self.coordinator_epoch = 0

    def init_producer(self, answer: Answer) -> None:
        """InitProducerId: a new producer id, or the next epoch of a transactional id."""
        request = answer.request
        name = request.transactional_id
        if name is None:
            answer.give(0, Code.NONE, self._make_producer(), 0)
            return
        code, producer, epoch = self._init(answer, name, request.transaction_timeout_ms)
        answer.give(0, int(code), producer, epoch)

    def _make_producer(self) -> int:
        self._next_producer += 1
        return self._next_producer - 1

    def _init(self, answer: Answer, name: str, timeout_ms: int) -> tuple[Code, int, int]:
        if not name:
            return Code.INVALID_REQUEST, -1, -1
        if code := self._cluster.refuse_coordinator(answer.session.broker, name, TRANSACTION):
            return code, -1, -1
        if not 0 < timeout_ms <= self._cluster.settings.max_transaction_timeout_ms:
            return Code.INVALID_TRANSACTION_TIMEOUT, -1, -1
        known = self.known.get(name)
        if known is None:
            known = self.known[name] = Transactional(name, self._make_producer(), 0, timeout_ms)
            return Code.NONE, known.producer, known.epoch
        if known.state in _ENDING:
            return Code.CONCURRENT_TRANSACTIONS, -1, -1
        self._note_fenced(known)
        if known.state is State.ONGOING:
            known.epoch = min(known.epoch + 1, LAST_EPOCH)
            self._end(known, ABORT)
            return Code.CONCURRENT_TRANSACTIONS, -1, -1
        if known.epoch >= LAST_EPOCH - 1:
            known.producer, known.epoch = self._make_producer(), 0
        else:
            known.epoch += 1
        known.state = State.EMPTY
        known.timeout_ms = timeout_ms
        return Code.NONE, known.producer, known.epoch

    def _note_fenced(self, known: Transactional) -> None:
        self.fenced.setdefault((known.producer, known.epoch), self._cluster.wall_ms)

    def _find(self, answer: Answer) -> Transactional | Code:
        """Return the transactional id of a request, if the request comes from its latest producer."""
        request = answer.request
        name = request.transactional_id
        if not name:
            return Code.INVALID_REQUEST
        if code := self._cluster.refuse_coordinator(answer.session.broker, name, TRANSACTION):
            return code
        known = self.known.get(name)
        if known is None or known.producer != request.producer_id:
            return Code.INVALID_PRODUCER_ID_MAPPING
        if known.epoch != request.producer_epoch:
            # PRODUCER_FENCED is for clients of newer versions
            return Code.INVALID_PRODUCER_EPOCH
        return known

    def _begin(self, answer: Answer) -> Transactional | Code:
        """Return the transactional id of a request that adds to its transaction; the caller adds at least one thing."""
        known = self._find(answer)
        if isinstance(known, Transactional) and known.state in _ENDING:
            return Code.CONCURRENT_TRANSACTIONS
        return known

    def _open(self, known: Transactional) -> None:
        if known.state is not State.ONGOING:
            known.state = State.ONGOING
            known.began = self._cluster.now
            known.partitions.clear()
            known.groups.clear()
            self._expect_timeout(known)

    def add_partitions(self, answer: Answer) -> None:
        """AddPartitionsToTxn: all of the partitions, or none if one of them is not there or may not be written to."""
        wanted = [(topic, list(partitions)) for topic, partitions in answer.request.topics]
        codes: dict[tuple[str, int], Code] = {}
        for topic, partitions in wanted:
            for index in partitions:
                partition = self._cluster.find(topic, index)
                if partition is None:
                    codes[topic, index] = Code.UNKNOWN_TOPIC_OR_PARTITION
                elif partition.refusal == Code.TOPIC_AUTHORIZATION_FAILED:
                    codes[topic, index] = Code.TOPIC_AUTHORIZATION_FAILED
        if codes:
            answer.give(0, _spread(wanted, codes, Code.OPERATION_NOT_ATTEMPTED))
            return
        known = self._begin(answer)
        if isinstance(known, Transactional):
            self._open(known)
            known.partitions.update(((topic, index), None) for topic, indexes in wanted for index in indexes)
            known = Code.NONE
        answer.give(0, _spread(wanted, {}, known))

    def add_offsets(self, answer: Answer) -> None:
        """AddOffsetsToTxn: a group's offsets become part of the transaction."""
        known = self._begin(answer)
        if isinstance(known, Transactional):
            self._open(known)
            known.groups[answer.request.group_id] = None
            known = Code.NONE
        answer.give(0, int(known))

    def end(self, answer: Answer) -> None:
        """EndTxn: decide, and answer before the markers are written."""
        known = self._find(answer)
        if isinstance(known, Transactional):
            known = self._decide(known, bool(answer.request.transaction_result))
        answer.give(0, int(known))

    def _decide(self, known: Transactional, is_commit: bool) -> Code:
        if known.state is State.ONGOING:
            self._end(known, COMMIT if is_commit else ABORT)
            return Code.NONE
        if known.state is (State.COMPLETE_COMMIT if is_commit else State.COMPLETE_ABORT):
            return Code.NONE
        if known.state is (State.PREPARE_COMMIT if is_commit else State.PREPARE_ABORT):
            return Code.CONCURRENT_TRANSACTIONS
        return Code.INVALID_TXN_STATE

    def _end(self, known: Transactional, kind: int) -> None:
        """Decide how a transaction ends. Its markers follow."""
        known.state = State.PREPARE_COMMIT if kind == COMMIT else State.PREPARE_ABORT
        cluster = self._cluster
        cluster.timers.at(cluster.now + cluster.marker_s(), lambda: self._complete(known, kind))

    def _complete(self, known: Transactional, kind: int) -> None:
        """Have the markers written. The next transaction may begin when all followers have them."""
        cluster = self._cluster
        if cluster.coordinator(known.name, TRANSACTION) not in cluster.up:
            cluster.timers.at(cluster.now + RETRY_S, lambda: self._complete(known, kind))
            return
        for group in list(known.groups):
            cluster.groups.end_transaction(group, known.producer, is_commit=kind == COMMIT)
        known.groups.clear()
        for topic, index in list(known.partitions):
            self._mark(known, kind, topic, index)
        self._find_completed(known, kind)

    def _mark(self, known: Transactional, kind: int, topic: str, index: int) -> None:
        """Write the marker of a partition as soon as it has a leader, and again if it is lost before the followers have it.

        Kafka 4.3 takes a partition without a leader for deleted and leaves its marker out (`Settings.loses_markers_of`).
        """
        cluster = self._cluster

        def settle(is_replicated: bool) -> None:
            if is_replicated:
                known.partitions.pop((topic, index), None)
                self._find_completed(known, kind)
            else:
                cluster.timers.at(cluster.now + RETRY_S, lambda: self._mark(known, kind, topic, index))

        partition = cluster.find(topic, index)
        if cluster.coordinator(known.name, TRANSACTION) not in cluster.up:
            settle(False)
        elif partition is None or (
            partition.leader == NO_LEADER and known.name.startswith(cluster.settings.loses_markers_of)
        ):
            settle(True)
        elif partition.leader not in cluster.up:
            settle(False)
        else:
            now_ms = int(cluster.wall_ms)
            marker = make_marker(known.producer, known.epoch, kind, self.coordinator_epoch, now_ms)
            cluster.append_marker(partition, marker, kind)
            partition.await_followers(settle)

    def _find_completed(self, known: Transactional, kind: int) -> None:
        if not known.partitions:
            known.state = State.COMPLETE_COMMIT if kind == COMMIT else State.COMPLETE_ABORT

    def describe(self, answer: Answer) -> None:
        """DescribeTransactions: the state of each transactional id, and the partitions that have no marker yet."""
        rows: list[Any] = []
        for name in answer.request.transactional_ids:
            known = self.known.get(name)
            code = self._cluster.refuse_coordinator(answer.session.broker, name, TRANSACTION)
            if code or known is None:
                rows.append((int(code or Code.TRANSACTIONAL_ID_NOT_FOUND), name, "", 0, 0, 0, 0, [], {}))
                continue
            topics: dict[str, list[int]] = {}
            for topic, index in known.partitions:
                topics.setdefault(topic, []).append(index)
            began = int(known.began * 1000)
            listed: list[Any] = [(topic, indexes, {}) for topic, indexes in topics.items()]
            rows.append((0, name, known.state.value, known.timeout_ms, began, known.producer, known.epoch, listed, {}))
        answer.give(0, rows, {})

    def describe_producers(self, answer: Answer) -> None:
        """DescribeProducers: the producers of partitions that the asked broker leads."""
        topics: list[Any] = []
        for topic, indexes, _ in answer.request.topics:
            rows: list[Any] = []
            for index in indexes:
                partition = self._cluster.find_led(answer.session.broker, topic, index)
                if isinstance(partition, Code):
                    rows.append((index, int(partition), None, [], {}))
                    continue
                epoch = self.coordinator_epoch
                producers: list[Any] = [
                    (id, one.epoch, one.last_sequence, int(one.seen_ms), epoch, _or_none(one.open_at), {})
                    for id, one in partition.log.producers.known.items()
                ]
                rows.append((index, 0, None, producers, {}))
            topics.append((topic, rows, {}))
        answer.give(0, topics, {})

    def abort_hanging(self, partition: Partition) -> int:
        """Abort the transactions of a partition that no coordinator knows any more, as `kafka-transactions.sh abort` does.

        Return how many there were. Their markers went with the end of the log, and their records stayed.
        """
        place = partition.topic.name, partition.index
        ongoing = {
            known.producer
            for known in self.known.values()
            if place in known.partitions and known.state in (State.ONGOING, *_ENDING)
        }
        producers = partition.log.producers
        hanging = [producer for producer in producers.open if producer not in ongoing]
        for producer in hanging:
            epoch = producers.known[producer].epoch
            marker = make_marker(producer, epoch, ABORT, self.coordinator_epoch, int(self._cluster.wall_ms))
            self._cluster.append_marker(partition, marker, ABORT)
        return len(hanging)

    def _expect_timeout(self, known: Transactional) -> None:
        cluster, began, epoch = self._cluster, known.began, known.epoch
        sweep = cluster.settings.transaction_sweep_s
        due = began + known.timeout_ms / 1000
        due = (floor(due / sweep) + 1) * sweep if sweep else due

        def abort() -> None:
            if known.state is not State.ONGOING or known.began != began or known.epoch != epoch:
                return
            if cluster.coordinator(known.name, TRANSACTION) not in cluster.up:
                cluster.timers.at(cluster.now + sweep + RETRY_S, abort)
            else:
                # the producer is fenced: the epoch of its next request is too old
                self._note_fenced(known)
                known.epoch = min(known.epoch + 1, LAST_EPOCH)
                self._end(known, ABORT)

        cluster.timers.at(due, abort)

    def verify(self, name: str | None, batch: Batch, partition: Partition) -> Code | None:
        """Return why a batch is not part of an open transaction, None if it is: its partition has to be added first."""
        known = self.known.get(name or "")
        if known is None or known.producer != batch.producer:
            return Code.INVALID_PRODUCER_ID_MAPPING
        if known.epoch != batch.producer_epoch:
            return Code.INVALID_PRODUCER_EPOCH
        if known.state in _ENDING:
            return Code.NOT_ENOUGH_REPLICAS
        if known.state is not State.ONGOING or (partition.topic.name, partition.index) not in known.partitions:
            return Code.INVALID_TXN_STATE
        return None

    def verify_group(self, name: str, producer: int, epoch: int, group: str) -> Code:
        """Return why a group's offsets are not part of an open transaction, NONE if they are."""
        known = self.known.get(name)
        if known is None or known.producer != producer:
            return Code.INVALID_PRODUCER_ID_MAPPING
        if known.epoch != epoch:
            return Code.INVALID_PRODUCER_EPOCH
        if known.state in _ENDING:
            return Code.COORDINATOR_LOAD_IN_PROGRESS
        if known.state is not State.ONGOING or group not in known.groups:
            return Code.INVALID_TXN_STATE
        return Code.NONE


def _or_none(offset: int | None) -> int:
    return -1 if offset is None else offset


def _spread(
    wanted: Iterable[tuple[str, list[int]]], codes: dict[tuple[str, int], Code], other: Code
) -> list[tuple[str, list[Any]]]:
    return [
        (topic, [(index, int(codes.get((topic, index), other))) for index in partitions])
        for topic, partitions in wanted
    ]
