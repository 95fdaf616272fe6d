"""The sender of acks: collects them for some milliseconds in a thread of its own, so that `ack`
costs only an append.

Acks are sent LINGER_S seconds after the thread has noticed the first, or sooner once there are
MANY. It notices one at once, or up to POLL_S seconds later while earlier records have no answer
yet. Closing sends what is left and waits until Kafka has it, at most CLOSE_S seconds. Records are
produced idempotently, and the Kafka client retries them for minutes. If Kafka refuses a record, or
the client gives it up, that is reported to the reader, because all later acks might be lost as
well.

The queue has no limit of its own. Progress reports apart, it hardly exceeds the messages handed
out, which the consumer's max_ack_pending limits.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import KafkaException, Producer

from overlay.config.consumer import AckPolicy
from overlay.consumer.acks import Verb, write_ranges
from overlay.errors import CredentialsRefused, OverlayError, SourceUnavailable
from overlay.kafka.confluent import Contact, refuse_settings
from overlay.kafka.properties import Properties, for_confluent
from overlay.logs import get_logger
from overlay.output.record import Record

from .ack_answers import AckAnswers, AnswerWait
from .acking import Head, write_acks, write_latest_ack, write_word
from .kind import FlowRequest
from .message import NoAckWanted

log = get_logger(__name__)

LINGER_S = 0.005
MANY = 10_000
"""Number of acks that are sent without waiting for more."""
POLL_S = 0.05
CLOSE_S = 30.0
THREAD = "overlay-acks"
"""The name of a sender's thread."""
IDLE_S = 1.0
"""Seconds between two polls of the client's state while nothing is sent."""
RETRY_S = 1.0
"""Pause between two attempts to make another Kafka client."""
_PURGED = (RdKafkaError._PURGE_QUEUE, RdKafkaError._PURGE_INFLIGHT)
_REFUSALS = (RdKafkaError.TOPIC_AUTHORIZATION_FAILED, RdKafkaError.CLUSTER_AUTHORIZATION_FAILED)


class Closed(OverlayError):
    """A message is to be settled after its subscription or pull consumer was closed, its subscription has ended with
    an error, or its Faust application has stopped; or a pull consumer is used after its `close`. The application
    acts.
    """


class AckSender:
    """The sender of one consumer's acks to the ack topic `topic`, by a thread of its own. All methods may
    be called from any thread.

    `head`: the consumer. `policy`: its ack policy. `answers`: listens for answers to `ask`.
    `on_failure`: called with the error, in the sender's thread, if Kafka does not take acks.
    """

    def __init__(
        self,
        kafka: Properties,
        topic: str,
        head: Head,
        policy: AckPolicy,
        answers: AckAnswers,
        on_failure: Callable[[OverlayError], None],
    ) -> None:
        self._topic, self._head, self._policy, self._answers = topic, head, policy, answers
        self._on_failure = on_failure
        self._write = write_acks if policy is AckPolicy.EXPLICIT else write_latest_ack
        # a deque: appends and pops of two threads need no lock
        self._said: deque[bytes | Record] = deque()
        self._called, self._many = threading.Event(), threading.Event()
        self._is_called = self._is_closed = False
        self.ack: Callable[[bytes], None] = self._ack if policy.takes_acks else self._pass
        """Queue an ack of the delivery with this token, and return at once. Does nothing if the
        consumer takes no acks by token. Raises Closed.
        """
        self._kafka = kafka
        self._retry_at = 0.0
        self._open()
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
        self._thread.start()

    def _open(self) -> None:
        """Make a Kafka client and use it from now on. Raises CredentialsRefused if none can be made of the settings; the
        old one, if any, then stays.
        """
        contact = Contact(self._kafka)
        with refuse_settings(self._kafka):
            self._producer = Producer(
                {
                    **for_confluent(self._kafka),
                    "enable.idempotence": True,
                    "linger.ms": 0,
                    # the topic exists since before the first delivery
                    "topic.metadata.propagation.max.ms": 3_000,
                    "log_level": 0,
                    **contact.settings,
                }
            )
        self._contact = contact

    def tell(self, token: bytes, verb: Verb, text: str = "") -> None:
        """Queue a nak, term or progress for the delivery with this token, and return at once. `text`:
        the delay of a nak as `write_delay` returns it, or the reason of a term. Raises NoAckWanted if
        the consumer takes no acks by token, Closed.
        """
        self._check_wanted()
        self._send(write_word(self._head, token, verb, text))

    def answer_flow(self, flow: FlowRequest) -> None:
        """Queue the answer to a flow control request. Call it when the application has taken all
        messages before the request: with `ack_policy: flow_control` the answer acks them. Raises
        Closed.
        """
        acks = self._policy is AckPolicy.FLOW_CONTROL and flow.up_to
        body = write_ranges([(1, flow.up_to)]) if acks else b""
        self._send(write_word(self._head, flow.subject.encode(), Verb.ACK)._replace(value=body))

    def ask(self, token: bytes) -> AnswerWait:
        """Queue an ack of the delivery with this token, which the service answers once it has committed
        it, and return the wait for that answer. The first call may block for seconds, to connect.

        Raises NoAckWanted if the consumer takes no acks by token, Closed, SourceUnavailable,
        CredentialsRefused.
        """
        self._check_wanted()
        waiting = self._answers.expect()
        self._send(write_word(self._head, token, Verb.ACK, more=waiting.headers))
        return waiting

    def close(self) -> None:
        """Send what is queued and wait until Kafka has it, at most CLOSE_S seconds. If Kafka has
        not taken all of it by then, `on_failure` is called. Later acks raise Closed.
        """
        self._is_closed = True
        self._called.set()
        self._many.set()
        self._thread.join()

    def _pass(self, token: bytes) -> None:
        """Do nothing: `ack` for a consumer that takes no acks by token."""

    def _ack(self, token: bytes) -> None:
        said = self._said
        said.append(token)
        if not self._is_called:
            self._call()
        elif len(said) > MANY:
            self._many.set()

    def _send(self, record: Record) -> None:
        self._said.append(record)
        self._call()

    def _call(self) -> None:
        if self._is_closed:
            raise Closed("the subscription is closed, and its messages can no longer be settled")
        self._is_called = True
        self._called.set()

    def _check_wanted(self) -> None:
        if not self._policy.takes_acks:
            name = f"{self._head.stream}/{self._head.consumer}"
            raise NoAckWanted(f"{name} has `ack_policy: {self._policy}`: no acks of its messages are wanted")

    def _run(self) -> None:
        while not self._is_closed:
            # not only while the sender waits: acks may come without a pause
            self._replace_spent()
            # delivery reports and the client's own events are only processed while this thread
            # polls
            while not self._called.wait(0 if len(self._producer) else IDLE_S):
                self._producer.poll(POLL_S if len(self._producer) else 0)
                self._replace_spent()
            self._many.wait(LINGER_S)
            self._called.clear()
            self._many.clear()
            self._produce(self._take())
        self._produce(self._take())
        with suppress(KafkaException):
            self._producer.flush(CLOSE_S)
        if left := len(self._producer):
            self._on_failure(SourceUnavailable(f"{self._topic}: Kafka did not take {left} records of acks"))

    def _replace_spent(self) -> None:
        """If the Kafka client is lost or has former credentials, replace it by a new one, which then sends
        the records that the old one had not sent. If no new one can be made, as while a file with
        credentials is being replaced, keep the old one; calls within RETRY_S seconds then do nothing.

        If the old client did send one, its ack arrives twice, which does no harm.
        """
        if not self._contact.is_spent or time.monotonic() < self._retry_at:
            return
        self._contact.announce(log, topic=self._topic)
        lost = self._producer
        try:
            self._open()
        except CredentialsRefused as error:
            log.info("waiting for credentials", topic=self._topic, reason=str(error))
            self._retry_at = time.monotonic() + RETRY_S
            return
        lost.purge()
        # reports each purged record to `_hear`, which queues it again
        lost.flush(CLOSE_S)

    def _take(self) -> list[bytes | Record]:
        # before the queue is emptied: an ack that is appended later calls again
        self._is_called = False
        said = self._said
        return [said.popleft() for _ in range(len(said))]

    def _produce(self, said: Sequence[bytes | Record]) -> None:
        tokens = [item for item in said if isinstance(item, bytes)]
        words = [item for item in said if not isinstance(item, bytes)]
        for record in [*(self._write(self._head, tokens) if tokens else ()), *words]:
            self._produce_one(record)
        self._producer.poll(0)

    def _produce_one(self, record: Record) -> None:
        hear = partial(self._hear, record)
        while True:
            try:
                self._producer.produce(
                    self._topic, record.value, record.key, headers=list(record.headers), on_delivery=hear
                )
                return
            except BufferError:
                self._producer.poll(POLL_S)
                self._replace_spent()  # a lost client never makes room
            except KafkaException as error:
                hear(error.args[0], None)
                return

    def _hear(self, record: Record, error: RdKafkaError | None, _: object) -> None:
        """Process the delivery report of a record. A record that the old client has dropped is
        produced again; any other error goes to `on_failure`.

        `record` is passed in because the report has no headers.
        """
        if error is None:
            return
        if error.code() in _PURGED:
            self._produce_one(record)
            return
        if error.code() in _REFUSALS:
            failure: OverlayError = CredentialsRefused(f"{self._topic}: Kafka does not allow Write, so no ack arrives")
        else:
            failure = SourceUnavailable(f"{self._topic}: an ack was not taken: {error.str()}")
        self._on_failure(failure)
