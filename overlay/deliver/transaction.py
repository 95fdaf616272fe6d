"""A shard's transactions: output batches and the state record that accounts for them, all or nothing.

What makes it true (design 11, found by experiment with aiokafka 0.14):

- `commit_transaction()` succeeds even when a batch of the transaction failed, because its flush ignores their errors. Every
  future is therefore awaited first, and one error is enough to abort.
- After an abort the producer may fail for ever with out-of-order sequences. It is dropped, and so is whatever the shard
  held in memory: `Transactions` is good for one run of commits and is closed after the first failure.
- A batch that the broker keeps refusing for a passing reason is tried for ever. A deadline ends that, in good time before
  the broker would time the transaction out by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka_errors
from aiokafka.errors import KafkaError
from aiokafka.structs import RecordMetadata, TopicPartition

from overlay.connection import Properties, for_aiokafka
from overlay.errors import DeliveryFailed, Fenced, SourceUnavailable

from .outbox import Outgoing

log = structlog.get_logger(__name__)

TRANSACTION_TIMEOUT_MS = 15_000
DEADLINE_S = 10.0
START_DEADLINE_S = 30.0
STOP_S = 2.0

_FENCED = (
    kafka_errors.ProducerFenced,
    kafka_errors.InvalidProducerEpoch,
    kafka_errors.InvalidProducerIdMapping,
    kafka_errors.InvalidTxnState,
    kafka_errors.OutOfOrderSequenceNumber,
)


class _Sender:
    """An aiokafka producer, started with a deadline and stopped without waiting for what can no longer succeed."""

    def __init__(self, kafka: Properties, **settings: Any) -> None:
        self._producer = AIOKafkaProducer(
            **for_aiokafka(kafka),
            acks="all",
            enable_idempotence=True,
            linger_ms=0,
            request_timeout_ms=10_000,
            **settings,
        )

    async def start(self, topics: Iterable[str]) -> None:
        """Connect; a transactional producer fences its predecessor here. All topics are looked up in one request."""
        try:
            async with asyncio.timeout(START_DEADLINE_S):
                await self._producer.start()
                await self._producer.client.set_topics(list(topics))
        except asyncio.CancelledError:
            await self.close()
            raise
        except (KafkaError, OSError, TimeoutError) as error:
            await self.close()
            raise SourceUnavailable(f"the producer cannot start: {error or type(error).__name__}") from error

    async def look_up(self, topics: Iterable[str]) -> None:
        """Get the metadata of topics in one request, rather than one by one as batches come."""
        for topic in topics:
            self._producer.client._topics.add(topic)
        await self._producer.client.force_metadata_update()

    async def close(self) -> None:
        """Stop. After an error the producer's own flush may wait for batches that will never go out: those are given up."""
        producer = self._producer
        stopping = asyncio.create_task(producer.stop())
        _, late = await asyncio.wait((stopping,), timeout=STOP_S)
        if late:
            producer._message_accumulator.fail_all(kafka_errors.ProducerClosed())
            await asyncio.wait((stopping,), timeout=STOP_S)
            stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        await producer.client.close()
        waiter = producer._txn_manager and producer._txn_manager._transaction_waiter
        if waiter and waiter.done():
            _consume(waiter)

    async def _send_all(self, batches: Iterable[Outgoing]) -> None:
        """Send and await every batch. Raises DeliveryFailed for the first partition that fails."""
        by_partition: dict[TopicPartition, list[Outgoing]] = {}
        for outgoing in batches:
            by_partition.setdefault(TopicPartition(outgoing.topic, outgoing.partition), []).append(outgoing)
        tasks = [asyncio.create_task(self._send(tp, queue)) for tp, queue in by_partition.items()]
        if not tasks:
            return
        try:
            done, late = await asyncio.wait(tasks, timeout=DEADLINE_S, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
            if late:
                names = [str(tp) for tp, task in zip(by_partition, tasks, strict=True) if task in late]
                first = list(by_partition)[tasks.index(next(iter(late)))]
                everyone = "" if done else " (nor by any other partition)"
                reason = f"not taken within {DEADLINE_S:.0f} s: {', '.join(names[:5])}{everyone}"
                raise DeliveryFailed(first.topic, first.partition, reason, final=False)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, tp: TopicPartition, queue: Sequence[Outgoing]) -> None:
        futures: list[asyncio.Future[RecordMetadata]] = []
        try:
            for outgoing in queue:  # one by one: those sent before an error must be known after it
                futures.append(await self._producer.send_batch(outgoing.batch, tp.topic, partition=tp.partition))  # noqa: PERF401
            for future in futures:
                await future
        except _FENCED as error:
            raise Fenced(f"{tp.topic}-{tp.partition}: {type(error).__name__}: {error}") from error
        except (KafkaError, OSError, AssertionError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise DeliveryFailed(tp.topic, tp.partition, reason, final=_is_final(error)) from error
        finally:
            for future in futures:
                future.add_done_callback(_consume)


def _is_final(error: Exception) -> bool:
    """Whether trying again cannot help."""
    return isinstance(error, KafkaError) and not error.retriable


def _consume(future: asyncio.Future[Any]) -> None:
    """Read a future's error, so that asyncio does not complain about one that nobody awaited."""
    if not future.cancelled():
        future.exception()


class PlainSender(_Sender):
    """For `delivery: at_least_once`: batches without a transaction."""

    async def send(self, batches: Iterable[Outgoing]) -> None:
        """Send and await batches. Raises DeliveryFailed."""
        await self._send_all(batches)


class Transactions(_Sender):
    """The transactions of one shard, one after the other."""

    def __init__(self, kafka: Properties, transactional_id: str, state_topic: str, shard: int) -> None:
        super().__init__(kafka, transactional_id=transactional_id, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)
        self._state = TopicPartition(state_topic, shard)

    async def begin(self) -> None:
        """Open a transaction."""
        async with self._guard():
            await self._producer.begin_transaction()

    async def send(self, batches: Iterable[Outgoing]) -> None:
        """Send and await batches of the open transaction."""
        async with self._guard():
            await self._send_all(batches)

    async def finish(self, state: bytes, batches: Iterable[Outgoing] = ()) -> int:
        """Write the state record and the last batches, side by side, and commit; returns the state record's offset.

        Side by side means one AddPartitionsToTxn and one produce request where there would be two of each.
        """
        async with self._guard():
            async with asyncio.timeout(2 * DEADLINE_S):
                recording = asyncio.create_task(self._record(state))
                try:
                    await self._send_all(batches)
                    offset = await recording
                finally:
                    recording.cancel()
                    await asyncio.gather(recording, return_exceptions=True)
                await self._producer.commit_transaction()
            return offset

    async def _record(self, state: bytes) -> int:
        future = await self._producer.send(self._state.topic, state, partition=self._state.partition)
        metadata: RecordMetadata = await future
        return int(metadata.offset)

    @contextlib.asynccontextmanager
    async def _guard(self) -> AsyncIterator[None]:
        """Abort on any error and say whose fault it is: Fenced, DeliveryFailed or SourceUnavailable.

        Nothing is committed then, but for SourceUnavailable from `finish`, after which only the state can tell; in every
        case this object is of no more use.
        """
        try:
            yield
        except _FENCED as error:
            raise Fenced(f"{self._state.topic}-{self._state.partition}: {type(error).__name__}: {error}") from error
        except (Fenced, DeliveryFailed):
            await self._abort()
            raise
        except (KafkaError, OSError, TimeoutError) as error:
            await self._abort()
            raise SourceUnavailable(f"the transaction did not end: {error or type(error).__name__}") from error

    async def _abort(self) -> None:
        """Best effort: the next owner's InitProducerId aborts what is left open."""
        # AssertionError: a producer that has been fenced refuses to abort as well
        with contextlib.suppress(KafkaError, OSError, TimeoutError, AssertionError):
            await asyncio.wait_for(self._producer.abort_transaction(), 3.0)
