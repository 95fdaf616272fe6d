"""OrderedConsumer (ADR-17): a stream's messages in order, without a name, without acks, and without
holes.

Each ordered consumer has an ephemeral consumer in the service, and a private topic for its
deliveries. order.py says whether a message is the next one. If messages are missing before it, if
heartbeats are missed, or if reading fails, the consumer is deleted. Another one is created, which
begins behind the last good message. This is retried while the service is away. Both consumers use
the same topic; the token tells which one a delivery belongs to.

The topic is deleted at the end. If the process dies before, the service ends the consumer by its
inactive_threshold and deletes the topic then.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import uuid
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from overlay.client.control.consumer_info import ConsumerInfo
from overlay.client.control.control import Control
from overlay.client.control.inbox import NoAnswer
from overlay.client.turns import AsyncIteration, IterationGuard
from overlay.config.consumer import AckPolicy
from overlay.errors import OverlayError, SourceUnavailable
from overlay.jobs import run_apart
from overlay.kafka.message_headers import read_headers
from overlay.kafka.own_topics import ORDERED, ordered_topic
from overlay.kafka.properties import Properties, for_confluent
from overlay.logs import get_logger

from .ack_answers import AckAnswers
from .ack_sender import Closed
from .acking import Head
from .intake import OnSilence, RecordIntake
from .kind import RecordClassifier
from .membership import HeartbeatsMissed
from .message import BadToken, Delivered
from .message_buffer import Batch
from .order import Order, OrderState, Verdict, begin_behind, complete
from .target import Target, aim

log = get_logger(__name__)

PREFETCH = 2_000
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
RETENTION_MS = 3_600_000
CLOSE_S = 10.0


class OrderedConsumer:
    """The messages of a stream in order. Iterate by `for` or `async for`, or pass a callback to
    `start`.

    Creating it creates a consumer in the service. Raises BadOrder for a config that ADR-17 forbids,
    and what `Control.add` raises. The iteration raises CredentialsRefused, ConcurrentIteration, and
    Refused if the service does not create the consumer once more. If the service is away, the
    iteration waits for it.
    """

    def __init__(
        self, kafka: Properties, control: Control, ack_topic: str, stream: str, config: Mapping[str, Any]
    ) -> None:
        self._config = complete(config)
        self._order = Order()
        self._holdings = _Holdings(kafka, control, ack_topic, stream)
        self._finalizer = weakref.finalize(self, self._holdings.leave)
        self._kept: Iterator[Delivered] = iter(())
        self._turn = IterationGuard(f"ordered consumer of {stream}", "open another one for a second loop")
        self._renewal: Future[None] | None = None
        self._open()

    @property
    def state(self) -> OrderState:
        return self._order.state

    @property
    def consumer(self) -> str:
        """The name of the ordered consumer's current consumer in the service; "" while there is none."""
        return self._holdings.name

    @property
    def is_closed(self) -> bool:
        return not self._finalizer.alive

    def __iter__(self) -> Iterator[Delivered]:
        return iter(self._find_next, None)

    def __aiter__(self) -> AsyncIterator[Delivered]:
        return AsyncIteration(self._find_next_async)

    def start(self, callback: Callable[[Delivered], object]) -> threading.Thread:
        """Call `callback` with each message, in a daemon thread of its own, until `close`. Return
        the thread, which is running.

        An error of the callback or of the iteration ends the thread and goes to
        threading.excepthook. It does not close the consumer.
        """
        thread = threading.Thread(target=self._call, args=(callback,), name="overlay-ordered", daemon=True)
        thread.start()
        return thread

    def _call(self, callback: Callable[[Delivered], object]) -> None:
        for message in self:
            callback(message)

    def close(self) -> None:
        """Delete the consumer and its topic, close the connections, and end the iteration. May be
        called again, and from another thread.
        """
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

    def _find_next(self) -> Delivered | None:
        """Return the next message, None after `close`. Blocks until there is one; creates another
        consumer if the order needs it. Raises ConcurrentIteration, and what `_renew` raises.
        """
        with self._turn:
            while not self.is_closed:
                if (message := next(self._kept, None)) is not None:
                    return message
                if (intake := self._find_intake()) is None:
                    self._begin_renewal().result()
                    continue
                with self._judging_ends():
                    if not self._keep(intake.message_buffer.take(), intake):
                        return None
            return next(self._kept, None)

    async def _find_next_async(self) -> Delivered | None:
        """Return the next message as `_find_next` does, without blocking the loop.

        Nothing waits in the loop's default threads. A few waiting consumers would occupy all of
        them, and then none of these consumers could be closed.
        """
        with self._turn:
            while not self.is_closed:
                if (message := next(self._kept, None)) is not None:
                    return message
                if (intake := self._find_intake()) is None:
                    await asyncio.wrap_future(self._begin_renewal())
                    continue
                with self._judging_ends():
                    if not self._keep(await intake.message_buffer.take_async(), intake):
                        return None
            return next(self._kept, None)

    def _find_intake(self) -> RecordIntake | None:
        """Return the intake of the current consumer's messages. None if another consumer has to be created first, or is
        being created.
        """
        is_renewed = self._renewal is None or self._renewal.done()
        return self._holdings.intake if is_renewed and self._order.is_open else None

    def _begin_renewal(self) -> Future[None]:
        """Begin to create the next consumer, in a thread of its own, and return the future of its end.
        If one is being created already, return the future of that.

        If the loop is left meanwhile, the next loop uses that consumer.
        """
        if self._renewal is None or self._renewal.done():
            self._renewal = run_apart(self._renew, "overlay-ordered-renewal")
        return self._renewal

    @contextmanager
    def _judging_ends(self) -> Iterator[None]:
        """Suppress HeartbeatsMissed and SourceUnavailable, which end a message buffer, and record
        that another consumer is needed. Other errors pass.
        """
        try:
            yield
        except HeartbeatsMissed:
            self._order.silent()
        except SourceUnavailable as error:
            log.warning("an ordered consumer begins anew", stream=self._holdings.stream, reason=str(error))
            self._order.gone()

    def _keep(self, batch: Batch | None, intake: RecordIntake) -> bool:
        """Put the good messages of a batch into `_kept`, in place of what it has; they are selected as
        they are taken from there. Return False, and do nothing, if `batch` is None, which means the
        end.
        """
        if batch is not None:
            self._kept = self._select(batch, intake)
        return batch is not None

    def _select(self, batch: Batch, intake: RecordIntake) -> Iterator[Delivered]:
        """Yield the good messages of a batch: those that the order takes. Ends with the batch, or where
        another consumer is needed. Answers flow control requests on the way.
        """
        kind = RecordClassifier(Head(self._holdings.stream, self._holdings.name))
        while (record := batch.pop()) is not None:
            headers = read_headers(record)
            if (token := kind.find_token(headers)) is not None:
                message = Delivered(record, token, intake.acks)
                verdict = self._judge(message)
                if verdict is Verdict.TAKE:
                    yield message
            elif flow := kind.find_flow(headers):
                with suppress(Closed):  # the buffer then ends, with the error that is the reason
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
        """Delete the current consumer and create the next one. While the service or Kafka does not
        answer, try again, until the ordered consumer is closed. Raises other errors of `Control.add`.
        """
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
    """What an ordered consumer has in Kafka and in the service: its current consumer there, the
    threads that read its output, and its topic.
    """

    def __init__(self, kafka: Properties, control: Control, ack_topic: str, stream: str) -> None:
        self.stream, self.name = stream, ""
        self.intake: RecordIntake | None = None
        self.closing = threading.Event()
        self._kafka, self._control, self._ack_topic = kafka, control, ack_topic
        self._base, self._numbers = f"{ORDERED}{uuid.uuid4().hex[:12]}", itertools.count(1)
        self._topic = ordered_topic(control.prefix, self._base)
        self._answers = AckAnswers(kafka, "")
        # only one thread at a time creates or deletes a consumer
        self._lock = threading.Lock()

    def make(self, config: Mapping[str, Any]) -> None:
        """Create a consumer of this config in the service, and begin to read its output; do nothing
        after `leave`. Raises what `Control.add` raises.

        It is created within the lock. So `leave` either comes first, and nothing is created, or
        finds what there is to delete. A request without an answer may be carried out later. So the
        next try uses the same name, and then finds the consumer.
        """
        output = {"config": {"retention.ms": RETENTION_MS}, "temporary": True}
        with self._lock:
            if self.closing.is_set():
                return
            self.name = self.name or f"{self._base}-{next(self._numbers)}"
            fields = {**config, "name": self.name, "deliver_subject": self._topic, "output": output}
            target = _aim(self._control.add(self.stream, fields))
            if self.closing.is_set():
                return
            self.intake = RecordIntake(
                self._kafka,
                target,
                self._ack_topic,
                self._answers,
                prefetch=PREFETCH,
                on_silence=OnSilence.RAISE,
                is_alone=True,
            )

    def drop(self) -> None:
        """Stop reading and delete the consumer in the service, if there is one.

        If the service does not delete it now, no error is raised: the consumer ends by its
        inactive_threshold.
        """
        with self._lock:
            name, self.name = self.name, ""
            intake, self.intake = self.intake, None
            if intake is not None:
                intake.close()
            if name:
                with suppress(OverlayError):
                    self._control.delete(self.stream, name)

    def leave(self) -> None:
        """Delete the consumer and its topic, and close all connections; `make` then does nothing
        any more. If the topic cannot be deleted, that is only logged.
        """
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
    """Return whether an error of Kafka says that a topic does not exist."""
    return isinstance(error, KafkaException) and error.args[0].code() == RdKafkaError.UNKNOWN_TOPIC_OR_PART


def _aim(info: ConsumerInfo) -> Target:
    target = aim(info.config)
    assert target.policy is AckPolicy.NONE
    return target
