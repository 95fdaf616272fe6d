"""Writing for the control topic: definitions, answers and events of one change, all or nothing, by the owner of a shard.

Each shard has a transactional id of its own for this, `<prefix>.control.<shard>`. Whoever starts a journal fences the former
owner, whose last change is then either committed or gone. Its requests are read again after that, and so answered once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from overlay.connection import Properties, for_aiokafka
from overlay.deliver.entry import Entry
from overlay.deliver.produce import FENCED
from overlay.errors import Fenced, SourceUnavailable

from .records import ConsumerId, Subject, control_topic, make_key

DEADLINE_S = 15.0
TIMEOUT_MS = 15_000


def journal_id(prefix: str, shard: int) -> str:
    return f"{prefix}.control.{shard}"


class Journal:
    """Good until its first error."""

    def __init__(self, kafka: Properties, prefix: str, shard: int) -> None:
        self._topic = control_topic(prefix)
        self._producer = AIOKafkaProducer(
            **for_aiokafka(kafka),
            acks="all",
            transactional_id=journal_id(prefix, shard),
            transaction_timeout_ms=TIMEOUT_MS,
            request_timeout_ms=10_000,
        )

    async def start(self) -> None:
        """Connect, and fence whoever was here before. Raises SourceUnavailable."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                await self._producer.start()
        except (KafkaError, OSError, TimeoutError) as error:
            await self.close()
            raise SourceUnavailable(f"requests cannot be answered: {str(error) or type(error).__name__}") from error

    async def commit(self, entries: Sequence[Entry]) -> int:
        """Write all of it; the offset of the last record in the control topic, -1 for none.

        Raises Fenced, SourceUnavailable; after either this object is of no more use.
        """
        last = -1
        try:
            async with asyncio.timeout(DEADLINE_S), self._producer.transaction():
                sent = [await self._send(entry) for entry in entries]
                # a commit succeeds even where a batch has failed, so each is asked (design 11.1)
                for found in await asyncio.gather(*sent):
                    if found.topic == self._topic:
                        last = max(last, found.offset)
        except FENCED as error:
            raise Fenced(f"{self._topic}: somebody else answers requests now: {type(error).__name__}") from error
        except (KafkaError, OSError, TimeoutError) as error:
            raise SourceUnavailable(
                f"{self._topic}: nothing was written: {str(error) or type(error).__name__}"
            ) from error
        return last

    async def _send(self, entry: Entry) -> asyncio.Future[Any]:
        record = entry.record
        headers = [(name, value) for name, value in record.headers if value is not None]
        future: asyncio.Future[Any] = await self._producer.send(
            entry.topic, record.value, key=record.key, partition=entry.partition, headers=headers
        )
        return future

    async def close(self) -> None:
        with contextlib.suppress(KafkaError, OSError, TimeoutError):
            async with asyncio.timeout(2.0):
                await self._producer.stop()


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
