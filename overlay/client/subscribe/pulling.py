"""`client.pull`: the messages of a pull consumer, fetched in batches or in a loop.

A pull consumer has no output topic. Its messages come as answers to requests (docs/control.md), and
its acks go to the ack topic as those of a subscription do.

The sender of acks has a thread. It lives as long as the PullConsumer or any of its messages, since
applications ack messages after they have let go of the consumer.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import TypeVar

from confluent_kafka import Message as KafkaRecord

from overlay.client.control.control import Control, PullFields
from overlay.client.control.inbox import NoAnswer
from overlay.client.read.question import BadQuestion
from overlay.client.turns import AsyncIteration, IterationGuard
from overlay.config.consumer import ConsumerConfig
from overlay.consumer.acks import Verb
from overlay.errors import OverlayError, SourceUnavailable
from overlay.jobs import run_apart
from overlay.kafka.header_names import CORRELATION, TOKEN
from overlay.kafka.message_headers import read_headers
from overlay.kafka.own_topics import acks_topic
from overlay.kafka.properties import Properties
from overlay.logs import get_logger

from .ack_answers import AckAnswers, AnswerWait
from .ack_sender import THREAD, AckSender, Closed
from .acking import Head
from .kind import FlowRequest
from .message import OURS, Acks, AsyncMessage, Delivered, Message

log = get_logger(__name__)

BATCH = 100
WAIT_S = 5.0
"""Seconds that one request of a loop waits for messages."""
LEAST_S = 0.01
"""Seconds below which what is left of a timeout is not worth another request."""
RETRY_S = 1.0
"""Seconds between two requests of a loop while the service or Kafka does not answer."""

M = TypeVar("M", bound=Delivered)


class PulledMessage(Message):
    """A message that was pulled."""

    __slots__ = ()
    _added = OURS | {CORRELATION}


class AsyncPulledMessage(AsyncMessage):
    """A message that was pulled, with the methods of Message as coroutines."""

    __slots__ = ()
    _added = OURS | {CORRELATION}


class _SharedAcks:
    """An AckSender that a PullConsumer and its messages hold together. It closes when none of them
    holds it any more, and at the interpreter's exit.
    """

    def __init__(self, sender: AckSender) -> None:
        self._sender = sender
        self.close = weakref.finalize(self, _close, sender)

    def ack(self, token: bytes) -> None:
        self._sender.ack(token)

    def tell(self, token: bytes, verb: Verb, text: str = "") -> None:
        self._sender.tell(token, verb, text)

    def ask(self, token: bytes) -> AnswerWait:
        return self._sender.ask(token)

    def answer_flow(self, flow: FlowRequest) -> None:
        """Queue nothing: pull consumers have no flow control."""


def _close(sender: AckSender) -> None:
    # the garbage collector may run in any thread, also in that of the sender, which cannot wait for itself
    if threading.current_thread().name == THREAD:
        run_apart(sender.close, "overlay-acks-end")
    else:
        sender.close()


class PullConsumer:
    """A pull consumer. Its messages are shared among all that pull from it.

    What was fetched waits for its ack from then on, so fetch no more than is handled within the
    consumer's ack_wait. Calls and loops may follow one another in different threads but may not
    overlap.

    `batch`: messages that a loop asks for at once. `idle`: seconds without a message after which a
    loop ends; None for a loop without an end. A loop ends at `close`. It raises as `fetch` does,
    but waits while the service or Kafka does not answer.
    """

    def __init__(
        self,
        kafka: Properties,
        prefix: str,
        config: ConsumerConfig,
        answers: AckAnswers,
        *,
        batch: int = BATCH,
        idle: float | None = None,
    ) -> None:
        stream, name = config.id
        if config.is_push:
            raise BadQuestion(
                f"consumer {stream}/{name} delivers to topic {config.deliver_subject}, so it cannot be pulled from. Take its"
                f" messages by client.subscribe({name!r})"
            )
        self._kafka, self._prefix, self._config, self._answers = kafka, prefix, config, answers
        self._batch, self._idle = batch, idle
        self._control = Control(kafka, prefix, is_patient=False)
        self._acks: _SharedAcks | None = None
        self._failures: list[OverlayError] = []
        self._waiting: list[KafkaRecord] = []
        # whether the last request found all messages that there were
        self._is_drained = False
        self._turn = IterationGuard(f"pull consumer {stream}/{name}", "open another one, which shares the messages")
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def fetch(self, count: int, timeout: float = WAIT_S) -> list[Message]:
        """Return up to `count` messages. Blocks until they have come, at most `timeout` seconds; then
        there may be fewer, or none. With a timeout of 0, return those that are there at once.

        Messages that a loop has fetched and not handed out come first. Raises NoAnswer if the
        service does not answer and no message has come (NoService if none runs), Refused or
        PullRefused if the consumer does not take the request, SourceUnavailable, CredentialsRefused,
        ConcurrentIteration, and Closed after `close`.
        """
        with self._turn:
            return [self._make(record, PulledMessage) for record in self._fetch(count, timeout)]

    async def fetch_async(self, count: int, timeout: float = WAIT_S) -> list[AsyncMessage]:  # noqa: ASYNC109 - as `fetch`
        """Return messages as `fetch` does, without blocking the caller's loop.

        If the caller is cancelled, messages that come all the same are delivered again after ack_wait.
        """
        with self._turn:
            records = await asyncio.to_thread(self._fetch, count, timeout)
            return [self._make(record, AsyncPulledMessage) for record in records]

    def __iter__(self) -> Iterator[Message]:
        return iter(self._take, None)

    def __aiter__(self) -> AsyncIterator[AsyncMessage]:
        return AsyncIteration(self._take_async)

    def close(self) -> None:
        """Send the queued acks and close the connections; blocks until that is done. Messages can no
        longer be settled then. May be called again.

        Without it, the same happens once this object and all its messages are garbage-collected.
        """
        self._is_closed = True
        self._control.close()
        if self._acks is not None:
            self._acks.close()

    def __enter__(self) -> PullConsumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> PullConsumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def _take(self) -> Message | None:
        """Return the next message of a loop; blocks until there is one. None at the end of the loop."""
        with self._turn:
            record = self._next_record()
            return None if record is None else self._make(record, PulledMessage)

    async def _take_async(self) -> AsyncMessage | None:
        with self._turn:
            record = self._waiting.pop(0) if self._waiting else await asyncio.to_thread(self._next_record)
            return None if record is None else self._make(record, AsyncPulledMessage)

    def _next_record(self) -> KafkaRecord | None:
        """Return the next record of a loop; blocks until there is one. None when none has come for
        `idle` seconds, or after `close`. While the service or Kafka does not answer, asks again.
        """
        until = None if self._idle is None else time.monotonic() + self._idle
        while not self._waiting:
            left = WAIT_S if until is None else min(WAIT_S, until - time.monotonic())
            if left <= 0 or self._is_closed:
                return None
            try:
                self._waiting = self._ask(left)
            except (NoAnswer, SourceUnavailable) as error:
                log.info("waiting for messages", consumer="/".join(self._config.id), reason=str(error))
                time.sleep(min(RETRY_S, left))  # no event tells that a service is there again
        return self._waiting.pop(0)

    def _ask(self, wait_s: float) -> list[KafkaRecord]:
        """Return the records of one request of a loop: those that are there, if the last request may
        have left some. Otherwise the next one that comes within `wait_s` seconds, [] if none does. A
        request for several would keep the first until all of them have come.
        """
        self._check()
        if not self._is_drained:
            most = min(self._batch, self._config.max_batch or self._batch)
            found = self._pull(most, 0.0)
            self._is_drained = len(found) < most
            return found
        found = self._pull(1, min(wait_s, self._config.max_expires / 1e9 or wait_s))
        self._is_drained = not found
        return found

    def _fetch(self, count: int, timeout: float) -> list[KafkaRecord]:
        """Return up to `count` records: those that a loop has left waiting here, then those that requests bring within
        `timeout` seconds; with 0, those that are there at once. Raises NoAnswer only if no record has come.
        """
        self._check()
        found, self._waiting = self._waiting[:count], self._waiting[count:]
        until = time.monotonic() + timeout
        while len(found) < count:
            left = until - time.monotonic()
            if timeout > 0 and left < LEAST_S:
                break
            most = min(count - len(found), self._config.max_batch or count)
            span = min(left, self._config.max_expires / 1e9 or left)
            try:
                came = self._pull(most, span)
            except NoAnswer:
                if not found:
                    raise
                break
            found += came
            if timeout <= 0 and len(came) < most:
                break
        return found

    def _check(self) -> None:
        """Raise Closed after `close`, or the first error with which acks could not be sent, if there was one."""
        if self._is_closed:
            raise Closed(f"pull consumer {'/'.join(self._config.id)} is closed")
        if self._failures:
            raise self._failures[0]

    def _pull(self, count: int, wait_s: float) -> list[KafkaRecord]:
        """Return up to `count` records of one pull request, as they come within `wait_s` seconds; if it is 0 or less, those
        that are there at once.
        """
        wait_s = max(wait_s, 0.0)
        more: PullFields = {} if wait_s else {"no_wait": True}
        return self._control.pull_records(*self._config.id, count, wait_s, more, quiet_s=wait_s)

    def _make(self, record: KafkaRecord, make: Callable[[KafkaRecord, bytes, Acks], M]) -> M:
        if self._acks is None:
            head, topic = Head(*self._config.id), acks_topic(self._prefix, self._config.stream)
            policy, failed = self._config.ack_policy, self._failures.append
            self._acks = _SharedAcks(AckSender(self._kafka, topic, head, policy, self._answers, failed))
        token = dict(read_headers(record))[TOKEN]
        assert token is not None
        return make(record, token, self._acks)
