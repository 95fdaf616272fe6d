"""Produce requests, with several in flight at a time.

aiokafka's producer keeps the parts that are hard to get right and cheap to run: the producer id,
the transaction and its coordinator, the connections. Its own sender is not used. It has one request
in flight per broker, with one batch per partition, and copies each batch eight times. So the broker
idles while we prepare the next request, and we idle while it checks the last one. Here up to WINDOW
requests are in flight over the broker's one connection, which answers in order.

Order and retries. A batch has the sequence number of its first record (idempotent producer). If a
batch is refused for a passing reason, such as a leader that has moved, the batches behind it are
refused as out of order. Once all of them have been answered, sending continues from the first one
that was not taken, with the same numbers. The broker reports a batch that it already has. Kafka
remembers the last five batches of a producer and partition, so no more than that may be in flight.
A partition that does not know the producer yet accepts any number for the first batch, so the first
batch is sent alone.

An error that cannot be retried ends everything: the caller drops its transaction and this object
with it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka_errors
from aiokafka.errors import KafkaError
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.types import Int16, Int32, String
from aiokafka.structs import TopicPartition

from overlay.clock import monotonic
from overlay.errors import DeliveryFailed, Fenced

from .batch_builder import OutputBatch

WINDOW = 4
"""Most requests in flight to one broker."""
REQUEST_BYTES = 1 << 20
"""Bytes in a request; a single batch may be larger."""
BACKOFF_S = 0.1
UNKNOWN_S = 2.0
"""Seconds for which a partition may be unknown to its broker: longer than the news of a new topic
takes.
"""
ACKS_ALL = -1
TIMEOUT_MS = 10_000

FENCED = (
    kafka_errors.ProducerFenced,
    kafka_errors.InvalidProducerEpoch,
    kafka_errors.InvalidProducerIdMapping,
    kafka_errors.InvalidTxnState,
    kafka_errors.OutOfOrderSequenceNumber,
    kafka_errors.DuplicateSequenceNumber,
)
"""Errors that mean that another producer has taken our place, or that the broker has forgotten us.

DuplicateSequenceNumber belongs to them: a broker that remembers us also returns the offset of the
batch it has.
"""


@dataclass(slots=True, eq=False)
class _QueuedBatch:
    """A batch in the queue of its partition. `data`: the bytes to send. `taken`: is set to the
    offset of its first record once Kafka has taken it, or to the error.
    """

    outgoing: OutputBatch
    data: bytes
    taken: asyncio.Future[int]


@dataclass(slots=True)
class _Queue:
    """One partition's batches, in order. The first `sent` of them are in flight, the others wait.
    `not_before`, `unknown_since`: monotonic seconds, 0 for none.
    """

    tp: TopicPartition
    batches: deque[_QueuedBatch] = field(default_factory=deque)
    sent: int = 0
    limit: int = 1
    """Most batches in flight: one until the partition has taken a batch."""
    refused: KafkaError | None = None
    """Why the foremost batch came back; nothing is sent until all are back."""
    not_before: float = 0.0
    unknown_since: float = 0.0

    def has_next(self, now: float) -> bool:
        return self.refused is None and self.sent < min(self.limit, len(self.batches)) and now >= self.not_before


class _Request(ProduceRequest):  # type: ignore[misc]
    """aiokafka's request, encoded at once instead of field by field around the batches."""

    def __init__(self, transactional_id: str | None, batches: dict[TopicPartition, _QueuedBatch]) -> None:
        super().__init__(transactional_id, ACKS_ALL, TIMEOUT_MS, [])
        self._batches = batches

    def build(self, request_struct_class: Any) -> Any:
        built = super().build(request_struct_class)
        built.encode = self._encode
        return built

    def _encode(self) -> bytes:
        # versions 3 to 7 have the same layout; each topic entry has one partition
        pieces = [String().encode(self._transactional_id), Int16.encode(ACKS_ALL), Int32.encode(TIMEOUT_MS)]
        pieces.append(Int32.encode(len(self._batches)))
        for tp, batch in self._batches.items():
            pieces += [String().encode(tp.topic), Int32.encode(1), Int32.encode(tp.partition)]
            pieces += [Int32.encode(len(batch.data)), batch.data]
        return b"".join(pieces)


class Produce:
    """A sender of batches over the connections of an aiokafka producer, in order within each
    partition.
    """

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer
        self._client = producer.client
        self._queues: dict[TopicPartition, _Queue] = {}
        self._busy: Counter[int] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: Exception | None = None
        self._is_in_doubt = False
        """Whether an answer was lost, and not all batches have been taken since."""
        self._refusals: list[DeliveryFailed] = []
        """Partitions that have refused for good while requests of others are in flight."""

    async def send(self, batches: Iterable[OutputBatch], deadline_s: float) -> list[int]:
        """Send batches and wait until Kafka has taken all of them. Return the offset of each batch's first record, in
        the order of `batches`. Calls may overlap.

        `deadline_s`: seconds. Raises DeliveryFailed or Fenced, also for a batch of another call; after that nothing
        more can be sent. If only the deadline has passed (DeliveryFailed), the batches may still be sent and taken,
        until `settle` or `close` is called. After `settle` or `close`, `send` raises KafkaError, or the failure that
        came before.
        """
        queued = self._line_up(list(batches))
        if not queued:
            return []
        self._pump()
        _, late = await asyncio.wait(
            [batch.taken for batch in queued], timeout=deadline_s, return_when=asyncio.FIRST_EXCEPTION
        )
        if self._failure is None and self._refusals:
            self._fail(_join(self._refusals))  # other answers take too long
        if self._failure is not None:
            raise self._failure
        if late:
            raise _too_late(
                [batch.outgoing for batch in queued if batch.taken in late],
                deadline_s,
                everyone=len(late) == len(queued),
            )
        self._is_in_doubt &= any(queue.batches for queue in self._queues.values())
        return [batch.taken.result() for batch in queued]

    def drop_topics(self, topics: Collection[str]) -> None:
        """Forget the partitions of these topics that have no batch under way. Later batches for them may be sent all the
        same: aiokafka keeps their sequence numbers.
        """
        for tp in [tp for tp, queue in self._queues.items() if tp.topic in topics and not queue.batches]:
            del self._queues[tp]

    async def settle(self, patience_s: float) -> bool:
        """Fail all batches that were not taken, those in flight included, and send nothing more. Wait up to
        `patience_s` seconds for the answers to requests in flight.

        Return True if all were answered, and no answer was lost before, except one after which all batches were
        taken. If False, a broker may still take a batch of ours, at any time until it learns of a new epoch.
        """
        self._fail(KafkaError("the producer sends nothing more"))
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=patience_s)
        return not self._tasks and not self._is_in_doubt

    async def close(self) -> None:
        """Cancel the requests in flight, and fail all batches that were not taken."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fail(KafkaError("the producer was closed"))

    def _line_up(self, batches: Sequence[OutputBatch]) -> list[_QueuedBatch]:
        """Give the batches the producer's next sequence numbers, and append them to the queues of
        their partitions. Nothing is sent yet. Raises the failure if there was one before.
        """
        if self._failure is not None:
            raise self._failure
        numbers, queued = self._producer._txn_manager, []
        for outgoing in batches:
            tp = TopicPartition(outgoing.topic, outgoing.partition)
            sequence = numbers.sequence_number(tp)
            data = outgoing.batch.build(numbers.producer_id, numbers.producer_epoch, sequence)
            numbers.increment_sequence_number(tp, outgoing.batch.count)
            batch = _QueuedBatch(outgoing, data, asyncio.get_running_loop().create_future())
            self._queues.setdefault(tp, _Queue(tp)).batches.append(batch)
            queued.append(batch)
        return queued

    def _pump(self) -> None:
        """Start a task for each request that may be sent now; does not wait. A partition without a
        leader is tried again later, and one that is gone from the metadata for UNKNOWN_S fails
        everything.
        """
        if self._failure is not None or self._refusals:
            return
        now = monotonic()
        waiting: dict[int, list[_Queue]] = {}
        for queue in self._queues.values():
            if queue.has_next(now):
                leader = self._client.cluster.leader_for_partition(queue.tp)
                if leader is not None and leader >= 0:
                    waiting.setdefault(leader, []).append(queue)
                elif leader is None and (reason := self._give_up(queue, kafka_errors.UnknownTopicOrPartitionError())):
                    self._fail(reason)  # the partition is not in the metadata any more: its topic was deleted
                    return
                else:
                    self._put_off(queue)
        for node, queues in waiting.items():
            while self._busy[node] < WINDOW and (load := _load(queues, now)):
                self._busy[node] += 1
                task = asyncio.create_task(self._request(node, load), name=f"produce-{node}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _request(self, node: int, load: dict[TopicPartition, _QueuedBatch]) -> None:
        """Send one request to broker `node`, process the answer for each of its batches, and start
        what may be sent next.
        """
        answers: dict[TopicPartition, tuple[type[KafkaError], int]] = {}
        try:
            response = await self._client.send(node, _Request(self._producer._txn_manager.transactional_id, load))
            for topic, rows in response.topics:
                for partition, code, offset, *_ in rows:
                    answers[TopicPartition(topic, partition)] = (kafka_errors.for_code(code), offset)
        except (KafkaError, OSError) as error:
            lost = type(error) if isinstance(error, KafkaError) else kafka_errors.KafkaConnectionError
            answers = dict.fromkeys(load, (lost, -1))
            self._is_in_doubt = True
        finally:
            self._busy[node] -= 1
        for tp in load:
            if self._failure is None:
                self._settle(self._queues[tp], *answers.get(tp, (kafka_errors.UnknownError, -1)))
        if self._refusals and self._failure is None and not self._busy.total():
            self._fail(_join(self._refusals))
        self._pump()

    def _settle(self, queue: _Queue, error: type[KafkaError], offset: int) -> None:
        """Process the answer for the first batch in flight of a partition. A batch that was taken
        leaves the queue.

        After a refusal, the batches behind it are expected to be refused too. Once all are
        answered, they are sent again, unless a retry cannot help. `offset`: -1 if the broker named
        none.
        """
        queue.sent -= 1
        if error is kafka_errors.NoError and offset < 0:
            error = kafka_errors.DuplicateSequenceNumber  # the broker has the batch but does not say where
        is_taken = error is kafka_errors.NoError or (error is kafka_errors.DuplicateSequenceNumber and offset >= 0)
        # taken, refused, or in flight behind a refused one
        if is_taken and queue.refused is None:
            batch = queue.batches.popleft()
            queue.limit, queue.unknown_since = WINDOW, 0.0
            if not batch.taken.done():
                batch.taken.set_result(offset)
            return
        if queue.refused is None:
            queue.refused = error()
            reason = self._give_up(queue, queue.refused)
            if isinstance(reason, DeliveryFailed):
                # fail once the requests in flight are answered, so that a caller that avoids topics
                # learns of all of them at once
                self._refusals.append(reason)
            elif reason is not None:
                self._fail(reason)
        if queue.sent == 0:  # those behind it have been answered as well
            queue.refused = None
            self._put_off(queue)

    def _give_up(self, queue: _Queue, error: KafkaError) -> Exception | None:
        """Return the error to raise if a retry cannot help, None if it may.

        That is Fenced for the errors in FENCED; DeliveryFailed for other errors that are not retriable, or if the
        partition has been unknown for more than UNKNOWN_S.
        """
        where = f"{queue.tp.topic}-{queue.tp.partition}"
        if isinstance(error, FENCED):
            return Fenced(f"{where}: {type(error).__name__}: {error}")
        is_unknown = isinstance(error, kafka_errors.UnknownTopicOrPartitionError)
        if is_unknown:
            queue.unknown_since = queue.unknown_since or monotonic()
        if not error.retriable or (is_unknown and monotonic() - queue.unknown_since > UNKNOWN_S):
            reason = f"{type(error).__name__}: {error}"
            return DeliveryFailed(queue.tp.topic, queue.tp.partition, reason, final=not error.retriable)
        return None

    def _put_off(self, queue: _Queue) -> None:
        """Retry after a while with fresh metadata, at first with one batch alone."""
        queue.limit, queue.not_before = 1, monotonic() + BACKOFF_S
        self._client.force_metadata_update()
        asyncio.get_running_loop().call_later(BACKOFF_S * 1.1, self._pump)

    def _fail(self, reason: Exception) -> None:
        """Fail all batches that were not taken, now and in later calls, with `reason` or an earlier
        failure. Nothing is sent afterwards.
        """
        if self._failure is None:
            self._failure = reason
        for queue in self._queues.values():
            for batch in queue.batches:
                if not batch.taken.done():
                    batch.taken.set_exception(self._failure)
                    batch.taken.exception()  # else asyncio reports the errors of futures that are not awaited any more
            queue.batches.clear()


def _join(refusals: Sequence[DeliveryFailed]) -> DeliveryFailed:
    """Return the first refusal, with the topics of all of them. It is final if any of them is."""
    first = refusals[0]
    if len(refusals) == 1:
        return first
    return DeliveryFailed(
        first.topic,
        first.partition,
        first.reason,
        final=any(each.final for each in refusals),
        topics=[each.topic for each in refusals],
    )


def _load(queues: Iterable[_Queue], now: float) -> dict[TopicPartition, _QueuedBatch]:
    """Return the next unsent batch of each partition, for one request: as many as fit into REQUEST_BYTES, and at
    least one if any may be sent (`has_next`). They count as sent from then on.

    `now`: monotonic seconds; a partition that is backing off until later gives none.
    """
    load: dict[TopicPartition, _QueuedBatch] = {}
    size = 0
    for queue in queues:
        if queue.has_next(now) and (not load or size + len(queue.batches[queue.sent].data) <= REQUEST_BYTES):
            load[queue.tp] = queue.batches[queue.sent]
            size += len(load[queue.tp].data)
            queue.sent += 1
    return load


def _too_late(late: Sequence[OutputBatch], deadline_s: float, *, everyone: bool) -> DeliveryFailed:
    names = sorted({f"{outgoing.topic}-{outgoing.partition}" for outgoing in late})
    rest = " (nor by any other partition)" if everyone else ""
    reason = f"not taken within {deadline_s:.0f} s: {', '.join(names[:5])}{rest}"
    return DeliveryFailed(late[0].topic, late[0].partition, reason, final=False)
