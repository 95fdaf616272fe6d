"""Answers to acks.

A double ack is complete when the service has committed it and answers (docs/jetstream.md#acks).

An ack that wants an answer names a topic and a correlation id. All clients of an overlay share the
reply topic. Each client reads it from the end that it had when the client began to listen, and
finds its own answers by their key. One connection serves all subscriptions of a client. It is
opened by the first double ack, because most applications never send one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import uuid
import weakref
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from types import TracebackType

from confluent_kafka import Consumer
from confluent_kafka import Message as KafkaRecord

from overlay.client.control.replies import open_replies
from overlay.errors import OverlayError, SourceUnavailable
from overlay.kafka.confluent import Contact
from overlay.kafka.header_names import CORRELATION, REPLY_TOPIC
from overlay.kafka.properties import Properties
from overlay.logs import get_logger
from overlay.output.record import Headers

log = get_logger(__name__)

POLL_S = 0.1
RETRY_S = 1.0
BATCH = 1_000


class AckTimeout(OverlayError, TimeoutError):
    """No answer to an ack came in time.

    The ack may have been processed all the same; acking again does no harm.
    """


class AnswerWait:
    """A registration for the answer to one ack. Put `headers` into the ack's record, and call `wait` or
    `wait_async` once, in a `with` block: its end removes the registration, so that a later answer is
    ignored.
    """

    def __init__(self, answers: AckAnswers, correlation: bytes, future: Future[None]) -> None:
        self._answers, self._correlation, self._future = answers, correlation, future

    @property
    def headers(self) -> Headers:
        """The headers that the ack's record needs: they name the reply topic and the correlation id of the answer."""
        return [(REPLY_TOPIC, self._answers.topic.encode()), (CORRELATION, self._correlation)]

    def wait(self, timeout: float) -> None:
        """Block until the answer has come.

        Raises AckTimeout after `timeout` seconds, SourceUnavailable if the AckAnswers is closed
        meanwhile.
        """
        try:
            self._future.result(timeout)
        except FutureTimeout as error:
            raise _tell(timeout) from error

    async def wait_async(self, timeout: float) -> None:  # noqa: ASYNC109 - it has an error of its own
        """Wait for the answer without blocking the caller's loop. Raises as `wait`."""
        try:
            async with asyncio.timeout(timeout):
                await asyncio.wrap_future(self._future)
        except TimeoutError as error:
            raise _tell(timeout) from error

    def __enter__(self) -> AnswerWait:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.forget()

    def forget(self) -> None:
        """Remove the registration, so that a later answer is ignored."""
        self._answers.forget(self._correlation)


def _tell(timeout: float) -> AckTimeout:
    return AckTimeout(f"no answer to the ack within {timeout:g} s. Does the service run? `overlay consumer info` tells")


class AckAnswers:
    """The listener for answers to acks, one for all subscriptions of a client. `topic`: the reply topic.

    All methods may be called from any thread. Garbage collection stops the listening.
    """

    def __init__(self, kafka: Properties, topic: str) -> None:
        self.topic = topic
        self._kafka = kafka
        self._name, self._numbers = uuid.uuid4().hex, itertools.count()
        self._lock = threading.Lock()
        self._listener = _Listener()
        self._finalizer: weakref.finalize[[_Listener, threading.Thread], AckAnswers] | None = None

    def expect(self) -> AnswerWait:
        """Return a registration for the answer to an ack that the caller sends after this call. The
        first call, also after `close`, opens the connection and starts a thread that listens; it may
        block for seconds.

        Raises SourceUnavailable, CredentialsRefused.
        """
        with self._lock:
            if self._finalizer is None:
                ear = _Ear(self._kafka, self.topic, f"overlay-answers-{self._name}")
                thread = threading.Thread(target=self._listener.run, args=(ear,), name="overlay-answers", daemon=True)
                thread.start()
                self._finalizer = weakref.finalize(self, _end, self._listener, thread)
            # within the lock, because a listener that is being closed resolves the waits that it
            # knows, and no later ones
            return self.make_waiting()

    def make_waiting(self) -> AnswerWait:
        """Return a registration as `expect` does, without starting to listen: the answer is only noticed while the
        thread runs.
        """
        correlation = f"{self._name}-{next(self._numbers)}".encode()
        future = self._listener.waiting[correlation] = Future[None]()
        return AnswerWait(self, correlation, future)

    def forget(self, correlation: bytes) -> None:
        """Remove the registration with this correlation id, so that its answer is ignored. Does nothing if there is none."""
        self._listener.waiting.pop(correlation, None)

    def close(self) -> None:
        """Stop listening until the next `expect`, and wait for the end of the thread. Calls that
        still wait for an answer get SourceUnavailable.
        """
        with self._lock:
            if self._finalizer is not None:
                self._finalizer()
            self._listener, self._finalizer = _Listener(), None


class _Ear:
    """A reader of the reply topic from its current end.

    Opening it raises SourceUnavailable and CredentialsRefused.
    """

    def __init__(self, kafka: Properties, topic: str, group: str) -> None:
        self._kafka, self._topic, self._group = kafka, topic, group
        self._consumer, self._contact = self._open()

    def _open(self) -> tuple[Consumer, Contact]:
        contact = Contact(self._kafka)
        return open_replies(self._kafka, self._topic, self._group, **contact.settings), contact

    def listen(self, stop: threading.Event) -> list[KafkaRecord]:
        """Return records of the reply topic: the first that comes within POLL_S seconds, and those
        that have come with it; empty if none comes. A record may be an error of the client.

        If the client has lost all brokers, or its credentials were replaced, another one is opened
        first, however long that takes, unless `stop` is set.
        """
        if self._contact.is_spent and not self._open_anew(stop):
            return []
        first = self._consumer.poll(POLL_S)
        return [first, *self._consumer.consume(BATCH, 0)] if first is not None else []

    def _open_anew(self, stop: threading.Event) -> bool:
        """Replace the Kafka client by a new one. Tries again every RETRY_S seconds. Returns True
        when that has succeeded, and False once `stop` is set.

        Answers that came meanwhile are missed; acking again does no harm.
        """
        self._contact.announce(log, topic=self._topic)
        self._consumer.close()
        while not stop.is_set():
            try:
                self._consumer, self._contact = self._open()
            except OverlayError as error:
                log.info("waiting for Kafka", topic=self._topic, reason=str(error))
                stop.wait(RETRY_S)
            else:
                return True
        return False

    def close(self) -> None:
        self._consumer.close()


class _Listener:
    """What the listening thread refers to: the registrations, but not the AckAnswers that has them,
    so that this can be garbage-collected while the thread runs.
    """

    def __init__(self) -> None:
        self.waiting: dict[bytes, Future[None]] = {}
        self.stop = threading.Event()

    def run(self, ear: _Ear) -> None:
        with contextlib.closing(ear):
            while not self.stop.is_set():
                for record in ear.listen(self.stop):
                    if record.error() is None and (future := self.waiting.pop(record.key(), None)) is not None:
                        _resolve(future)
        # no caller can register any more: `AckAnswers` has its lock while it waits for this thread
        while self.waiting:
            _, future = self.waiting.popitem()
            _resolve(future, SourceUnavailable("the client was closed while an ack waited for its answer"))


def _end(listener: _Listener, thread: threading.Thread) -> None:
    listener.stop.set()
    if thread is not threading.current_thread():
        thread.join()


def _resolve(future: Future[None], error: Exception | None = None) -> None:
    if not future.set_running_or_notify_cancel():
        return  # the waiting call has given up
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
