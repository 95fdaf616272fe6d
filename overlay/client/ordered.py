"""OrderedConsumer (ADR-17): a stream's messages in order, without a name, without acks, and with no hole ever.

Each ordered consumer has an ephemeral consumer of its own in the service, and a private topic that its deliveries come on.
order.py says whether what comes is the next message; when it is not, or when heartbeats are missed, the consumer is deleted
and another one made that begins behind the last good message. It goes on trying while the service is away. Both have the
same topic; what the former one left there is told by its token.

The topic is deleted in the end. Where the process dies without having done so, the service ends the consumer by its
inactive_threshold, and deletes the topic then.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import uuid
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from overlay.config.consumer import AckPolicy
from overlay.connection import Properties, for_confluent
from overlay.errors import OverlayError, SourceUnavailable
from overlay.logs import get_logger

from .acking import Head
from .answers import Answers
from .control import ConsumerInfo, Control
from .headers import read_headers
from .inbox import NoAnswer
from .intake import Intake, OnSilence
from .kind import Kind
from .membership import HeartbeatsMissed
from .message import BadToken, Delivered
from .order import Order, OrderState, Verdict, begin_behind, complete
from .shelf import Batch
from .target import Target, aim

log = get_logger(__name__)

PREFETCH = 2_000
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
RETENTION_MS = 3_600_000
CLOSE_S = 10.0


class OrderedConsumer:
    """Messages of a stream in order; iterate by `for` or `async for`, or hand them to a callback by `start`.

    Raises BadOrder for a config that ADR-17 forbids, and whatever `Control.add` raises, when it is made. Out of the iteration:
    CredentialsRefused. A service that is away is waited for.
    """

    def __init__(
        self, kafka: Properties, control: Control, ack_topic: str, stream: str, config: Mapping[str, Any]
    ) -> None:
        self._config = complete(config)
        self._order = Order()
        self._holdings = _Holdings(kafka, control, ack_topic, stream)
        self._finalizer = weakref.finalize(self, self._holdings.leave)
        self._kept: Iterator[Delivered] = iter(())
        self._open()

    @property
    def state(self) -> OrderState:
        return self._order.state

    @property
    def consumer(self) -> str:
        """The name of the consumer that it has now."""
        return self._holdings.name

    @property
    def is_closed(self) -> bool:
        return not self._finalizer.alive

    def __iter__(self) -> Iterator[Delivered]:
        while True:
            if (message := next(self._kept, None)) is not None:
                yield message
            elif (kept := self._take()) is not None:
                self._kept = kept
            else:
                return

    async def __aiter__(self) -> AsyncIterator[Delivered]:
        while True:
            if (message := next(self._kept, None)) is not None:
                yield message
            elif (kept := await asyncio.to_thread(self._take)) is not None:
                self._kept = kept
            else:
                return

    def start(self, callback: Callable[[Delivered], object]) -> threading.Thread:
        """Call back with each message in a thread of its own, until `close`. An error of the callback ends it."""
        thread = threading.Thread(target=self._call, args=(callback,), name="overlay-ordered", daemon=True)
        thread.start()
        return thread

    def _call(self, callback: Callable[[Delivered], object]) -> None:
        for message in self:
            callback(message)

    def close(self) -> None:
        """Delete the consumer and its topic. May be called again, and from another thread."""
        self._finalizer()

    def __enter__(self) -> OrderedConsumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> OrderedConsumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def _take(self) -> Iterator[Delivered] | None:
        """The good messages of the next batch, to be sorted out as they are taken; None at the end."""
        while not self.is_closed:
            if not self._order.is_open:
                self._renew()
                continue
            intake = self._holdings.intake
            assert intake is not None
            try:
                batch = intake.shelf.take()
            except HeartbeatsMissed:
                self._order.silent()
            except SourceUnavailable as error:
                log.warning("an ordered consumer begins anew", stream=self._holdings.stream, reason=str(error))
                self._order.gone()
            else:
                return None if batch is None else self._sort(batch, intake)
        return None

    def _sort(self, batch: Batch, intake: Intake) -> Iterator[Delivered]:
        kind = Kind(Head(self._holdings.stream, self._holdings.name))
        while (record := batch.pop()) is not None:
            headers = read_headers(record)
            if (token := kind.find_token(headers)) is not None:
                message = Delivered(record, token, intake.acks)
                verdict = self._judge(message)
                if verdict is Verdict.TAKE:
                    yield message
            elif flow := kind.find_flow(headers):
                intake.acks.answer_flow(flow)
                continue
            elif (beat := kind.read_beat(headers)) is not None:
                verdict = self._order.beat(*beat)
            else:
                continue
            if verdict is Verdict.RENEW:
                return

    def _judge(self, message: Delivered) -> Verdict:
        try:
            metadata = message.metadata
        except BadToken:
            return Verdict.DROP
        return self._order.came(metadata.sequence, metadata.consumer_sequence)

    def _renew(self) -> None:
        """Make the next consumer, and try for as long as it takes."""
        state = self._order.state
        log.info(
            "an ordered consumer begins anew", stream=self._holdings.stream, why=state.reason, behind=state.stream_seq
        )
        self._holdings.drop()
        for attempt in itertools.count():
            try:
                return self._open()
            except (NoAnswer, SourceUnavailable) as error:
                wait = min(FIRST_WAIT_S * 2**attempt, LONGEST_WAIT_S)
                log.info("an ordered consumer waits", stream=self._holdings.stream, reason=str(error))
                if self._holdings.closing.wait(wait):
                    return None

    def _open(self) -> None:
        self._holdings.make(begin_behind(self._config, self._order.begin))
        self._order.opened()


class _Holdings:
    """What there is of an ordered consumer in Kafka and in the service, and how it goes."""

    def __init__(self, kafka: Properties, control: Control, ack_topic: str, stream: str) -> None:
        self.stream, self.name = stream, ""
        self.intake: Intake | None = None
        self.closing = threading.Event()
        self._kafka, self._control, self._ack_topic = kafka, control, ack_topic
        self._base, self._numbers = f"ordered-{uuid.uuid4().hex[:12]}", itertools.count(1)
        self._topic = f"{control.prefix}-{self._base}"
        self._answers = Answers(kafka, "")
        self._lock = threading.Lock()

    def make(self, config: Mapping[str, Any]) -> None:
        name = f"{self._base}-{next(self._numbers)}"
        output = {"config": {"retention.ms": RETENTION_MS}, "temporary": True}
        fields = {**config, "name": name, "deliver_subject": self._topic, "output": output}
        # whoever leaves meanwhile deletes it: the control answers one after the other
        self.name = name
        info = self._control.add(self.stream, fields)
        with self._lock:
            if self.closing.is_set():
                return
            self.intake = Intake(
                self._kafka,
                _aim(info),
                self._ack_topic,
                self._answers,
                prefetch=PREFETCH,
                on_silence=OnSilence.RAISE,
                is_alone=True,
            )

    def drop(self) -> None:
        """Give up the consumer, if there is one. One that cannot be deleted now ends by itself."""
        with self._lock:
            name, self.name = self.name, ""
            intake = self.intake
        if intake is not None:
            intake.close()
        if name:
            with suppress(OverlayError):
                self._control.delete(self.stream, name)

    def leave(self) -> None:
        self.closing.set()
        self.drop()
        self._control.close()
        client = AdminClient({**for_confluent(self._kafka), "log_level": "0"})
        try:
            client.delete_topics([self._topic], request_timeout=CLOSE_S)[self._topic].result(CLOSE_S)
        except (KafkaException, TimeoutError) as error:
            if not _is_unknown(error):
                log.warning("the topic of an ordered consumer is left", topic=self._topic, reason=str(error))


def _is_unknown(error: Exception) -> bool:
    """Whether there is no such topic: the service has not come to make it."""
    return isinstance(error, KafkaException) and error.args[0].code() == RdKafkaError.UNKNOWN_TOPIC_OR_PART


def _aim(info: ConsumerInfo) -> Target:
    target = aim(info.config)
    assert target.policy is AckPolicy.NONE
    return target
