"""Writes the statuses of a worker to `<prefix>.fleet`, beside the data plane and never in its way.

A status is written every EVERY_MS, and at once when the worker's shards have changed (timetable.py).
The writer is a producer of its own, without transactions. It holds the records of one status and no
more: what cannot be written is dropped and counted, and the next status tells the state of then. A
failure is logged unless the one before had the same reason. If it does not pass by itself, the next
try is later. Nothing is raised.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from overlay.clock import monotonic
from overlay.credentials import stamp
from overlay.errors import OverlayError, SourceUnavailable
from overlay.kafka.admin import Admin, new_topic
from overlay.kafka.connection import BOOTSTRAP_S, for_aiokafka, mend_client
from overlay.kafka.own_topics import FLEET_CONFIG, fleet_topic
from overlay.kafka.properties import Properties
from overlay.logs import get_logger
from overlay.metrics import Metrics
from overlay.waits import finish_within, is_set_within

from .status import EVERY_MS, MOST_BYTES
from .timetable import Scope, Timetable

log = get_logger(__name__)

WRITE_S = 4.0
"""Seconds that writing one status may take."""
STOP_S = 1.0
"""The same for the last one, which a worker that was told to stop waits for."""
AVOID_S = 60.0
"""Pause in seconds after a failure that does not pass by itself: the topic is not allowed, for example."""

LOOK_S = 0.1
"""Seconds between two looks for a change that is told at once."""

Collect = Callable[[Scope, bool], Awaitable[Sequence[bytes]]]
"""(scope, was lost): returns the records of a status, given what it has to tell, and whether the one before could not be
written."""
Mark = Callable[[], Hashable]
"""Returns something that is equal to what it returned before, unless something has changed that is to be told at once."""


async def ensure_topic(admin: Admin, topic: str, config: Mapping[str, str], replication: int) -> None:
    """Create a topic of one partition if it is missing. One that exists stays as it is, also if it has other
    settings. Raises OverlayError with Kafka's reason if this user may not describe it or Kafka refuses to create it,
    SourceUnavailable.
    """
    denied: dict[str, str] = {}
    if topic not in await admin.find_topics([topic], with_config=False, denied=denied) and not denied:
        _, denied = await admin.create_topics([new_topic(topic, 1, replication, config)])
    if denied:
        raise OverlayError(denied[topic])


@dataclass(slots=True)
class Publisher:
    """A writer of a worker's statuses: `run` writes the records that `collect` returns to `<prefix>.fleet`, every EVERY_MS,
    and soon after `mark` returns something else. `worker`: the name of the worker, the key of its records.
    """

    kafka: Properties
    admin: Admin
    prefix: str
    replication: int
    worker: str
    metrics: Metrics
    collect: Collect
    mark: Mark
    _timetable: Timetable = field(default_factory=Timetable)
    _producer: AIOKafkaProducer | None = None
    _trouble: str = ""
    """Why the last status was not written, as it was logged."""
    _is_lost: bool = False
    """Whether the last status was not written."""

    async def run(self, stop: asyncio.Event) -> None:
        """Write a status now, every EVERY_MS and soon after a change, or AVOID_S after a failure that does not pass by
        itself, until `stop`, and then the last one. Raises nothing but CancelledError.
        """
        try:
            while True:
                is_last = await self._rest(stop)
                scope = self._timetable.begin(self._look(), monotonic())
                pause = await self._publish(Scope.LAST if is_last else scope)
                self._timetable.settle(pause, monotonic(), is_written=not self._is_lost)
                if is_last:
                    return
        finally:
            await self._close()

    async def _rest(self, stop: asyncio.Event) -> bool:
        """Wait until the next status is due, or until `stop`. Return whether `stop` is set."""
        while (pause := self._timetable.find_pause(self._look(), monotonic())) > 0:
            if await is_set_within(stop, min(pause, LOOK_S)):
                return True
        return stop.is_set()

    def _look(self) -> Hashable:
        """Return what `mark` returns; None if it fails, which is logged."""
        try:
            return self.mark()
        except Exception as error:  # noqa: BLE001 - whatever it is, the data plane goes on
            log.warning("no change is told to the fleet at once", reason=str(error) or type(error).__name__)
            return None

    async def _publish(self, scope: Scope) -> float:
        """Write one status. Return how many seconds to wait before the next one. Raises nothing but CancelledError: a
        failure is counted, and logged if its reason is another than that of the failure before; the producer is
        closed then.
        """
        try:
            values = await self.collect(scope, self._is_lost)
            async with asyncio.timeout(STOP_S if scope is Scope.LAST else WRITE_S):
                await self._write(values)
        except Exception as error:  # noqa: BLE001 - whatever it is, the data plane goes on
            reason = str(error) or type(error).__name__
            self._is_lost = True
            self.metrics.fleet_statuses.labels("failed").inc()
            if reason != self._trouble:
                self._trouble = reason
                log.warning("no status for the fleet is written", topic=fleet_topic(self.prefix), reason=reason)
            await self._close()
            return EVERY_MS / 1000 if _may_pass(error) else AVOID_S
        self._trouble, self._is_lost = "", False
        self.metrics.fleet_statuses.labels("written").inc()
        return EVERY_MS / 1000

    async def _write(self, values: Sequence[bytes]) -> None:
        """Write records one after the other, and wait for each. The first call, and one after `_close`, creates the topic
        if it is missing and starts a producer. Raises OverlayError, KafkaError, OSError, TimeoutError.
        """
        if self._producer is None:
            await ensure_topic(self.admin, fleet_topic(self.prefix), FLEET_CONFIG, self.replication)
            seen = stamp(self.kafka)
            producer = AIOKafkaProducer(**for_aiokafka(self.kafka), acks=1, request_timeout_ms=int(WRITE_S * 1000))
            mend_client(producer.client, self.kafka, seen)
            self._producer = producer
            await finish_within(producer.start(), BOOTSTRAP_S)
        for value in values:
            if len(value) > MOST_BYTES:
                raise OverlayError(
                    f"a status of {len(value):,} bytes is larger than {MOST_BYTES:,}. Report this as a bug"
                )
            await self._producer.send_and_wait(fleet_topic(self.prefix), value, self.worker.encode(), partition=0)

    async def _close(self) -> None:
        """Close the producer and drop what it holds. Takes STOP_S seconds at most, and raises no error of Kafka."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(KafkaError, OSError, TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await producer.stop()


def _may_pass(error: Exception) -> bool:
    """Return whether a failure may pass by itself, when Kafka answers again, so that no long pause is needed."""
    return isinstance(error, SourceUnavailable | TimeoutError | OSError) or bool(getattr(error, "retriable", False))
