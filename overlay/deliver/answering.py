"""What goes to reply topics: answers to acks, statuses, and the messages of pull requests. It is sent outside every
transaction, once the state that it tells of is committed.

The client that waits for an answer chose its topic, so no transaction may depend on that topic. A topic that refuses a batch
would abort the transaction, and one that takes no transaction marker (a size limit of 64 bytes is enough) would keep it open
for ever. Here each topic has a queue of its own, and one that refuses, or takes its time, holds up no other.

What is sent here may be lost, in a crash or because its topic refuses. The client that waits for an answer then asks again.
Messages of a pull request wait for their ack and are delivered again after ack_wait; only those of a consumer without acks
are lost, as in NATS.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from aiokafka import errors as kafka_errors
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError, KafkaError, LeaderNotAvailableError
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.structs import TopicPartition

from overlay.clock import now_ms
from overlay.connection import Properties, open_client
from overlay.errors import OverlayError
from overlay.logs import get_logger

from .addressees import Addressees
from .batch import encode_records
from .entry import Entry, divide
from .outbox import Outgoing
from .record import Record

log = get_logger(__name__)

AVOID_S = 60.0
"""How long a topic that has refused gets no answers."""
PATIENCE_S = 5.0
"""How long a topic may refuse for passing reasons."""
BACKOFF_S = 0.1
MOST_WAITING = 64 << 20
"""Bytes that wait for one topic. What comes beyond them is dropped."""
ROOM = 32 << 20
"""Bytes that wait for all topics while nothing more is handed out."""
CLOSE_S = 2.0
ACKS_LEADER = 1
TIMEOUT_MS = 5_000

OnRefused = Callable[[str, int], None]
"""Told of answers that went nowhere: the reason (missing, refused) and how many."""
Piece = Entry | Outgoing


@dataclass(slots=True)
class Answering:
    """The answers of one shard. `put` them, and `close` at the end."""

    kafka: Properties
    addressees: Addressees
    on_refused: OnRefused
    on_unreachable: Callable[[str], None] = lambda _: None
    """Told what the reply addresses begin with to which nothing can be sent."""
    _waiting: dict[str, deque[Piece]] = field(default_factory=dict)
    """By topic."""
    _sizes: Counter[str] = field(default_factory=Counter)
    """Bytes that wait or are under way, by topic."""
    _sent: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _client: AIOKafkaClient | None = None
    _connecting: asyncio.Lock = field(default_factory=asyncio.Lock)

    def put(self, pieces: Iterable[Piece]) -> None:
        """Queue answers. Those to one partition keep their order."""
        for piece in pieces:
            topic = piece.topic
            if self._sizes[topic] >= MOST_WAITING:
                self.on_refused("refused", _count(piece))
                continue
            self._waiting.setdefault(topic, deque()).append(piece)
            self._sizes[topic] += piece.size
            if topic not in self._tasks:
                self._tasks[topic] = asyncio.create_task(self._serve(topic), name=f"answers-{topic}")

    async def make_room(self) -> None:
        """Wait while much is on its way, but no longer than a topic may take to refuse."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while self._sizes.total() > ROOM:
                    self._sent.clear()
                    await self._sent.wait()

    async def close(self) -> None:
        """Send what is queued if that takes little time, drop the rest, and disconnect."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=CLOSE_S)
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if self._client is not None:
            with contextlib.suppress(KafkaError, OSError):
                await self._client.close()
            self._client = None

    async def _serve(self, topic: str) -> None:
        """Send what waits for a topic until nothing does."""
        try:
            while waiting := self._waiting[topic]:
                pieces = list(waiting)
                waiting.clear()
                if refused := await self._send(topic, pieces):
                    self.on_refused("refused", refused)
                self._sizes[topic] -= sum(piece.size for piece in pieces)
                self._sent.set()
        except Exception as error:
            # an error here belongs to one topic's answers, and must not reach the shard
            log.exception("answers are dropped", topic=topic, reason=str(error))
        finally:
            del self._tasks[topic], self._waiting[topic], self._sizes[topic]
            self._sent.set()

    async def _send(self, topic: str, pieces: Sequence[Piece]) -> int:
        """Send to one topic. Returns how many records it did not take."""
        try:
            reachable, client = await self._find_reachable(pieces)
        except OverlayError as error:
            log.warning("answers are dropped", topic=topic, count=len(pieces), reason=str(error))
            return sum(map(_count, pieces))
        parcels = deque(_pack(reachable))
        dropped = 0
        while parcels:
            parcel = parcels.popleft()
            fault = await self._produce(client, TopicPartition(topic, parcel.partition), parcel.data)
            if fault is None:
                continue
            if issubclass(fault, kafka_errors.MessageSizeTooLargeError):
                # only a record that is too large by itself is dropped, or messages that were packed before
                parcels.extendleft(reversed(parcel.split()))
                dropped += 0 if len(parcel.records) > 1 else parcel.count
                if parcel.reply:
                    self.on_unreachable(parcel.reply)
                continue
            self.addressees.avoid([topic], AVOID_S)
            log.warning("a topic refuses answers and gets none for now", topic=topic, reason=fault.__name__)
            self.on_unreachable(f"{topic}/")
            return dropped + parcel.count + sum(rest.count for rest in parcels)
        return dropped

    async def _find_reachable(self, pieces: Sequence[Piece]) -> tuple[list[Piece], AIOKafkaClient]:
        """Return the pieces whose topic and partition are there, and a client for them. Raises SourceUnavailable."""
        places = [Entry(piece.topic, _NOTHING, piece.partition) for piece in pieces]
        _, lost = await self.addressees.sort(places)
        if lost:
            self.on_refused("missing", len(lost))
        nowhere = {(entry.topic, entry.partition) for entry in lost}
        for topic, partition in nowhere:
            self.on_unreachable(f"{topic}/{partition}/" if partition else f"{topic}/")
        return [piece for piece in pieces if (piece.topic, piece.partition) not in nowhere], await self._connect()

    async def _produce(self, client: AIOKafkaClient, place: TopicPartition, data: bytes) -> type[Exception] | None:
        """Write one batch, trying again for a while. Returns the error that remains."""
        await client.add_topic(place.topic)
        request = [(place.topic, [(place.partition, data)])]
        deadline = time.monotonic() + PATIENCE_S
        while True:
            fault: type[Exception] | None = await self._ask(
                client, place, ProduceRequest(None, ACKS_LEADER, TIMEOUT_MS, request)
            )
            if fault is None or not getattr(fault, "retriable", False) or time.monotonic() > deadline:
                return fault
            await asyncio.sleep(BACKOFF_S)
            with contextlib.suppress(KafkaError, OSError):
                await client.force_metadata_update()

    @staticmethod
    async def _ask(client: AIOKafkaClient, place: TopicPartition, request: ProduceRequest) -> type[Exception] | None:
        leader = client.cluster.leader_for_partition(place)
        if leader is None or leader < 0:
            missing: type[Exception] = LeaderNotAvailableError
            return missing
        try:
            response = await client.send(leader, request)
        except KafkaError as error:
            fault: type[Exception] = type(error)
            return fault
        except OSError:
            lost: type[Exception] = KafkaConnectionError
            return lost
        found: type[Exception] = kafka_errors.for_code(response.topics[0][1][0][1])
        return None if found is kafka_errors.NoError else found

    async def _connect(self) -> AIOKafkaClient:
        async with self._connecting:
            if self._client is None:
                self._client = await open_client(self.kafka)
            return self._client


@dataclass(frozen=True, slots=True)
class _Parcel:
    """A batch for one partition. `records`: what it was made of; empty for messages that were packed before."""

    partition: int
    data: bytes
    count: int
    records: Sequence[Record] = ()
    reply: str = ""
    """Of the pull request that the messages are for."""

    def split(self) -> list[_Parcel]:
        """Return two halves, or nothing where there are none."""
        middle = len(self.records) // 2
        return (
            [_encode(self.partition, part) for part in (self.records[:middle], self.records[middle:])] if middle else []
        )


_NOTHING = Record(None, None)


def _encode(partition: int, records: Sequence[Record]) -> _Parcel:
    return _Parcel(partition, encode_records(records, now_ms(), transactional=False).build(), len(records), records)


def _pack(pieces: Sequence[Piece]) -> Iterator[_Parcel]:
    """Yield batches in the order of the pieces: entries that follow each other share one."""
    for is_entry, run in itertools.groupby(pieces, lambda piece: isinstance(piece, Entry)):
        if is_entry:
            entries = [piece for piece in run if isinstance(piece, Entry)]
            yield from (_encode(place[1], records) for place, records in divide(entries))
        else:
            batches = [piece for piece in run if isinstance(piece, Outgoing)]
            yield from (
                _Parcel(each.partition, each.batch.build(), each.batch.count, reply=each.reply) for each in batches
            )


def _count(piece: Piece) -> int:
    return piece.batch.count if isinstance(piece, Outgoing) else 1
