"""The driver's journal: the plans of a job's batches, in partition 0 of its state topic.

The journal is opened under the job's transactional id, and every plan is a transaction. So a driver
that was fenced cannot write a plan before it has opened the journal again, which it cannot once another
driver has written one. Without a plan no task begins to write.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from aiokafka.client import AIOKafkaClient

from overlay.clock import now_ms
from overlay.errors import CredentialsRefused, Fenced, OverlayError
from overlay.kafka.admin import Admin
from overlay.kafka.connection import open_client
from overlay.kafka.log_position import TopicPartition
from overlay.kafka.own_topics import job_id, job_topic
from overlay.kafka.properties import Properties
from overlay.logs import get_logger
from overlay.output.entry import Entry, press_entries
from overlay.output.record import Record
from overlay.output.transaction import Transactions
from overlay.state.job_log import ensure_state_log, forget_old, grow_state_log, read_last
from overlay.state.job_plan import BatchPlan
from overlay.state.job_plan_codec import decode_plan, encode_plan

log = get_logger(__name__)

T = TypeVar("T")

FORGET_EVERY = 250
"""After so many batches the driver deletes what does not count any more: a batch takes four offsets of its partition."""


class JobTaken(OverlayError):
    """Another driver runs this job now. The operator stops one of the two."""


class LoopThread:
    """An event loop in a thread of its own, for a client that stays open while the driver's thread does other things."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """End the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Journal:
    """The journal of one job, held by one driver. `last`: the last plan, None for a new job."""

    def __init__(self, kafka: Properties, prefix: str, job: str, replication: int) -> None:
        self._kafka, self._prefix, self._job, self._replication = kafka, prefix, job, replication
        self.topic = job_topic(prefix, job)
        self.last: BatchPlan | None = None
        self._batches = 0
        """How many batches have ended since the driver has begun."""
        self._may_forget = True
        self._thread = LoopThread("journal")
        self._admin: Admin
        self._client: AIOKafkaClient
        self._transactions: Transactions | None = None

    def __enter__(self) -> Journal:
        try:
            self._thread.run(self._open())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _open(self) -> None:
        self._admin = Admin(self._kafka)
        self._client = await open_client(self._kafka)
        await ensure_state_log(self._admin, self.topic, self._replication)
        await self._start()

    async def _start(self) -> None:
        """Fence every other driver, and read the last plan."""
        self._transactions = Transactions(self._kafka, job_id(self._prefix, self._job), self.topic, 0)
        await self._transactions.start([self.topic])
        await self._transactions.end_lost([(self.topic, 0)])
        found = await read_last(self._client, self._admin, self.topic, 0)
        self.last = None if found is None else decode_plan(found)

    def write(self, plan: BatchPlan) -> None:
        """Write a plan. Raises JobTaken if this driver was fenced, by another driver or by an owner that takes a
        consumer over, and SourceUnavailable or DeliveryFailed.
        """
        assert self._transactions is not None
        record = Entry(self.topic, Record(None, encode_plan(plan)), 0)
        try:
            self._thread.run(self._transactions.write(press_entries([record], now_ms())))
        except Fenced as error:
            raise JobTaken(
                f"job {self._job!r} is run by another driver now, which has begun since. Stop one of the two; jobs on one"
                " stream beside each other need names of their own (--job)"
            ) from error
        self.last = plan

    def reopen(self) -> None:
        """Become the writer of plans again. Raises JobTaken if the last plan is not the one that this driver knows:
        another driver has written one since. Also raises OverlayError if Kafka does not allow it.

        For a driver that was fenced by an owner who took over one of its consumers.
        """
        assert self._transactions is not None
        before = self.last
        self._thread.run(self._transactions.close())
        self._thread.run(self._start())
        if self.last != before:
            raise JobTaken(
                f"job {self._job!r} is run by another driver now, which has written a plan since. Stop one of the two"
            )

    def assign_writers(self, outputs: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the partition of the state topic of each output partition that the job has ever written, and of
        `outputs`. Adds partitions to the state topic if it has too few.
        """
        known: dict[TopicPartition, int] = dict(self.last.writers) if self.last is not None else {}
        for output in sorted(outputs):
            known.setdefault(output, len(known) + 1)
        self._thread.run(grow_state_log(self._admin, self.topic, len(known) + 1))
        return known

    def forget_old(self) -> None:
        """Delete the plans and commits that do not count any more, after the first batch of this driver and then after each
        FORGET_EVERY. Call it when a batch has ended. If Kafka refuses, log that: the topic only grows; if a right is missing,
        this driver does not try it again.
        """
        self._batches += 1
        if self._batches % FORGET_EVERY != 1 or not self._may_forget:
            return
        try:
            self._thread.run(forget_old(self._client, self._admin, self.topic))
        except OverlayError as error:
            self._may_forget = not isinstance(error, CredentialsRefused)
            log.warning("old plans and commits of a job are kept", job=self._job, topic=self.topic, reason=str(error))

    def close(self) -> None:
        """Close the connections. The job's state stays."""
        self._thread.run(self._close())
        self._thread.close()

    async def _close(self) -> None:
        if self._transactions is not None:
            await self._transactions.close()
        if hasattr(self, "_client"):
            await self._client.close()
        if hasattr(self, "_admin"):
            await self._admin.close()
