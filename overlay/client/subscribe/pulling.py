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
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from itertools import islice
from types import TracebackType
from typing import TypeVar

from confluent_kafka import Message as KafkaRecord

from overlay.client.arguments import BadQuestion, check_count, check_wait, named
from overlay.client.control.answers import PullFields
from overlay.client.control.control import Control
from overlay.client.control.inbox import NoAnswer
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

    `batch`: most messages that a loop asks for at once. `idle`: seconds without a message after
    which a loop ends; None for a loop without an end. A loop ends at `close`. It raises as `fetch`
    does, but waits while the service or Kafka does not answer.
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
        # received and not handed out; a call takes them from the left, one request at a time appends
        self._waiting: deque[KafkaRecord] = deque()
        # an error that came after messages: raised once they are handed out
        self._late: OverlayError | None = None
        # the work of a cancelled call, which ends soon
        self._former: Future[None] | None = None
        # whether the last request found all messages that there were
        self._is_drained = False
        self._turn = IterationGuard(f"pull consumer {stream}/{name}", "open another one, which shares the messages")
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @named()
    def fetch(self, count: int, timeout: float = WAIT_S) -> list[Message]:
        """Return up to `count` messages. Blocks until they have come, at most `timeout` seconds; then
        there may be fewer, or none. With a timeout of 0, return those that are there at once. None come
        while the consumer is paused, without an error: `Control.info` tells that (`paused`).

        Messages that an earlier call has received and not handed out come first. If an error ends the
        call after some messages have come, it returns these, and the next call raises the error.
        NoAnswer and SourceUnavailable are not raised then: the next call asks again. An interrupted
        call, as by KeyboardInterrupt, leaves what it has received to the next one.

        Raises NoAnswer if the service does not answer and no message has come (NoService if none
        runs), Refused or PullRefused if the consumer does not take the request, SourceUnavailable,
        CredentialsRefused, ConcurrentIteration, Closed after `close`, and BadQuestion if `count` is
        negative or `timeout` is not a number.
        """
        count, timeout = check_count("count", count, 0), check_wait("timeout", timeout)
        with self._turn:
            self._end_former()
            self._fetch(count, timeout, threading.Event())
            return self._hand_out(count, PulledMessage)

    @named()
    async def fetch_async(self, count: int, timeout: float = WAIT_S) -> list[AsyncMessage]:  # noqa: ASYNC109 - as `fetch`
        """Return messages as `fetch` does, without blocking the caller's loop.

        If the caller is cancelled, the call stops asking, and what it has received by then comes first
        in the next call. Messages that the service still sends for its request are delivered again
        after ack_wait.
        """
        count, timeout = check_count("count", count, 0), check_wait("timeout", timeout)
        with self._turn:
            await self._run_apart(lambda stop: self._fetch(count, timeout, stop))
            return self._hand_out(count, AsyncPulledMessage)

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
        """Return the next message of a loop; blocks until there is one. None at the end of the loop. Raises
        the first error with which acks could not be sent, if there was one, even if messages are waiting.
        """
        with self._turn:
            self._check_acks()
            if not self._waiting:
                self._end_former()
                self._await_next(threading.Event())
            return next(iter(self._hand_out(1, PulledMessage)), None)

    async def _take_async(self) -> AsyncMessage | None:
        """Return the next message as `_take` does, without blocking the caller's event loop."""
        with self._turn:
            self._check_acks()
            if not self._waiting:
                await self._run_apart(self._await_next)
            return next(iter(self._hand_out(1, AsyncPulledMessage)), None)

    async def _run_apart(self, work: Callable[[threading.Event], None]) -> None:
        """Run `work` in a thread of its own and await its end. If the caller is cancelled, set the event
        given to `work`, and do not wait. Raises what `work` raises.

        The work of a cancelled call ends before that of the next one begins. So only one thread at a
        time asks for messages, and each call gets what it has asked for.
        """
        if self._former is not None:
            with suppress(Exception):  # of the call that was cancelled
                await asyncio.wrap_future(self._former)
        stop = threading.Event()
        self._former = job = run_apart(lambda: work(stop), "overlay-pull")
        try:
            await asyncio.wrap_future(job)
        finally:
            stop.set()
            if job.done():
                self._former = None

    def _end_former(self) -> None:
        """Wait until the work of a cancelled call has ended; it was told to. As `_run_apart` does."""
        if self._former is not None:
            self._former.exception()
            self._former = None

    def _await_next(self, stop: threading.Event) -> None:
        """Wait until there is a record for a loop. Return without one when none has come for `idle`
        seconds, after `close`, and when `stop` is set. While the service or Kafka does not answer, ask
        again. Raises the first error with which acks could not be sent: it does not pass, even if it is a
        SourceUnavailable.
        """
        until = None if self._idle is None else time.monotonic() + self._idle
        while not self._waiting and not stop.is_set():
            self._check_acks()
            left = WAIT_S if until is None else min(WAIT_S, until - time.monotonic())
            if left <= 0 or self._is_closed:
                return
            try:
                self._ask(left, stop)
            except (NoAnswer, SourceUnavailable) as error:
                log.info("waiting for messages", consumer="/".join(self._config.id), reason=str(error))
                stop.wait(min(RETRY_S, left))  # no event tells that a service is there again

    def _ask(self, wait_s: float, stop: threading.Event) -> None:
        """Make one request of a loop: for the messages that are there, if the last request may have left
        some. Otherwise for the next one that comes within `wait_s` seconds. A request for several would
        keep the first until all of them have come.
        """
        self._check()
        if not self._is_drained:
            most = min(self._batch, self._config.max_batch or self._batch)
            came = self._pull(most, 0.0, stop)
            self._is_drained = came is not None and came < most
            return
        came = self._pull(1, min(wait_s, self._config.max_expires / 1e9 or wait_s), stop)
        self._is_drained = came == 0

    def _fetch(self, count: int, timeout: float, stop: threading.Event) -> None:
        """Make requests until `count` records are waiting, `timeout` seconds have passed, `stop` is
        set, or an error comes behind waiting records. With a timeout of 0, ask for those that are
        there at once.
        """
        self._check()
        until = time.monotonic() + timeout
        while len(self._waiting) < count and self._late is None and not stop.is_set():
            left = until - time.monotonic()
            if timeout > 0 and left < LEAST_S:
                return
            most = min(count - len(self._waiting), self._config.max_batch or count)
            span = min(left, self._config.max_expires / 1e9 or left)
            came = self._pull(most, span, stop)
            if came is None or (timeout <= 0 and came < most):
                return

    def _check(self) -> None:
        """Raise Closed after `close`, or the first error with which acks could not be sent, if there was
        one. If no records are waiting, raise the error that was kept back until then.
        """
        if self._is_closed:
            raise Closed(f"pull consumer {'/'.join(self._config.id)} is closed")
        self._check_acks()
        if self._late is not None and not self._waiting:
            error, self._late = self._late, None
            raise error

    def _check_acks(self) -> None:
        """Raise the first error with which acks could not be sent, if there was one."""
        if self._failures:
            raise self._failures[0]

    def _pull(self, count: int, wait_s: float, stop: threading.Event) -> int | None:
        """Make one pull request for up to `count` records, which are put into `_waiting` as they come
        within `wait_s` seconds; if it is 0 or less, those that are there at once. Return how many came.

        If an error ends the request while no records are waiting, it is raised; otherwise return None: they come
        first. `_check` raises the error later, unless it is one that may have passed by then. `stop`: ends the
        request soon when it is set.
        """
        before, wait_s = len(self._waiting), max(wait_s, 0.0)
        more: PullFields = {} if wait_s else {"no_wait": True}
        take = self._waiting.append
        try:
            self._control.pull_records(*self._config.id, count, wait_s, more, take, quiet_s=wait_s, stop=stop)
        except OverlayError as error:
            if not self._waiting:
                raise
            if not isinstance(error, NoAnswer | SourceUnavailable):
                self._late = error
            return None
        return len(self._waiting) - before

    def _hand_out(self, count: int, make: Callable[[KafkaRecord, bytes, Acks], M]) -> list[M]:
        """Take up to `count` messages out of `_waiting` and return them."""
        found = [self._make(record, make) for record in islice(self._waiting, count)]
        for _ in found:
            self._waiting.popleft()
        return found

    def _make(self, record: KafkaRecord, make: Callable[[KafkaRecord, bytes, Acks], M]) -> M:
        if self._acks is None:
            head, topic = Head(*self._config.id), acks_topic(self._prefix, self._config.stream)
            policy, failed = self._config.ack_policy, self._failures.append
            self._acks = _SharedAcks(AckSender(self._kafka, topic, head, policy, self._answers, failed))
        token = dict(read_headers(record))[TOKEN]
        assert token is not None
        return make(record, token, self._acks)
