"""Transactions on the control topic: the records, the tombstones of requests, and the events of one
change, written by the owner of a shard.

Each shard has a transactional id of its own for this, `<prefix>.control.<shard>`. Starting a
journal fences the former owner, whose last change is then either committed or aborted. The new
owner decides requests after it has read all that was committed.

Kafka may lose the marker of that change (output/lost_markers.py) in either topic. In the control
topic it is ended before anything is decided. In the events topic the end of our next transaction
would end it as well: an abort would take the events of a committed change along, and a commit would
show those of an aborted one, which is decided again. So it is ended before our first transaction,
as the change was decided. If that is not known any more, it is committed: an event too many does
less harm than one that is missing, and requests must not wait for events.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from overlay.clock import now_ms
from overlay.credentials import stamp
from overlay.errors import SourceUnavailable
from overlay.kafka.connection import for_aiokafka, mend_client
from overlay.kafka.own_topics import control_topic, events_topic, journal_id
from overlay.kafka.properties import Properties
from overlay.output.entry import Entry, press_entries
from overlay.output.transaction import Transactions

from .records import ConsumerId, Subject, make_key

DEADLINE_S = 15.0
"""Seconds that `strike` may take."""


class Journal:
    """A writer of transactions for one shard, to the control topic and the events topic. Unusable
    after its first error. `prefix`: how the names of the overlay's topics begin.
    """

    def __init__(self, kafka: Properties, prefix: str, shard: int) -> None:
        self._topic, self._events = control_topic(prefix), events_topic(prefix)
        self._transactions = Transactions(kafka, journal_id(prefix, shard), self._topic, 0)
        self._known = {self._topic}

    async def start(self) -> None:
        """Connect, and fence the journal that the shard's former owner has open. Raises
        SourceUnavailable, and Fenced or DeliveryFailed if what that journal left open cannot be
        ended.
        """
        await self._transactions.start({self._topic, self._events})
        try:
            await self._transactions.end_lost([(self._topic, 0)])
            if self._transactions.list_partitions({self._events}):
                self._known.add(self._events)
            # its leader may be away for long: only events wait for it
            self._transactions.doubt_topics({self._events}, presume_committed=True)
        except BaseException:
            await self._transactions.close()
            raise

    async def commit(self, entries: Sequence[Entry]) -> int:
        """Write all entries in one transaction. Return the offset of the last of them in the control
        topic, -1 if none of them is for that topic.

        Raises Fenced, SourceUnavailable, or DeliveryFailed with the topic that refuses its part.
        The journal is unusable after any of them.
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
    """Write tombstones for a consumer's definition and pause to the control topic, without a
    transaction. For a command that drops the consumer's state by hand. Raises SourceUnavailable.
    """
    topic = control_topic(prefix)
    seen = stamp(kafka)
    producer = AIOKafkaProducer(**for_aiokafka(kafka), acks="all", request_timeout_ms=10_000)
    mend_client(producer.client, kafka, seen)
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
