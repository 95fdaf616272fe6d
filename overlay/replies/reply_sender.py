"""The sender for reply topics: answers to acks, statuses, and the messages of pull requests.

They are sent outside all transactions, after the state that they tell of is committed. The client
that waits for an answer chose the topic, so no transaction may depend on that topic. A topic that
refuses a batch would abort the transaction. A topic that cannot take a transaction marker (a size
limit of 64 bytes is enough) would keep the transaction open for ever. Here each topic has its own
queue. A topic that refuses or is slow delays no other topic.

Records sent here may be lost, in a crash or because their topic refuses them. A client without an
answer asks again. Messages of a pull request wait for their ack and are delivered again after
ack_wait. Only messages of a consumer without acks are lost, as in NATS. What waits for a working
topic is dropped only by `close` and after an unexpected error. Otherwise there is backpressure. If
much waits for a topic, pull requests that name it get nothing more (`full`). Beyond a limit for all
topics the dispatcher waits (`make_room`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from aiokafka import errors as kafka_errors
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError, KafkaError, LeaderNotAvailableError
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.structs import TopicPartition

from overlay.clock import monotonic, now_ms
from overlay.errors import OverlayError
from overlay.kafka.connection import open_client
from overlay.kafka.properties import Properties
from overlay.logs import get_logger
from overlay.output.entry import Entry
from overlay.output.record import Record

from .reply_batches import Piece, ReplyBatch, count_records, pack
from .reply_topics import ReplyTopics

log = get_logger(__name__)

AVOID_S = 60.0
"""Seconds during which a topic that has refused gets no answers."""
AVOID_PASSING_S = 2.0
"""The same for a refusal that may pass: Kafka is not reachable, or a partition has no leader."""
PATIENCE_S = 5.0
"""Seconds for which batches are retried after such a refusal."""
BACKOFF_S = 0.1
TOPIC_ROOM = 8 << 20
"""Bytes in flight to one topic, committed or not, from which on pull requests that name it get
nothing more.
"""
ROOM = 64 << 20
"""Bytes in flight to all topics above which the dispatcher waits."""
REQUEST_BYTES = 1 << 20
"""Bytes in a produce request; a single batch may be larger."""
TURN = 2_000
"""Most pieces packed at once, because the event loop is blocked meanwhile."""
CLOSE_S = 2.0
ACKS_LEADER = 1
TIMEOUT_MS = 5_000

OnRefused = Callable[[str, int], None]
"""Called when answers are dropped, with the reason (missing, refused) and their number."""
OnUnreachable = Callable[[frozenset[str], frozenset[str]], None]
"""Called with unreachable addresses: prefixes (`TOPIC/` or `TOPIC/PARTITION/`), and single addresses."""
Fault = type[Exception]


def _ignore(_: frozenset[str], __: frozenset[str]) -> None:
    pass


@dataclass(slots=True)
class ReplySender:
    """Sends the answers and pulled messages of a shard, or the answers of the request server, to
    reply topics, outside transactions, in a task for each topic. Queue them with `put`, and call
    `close` at the end. What a topic refuses is dropped and reported to `on_refused`; addresses that
    cannot be reached, to `on_unreachable`.
    """

    kafka: Properties
    reply_topics: ReplyTopics
    on_refused: OnRefused
    on_unreachable: OnUnreachable = _ignore
    """Of the session that owns the shard now."""
    _waiting: dict[str, deque[Piece]] = field(default_factory=dict)
    """By topic."""
    _sizes: Counter[str] = field(default_factory=Counter)
    """Bytes that wait or are being sent, by topic."""
    _announced: Counter[str] = field(default_factory=Counter)
    """Bytes that will be queued once they are committed, by topic."""
    _sent: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _client: AIOKafkaClient | None = None
    _connecting: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def full(self) -> frozenset[str]:
        """The topics with TOPIC_ROOM bytes or more in flight: announced, queued or being sent."""
        topics = self._sizes.keys() | self._announced.keys()
        return frozenset(topic for topic in topics if self._sizes[topic] + self._announced[topic] >= TOPIC_ROOM)

    def announce(self, pieces: Iterable[Piece]) -> None:
        """Count the bytes of pieces as in flight before they are queued. `put_announced` queues
        them once their transaction is committed.
        """
        for piece in pieces:
            self._announced[piece.topic] += piece.size

    def put_announced(self, pieces: Sequence[Piece]) -> None:
        """Queue pieces that were announced and are committed now, and return at once. They are no
        longer counted as announced, but as queued.
        """
        for piece in pieces:
            self._announced[piece.topic] -= piece.size
        self._announced = +self._announced  # drop what is not positive: `leave` may have cleared the counts
        self.put(pieces)

    def leave(self) -> None:
        """Drop what belongs to a session that has ended: its callback, and the count of what it has
        announced and not queued. What is queued is still sent.
        """
        self._announced.clear()
        self.on_unreachable = _ignore
        self._sent.set()

    def put(self, pieces: Iterable[Piece]) -> None:
        """Queue answers, and return at once. A task for each topic sends them; those for one
        partition keep their order.
        """
        for piece in pieces:
            topic = piece.topic
            self._waiting.setdefault(topic, deque()).append(piece)
            self._sizes[topic] += piece.size
            if topic not in self._tasks:
                self._tasks[topic] = asyncio.create_task(self._serve(topic), name=f"answers-{topic}")

    async def make_room(self) -> None:
        """Wait while more than ROOM bytes are in flight, announced ones included.

        The queue of a topic that takes nothing is dropped, so the wait ends.
        """
        while self._sizes.total() + self._announced.total() > ROOM:
            self._sent.clear()
            await self._sent.wait()

    async def close(self) -> None:
        """Wait at most CLOSE_S for the queues to be sent, drop the rest, and disconnect."""
        tasks = list(self._tasks.values())
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=CLOSE_S)
        finally:
            # also when the wait was cancelled
            for task in tasks:
                task.cancel()
            try:
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:
                client, self._client = self._client, None
                if client is not None:
                    with contextlib.suppress(KafkaError, OSError):
                        await client.close()

    async def _serve(self, topic: str) -> None:
        """Send the queue of a topic until it is empty. After an unexpected error the pieces being
        sent and the rest of the queue are dropped, reported to `on_refused` and logged; nothing is
        raised.
        """
        pieces: list[Piece] = []
        try:
            while waiting := self._waiting[topic]:
                pieces = [waiting.popleft() for _ in range(min(len(waiting), TURN))]
                if refused := await self._send(topic, pieces):
                    self.on_refused("refused", refused)
                self._sizes[topic] -= sum(piece.size for piece in pieces)
                pieces = []
                self._sent.set()
        except Exception as error:
            # an error here belongs to one topic's answers, and must not reach the shard
            lost = sum(map(count_records, [*pieces, *self._waiting[topic]]))
            self.on_refused("refused", lost)
            log.exception("answers are dropped", topic=topic, count=lost, reason=str(error))
        finally:
            del self._tasks[topic], self._waiting[topic], self._sizes[topic]
            self._sent.set()

    async def _send(self, topic: str, pieces: Sequence[Piece]) -> int:
        """Send pieces to one topic. Return how many records were dropped. Records that
        `_find_reachable` drops are not counted, since it reports them.

        A batch that is too large is split; only a piece that is too large by itself is dropped. If
        that is for a pull request, its address is reported to `on_unreachable`. After any other
        error that remains, all records left are dropped and the topic is avoided for a while. If
        Kafka cannot be reached at all, all are dropped.
        """
        try:
            reachable, client = await self._find_reachable(pieces)
        except OverlayError as error:
            lost = sum(map(count_records, pieces))
            log.warning("answers are dropped", topic=topic, count=lost, reason=str(error))
            return lost
        queues = pack(reachable, now_ms())
        dropped = 0
        unreachable: set[str] = set()
        while queues:
            heads = _load(queues)
            faults = await self._produce(client, topic, heads)
            fatal: Fault | None = None
            for partition in heads:
                queue, fault = queues[partition], faults.get(partition)
                reply_batch = queue.popleft()
                if fault is not None and issubclass(fault, kafka_errors.MessageSizeTooLargeError):
                    # only a piece that is too large by itself is dropped
                    halves = reply_batch.split(now_ms())
                    queue.extendleft(reversed(halves))
                    dropped += 0 if halves else reply_batch.count
                    if reply_batch.reply:
                        unreachable.add(reply_batch.reply)
                elif fault is not None:
                    fatal = fault
                    dropped += reply_batch.count
                if not queue:
                    del queues[partition]
            if fatal is not None:
                self._avoid(client, topic, fatal)
                dropped += sum(reply_batch.count for queue in queues.values() for reply_batch in queue)
                break
        if unreachable:
            self.on_unreachable(frozenset(), frozenset(unreachable))
        return dropped

    def _avoid(self, client: AIOKafkaClient, topic: str, fault: Fault) -> None:
        """Let a topic count as not existing for a while, log that, and report its addresses to
        `on_unreachable`. `fault`: why; if it may pass, the while is shorter.
        """
        seconds = AVOID_PASSING_S if _may_pass(fault) else AVOID_S
        self.reply_topics.avoid([topic], seconds)
        client.force_metadata_update()
        log.warning(
            "a topic refuses answers and gets none for now", topic=topic, reason=fault.__name__, seconds=seconds
        )
        self.on_unreachable(frozenset((f"{topic}/",)), frozenset())

    async def _find_reachable(self, pieces: Sequence[Piece]) -> tuple[list[Piece], AIOKafkaClient]:
        """Return the pieces whose topic and partition take records, and a connected client. The
        others are dropped and reported to `on_refused` and `on_unreachable`.

        Raises SourceUnavailable.
        """
        partitions = dict.fromkeys(piece.partition for piece in pieces)
        topic = pieces[0].topic
        _, lost = await self.reply_topics.sort([Entry(topic, _NOTHING, partition) for partition in partitions])
        nowhere = {entry.partition for entry in lost}
        if nowhere:
            self.on_refused("missing", sum(count_records(piece) for piece in pieces if piece.partition in nowhere))
            # an address without a partition means partition 0
            heads = frozenset(f"{topic}/{partition}/" if partition else f"{topic}/" for partition in nowhere)
            self.on_unreachable(heads, frozenset())
        return [piece for piece in pieces if piece.partition not in nowhere], await self._connect()

    async def _produce(
        self, client: AIOKafkaClient, topic: str, reply_batches: Mapping[int, ReplyBatch]
    ) -> dict[int, Fault]:
        """Write one batch to each partition, with retries for about PATIENCE_S after errors that may
        pass.

        Return by partition the error class of each batch that was not written, as far as is known: a
        batch whose answer was lost may have been written, even twice.
        """
        await client.add_topic(topic)
        left = {partition: reply_batch.batch.build() for partition, reply_batch in reply_batches.items()}
        final: dict[int, Fault] = {}
        deadline = monotonic() + PATIENCE_S
        while True:
            faults = await self._ask(client, topic, left)
            final |= {partition: fault for partition, fault in faults.items() if not _may_pass(fault)}
            left = {partition: left[partition] for partition in faults.keys() - final.keys()}
            if not left or monotonic() > deadline:
                return final | {partition: faults[partition] for partition in left}
            await asyncio.sleep(BACKOFF_S)
            with contextlib.suppress(KafkaError, OSError):
                await client.force_metadata_update()

    async def _ask(self, client: AIOKafkaClient, topic: str, batches: Mapping[int, bytes]) -> dict[int, Fault]:
        """Send each batch once, in one request per leader. Return by partition the error class of
        each batch that was not written.
        """
        by_leader: dict[int, dict[int, bytes]] = {}
        faults: dict[int, Fault] = {}
        for partition, data in batches.items():
            leader = client.cluster.leader_for_partition(TopicPartition(topic, partition))
            if leader is None or leader < 0:
                faults[partition] = LeaderNotAvailableError
            else:
                by_leader.setdefault(leader, {})[partition] = data
        for found in await asyncio.gather(
            *(self._request(client, leader, topic, b) for leader, b in by_leader.items())
        ):
            faults |= found
        return faults

    @staticmethod
    async def _request(
        client: AIOKafkaClient, leader: int, topic: str, batches: Mapping[int, bytes]
    ) -> dict[int, Fault]:
        try:
            response = await client.send(
                leader, ProduceRequest(None, ACKS_LEADER, TIMEOUT_MS, [(topic, list(batches.items()))])
            )
        except (KafkaError, OSError) as error:
            fault: Fault = type(error) if isinstance(error, KafkaError) else KafkaConnectionError
            return dict.fromkeys(batches, fault)
        found = {row[0]: kafka_errors.for_code(row[1]) for _, rows in response.topics for row in rows}
        return {partition: error for partition, error in found.items() if error is not kafka_errors.NoError}

    async def _connect(self) -> AIOKafkaClient:
        async with self._connecting:
            if self._client is None:
                self._client = await open_client(self.kafka, request_timeout_ms=TIMEOUT_MS)
            return self._client


_NOTHING = Record(None, None)


def _may_pass(fault: Fault) -> bool:
    return bool(getattr(fault, "retriable", False))


def _load(queues: Mapping[int, deque[ReplyBatch]]) -> dict[int, ReplyBatch]:
    """Return the first batch of each partition's queue, as many as fit into REQUEST_BYTES and at
    least one. The queues are not changed.
    """
    load: dict[int, ReplyBatch] = {}
    size = 0
    for partition, queue in queues.items():
        if not load or size + queue[0].batch.size <= REQUEST_BYTES:
            load[partition] = queue[0]
            size += queue[0].batch.size
    return load
