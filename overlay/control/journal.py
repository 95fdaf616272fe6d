"""Writing for the control topic: definitions, answers and events of one change, all or nothing, by the owner of a shard.

Each shard has a transactional id of its own for this, `<prefix>.control.<shard>`. Whoever starts a journal fences the former
owner, whose last change is then either committed or gone. Its requests are read again after that, and so answered once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from overlay.clock import now_ms
from overlay.errors import SourceUnavailable
from overlay.kafka.connection import Properties, for_aiokafka
from overlay.output.entry import Entry, press_entries
from overlay.output.transaction import Transactions

from .records import ConsumerId, Subject, control_topic, make_key

DEADLINE_S = 15.0


def journal_id(prefix: str, shard: int) -> str:
    return f"{prefix}.control.{shard}"


class Journal:
    """Good until its first error."""

    def __init__(self, kafka: Properties, prefix: str, shard: int) -> None:
        self._topic = control_topic(prefix)
        self._transactions = Transactions(kafka, journal_id(prefix, shard), self._topic, 0)
        self._known = {self._topic}

    async def start(self) -> None:
        """Connect, and fence whoever was here before. Raises SourceUnavailable."""
        await self._transactions.start(self._known)

    async def commit(self, entries: Sequence[Entry]) -> int:
        """Write all of it; the offset of the last record in the control topic, -1 for none.

        Raises Fenced, SourceUnavailable, and DeliveryFailed with the topic that does not take what is for it; after each of
        them this object is of no more use.
        """
        batches = press_entries(entries, now_ms())
        if fresh := {entry.topic for entry in entries} - self._known:
            await self._transactions.look_up(fresh)
            self._known |= fresh
        offsets = await self._transactions.write(batches)
        ends = (
            offset + each.batch.count
            for each, offset in zip(batches, offsets, strict=True)
            if each.topic == self._topic
        )
        return max(ends, default=0) - 1

    async def close(self) -> None:
        await self._transactions.close()


async def strike(kafka: Properties, prefix: str, id: ConsumerId) -> None:
    """Drop what is written of a consumer, by whoever removes its state by hand. Raises SourceUnavailable."""
    topic = control_topic(prefix)
    producer = AIOKafkaProducer(**for_aiokafka(kafka), acks="all", request_timeout_ms=10_000)
    try:
        async with asyncio.timeout(DEADLINE_S):
            await producer.start()
            for subject in (Subject.CONSUMER, Subject.PAUSE):
                await producer.send_and_wait(topic, None, key=make_key(subject, *id), partition=0)
    except (KafkaError, OSError, TimeoutError) as error:
        raise SourceUnavailable(f"{topic}: nothing was written: {str(error) or type(error).__name__}") from error
    finally:
        with contextlib.suppress(KafkaError, OSError):
            await producer.stop()
