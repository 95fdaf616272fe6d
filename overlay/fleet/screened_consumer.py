"""Faust's Kafka consumer for topics to which others may write.

Three things are different from Faust's own. Answers to fetches are screened before aiokafka decodes them
(screening.py). Committed records alone are read: the service writes events in transactions. And no record
is dropped: Faust leaves out those below the offset that it has read last. That is wrong for a topic that was
deleted and created anew, where its client begins at the start when its own position is beyond the end. It
is wrong as well after a rebalance: Faust goes back to the committed offset, because records that
waited for agents are gone, while a record that was on its way may still set the offset read last.

Names with an underscore are Faust's and aiokafka's; tests/fleet/test_screened_consumer.py checks what is
assumed about them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Any

from aiokafka.protocol.fetch import FetchRequest
from faust import App
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Transport
from faust.types import TP, Message
from mode.threads import WorkerThread

from overlay.logs import get_logger
from overlay.scan.codec import Arena

from .screening import make_arena, screen

log = get_logger(__name__)

OnRefused = Callable[[str, Counter[str]], None]
"""Is told the topic, and how many of its batches did not get through, by what is wrong with them."""


class ScreenedConsumer(Consumer):
    """The consumer of one application. `follow`, before it starts: which topics may be written by others."""

    topics: Collection[str] = ()
    on_refused: OnRefused
    told: dict[TP, int]
    """By partition, the offset behind the last batch that was told of."""

    def _new_consumer_thread(self) -> AIOKafkaConsumerThread:
        return _ScreenedThread(self, loop=self.loop, beacon=self.beacon)

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Message]]:  # noqa: ASYNC109 - as Faust's has it
        """Yield records and their partitions as Faust's consumer does."""
        async for tp, message in super().getmany(timeout):
            if tp.topic in self.topics and message.offset < (self._read_offset[tp] or 0):
                if message.offset < (self._committed_offset[tp] or 0):
                    self._begin_anew(tp)
                # as after a rebalance; without it Faust takes offsets without records for records that are not acked
                self._read_offset[tp] = self._committed_offset[tp]
            yield tp, message

    def _begin_anew(self, tp: TP) -> None:
        """Forget what was acked and committed of a partition: its topic was created anew, and counts from 0 again."""
        log.warning("the topic was created anew and is read from its start", topic=tp.topic, partition=tp.partition)
        for known in (self._committed_offset, self._gap, self._acked, self._acked_index, self.told):
            known.pop(tp, None)


class _Daemon(WorkerThread):
    """A thread that keeps no process alive: its client may wait for a Kafka that is away. Nothing waits for its end either:
    Faust would do so in the event loop, which the thread may need for its end.
    """

    def __init__(self, service: Any, **more: Any) -> None:
        super().__init__(service, **more)
        self.daemon = True

    def stop(self) -> None:
        """Do nothing: the service has been told to end."""


class _ScreenedThread(AIOKafkaConsumerThread):
    Worker = _Daemon

    def _create_worker_consumer(self, transport: Transport) -> Any:
        consumer = super()._create_worker_consumer(transport)
        # aiokafka takes it over when the consumer starts
        consumer._isolation_level = "read_committed"
        ours: Any = self.consumer
        send, arena = consumer._client.send, make_arena()

        def note(tp: TP, refused: Mapping[int, str]) -> None:
            # what is fetched once more is told once; counters belong to the application's own thread
            new = {offset: why for offset, why in refused.items() if offset >= ours.told[tp]}
            if new:
                ours.told[tp] = max(new) + 1
                self.app.loop.call_soon_threadsafe(ours.on_refused, tp.topic, Counter(new.values()))

        async def send_and_screen(node: int, request: Any, **options: Any) -> Any:
            response = await send(node, request, **options)
            if isinstance(request, FetchRequest):
                response.topics = [
                    (
                        topic,
                        [_screen_part(part, topic, arena, note) for part in parts] if topic in ours.topics else parts,
                    )
                    for topic, parts in response.topics
                ]
            return response

        consumer._client.send = send_and_screen
        return consumer


def _screen_part(
    part: tuple[Any, ...], topic: str, arena: Arena, note: Callable[[TP, Mapping[int, str]], None]
) -> tuple[Any, ...]:
    """Return a partition's part of a fetch response, whose last member has the record batches, with what may get through."""
    *head, data = part
    if not data:
        return part
    found = screen(bytes(data), arena)
    if found.refused:
        note(TP(topic, part[0]), found.refused)
    return (*head, found.data)


def screen_topics(app: App, topics: Collection[str], on_refused: OnRefused) -> None:
    """Have an application that has not started yet read committed records only, and of `topics` only what gets through."""
    transport = app.transport
    assert isinstance(transport, Transport), transport

    class OfApplication(ScreenedConsumer):
        """The class of the application's one consumer, which Faust makes."""

    OfApplication.topics = frozenset(topics)
    OfApplication.told = defaultdict(int)
    OfApplication.on_refused = staticmethod(on_refused)
    transport.Consumer = OfApplication  # type: ignore[misc] # for this transport alone
