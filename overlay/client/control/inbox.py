"""Requests with answers on the reply topic: one answer, or for a pull as many as there are messages."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from types import TracebackType

from confluent_kafka import Consumer, KafkaException, Message, Producer
from confluent_kafka import KafkaError as RdKafkaError

from overlay.client.arguments import BadQuestion
from overlay.errors import CredentialsRefused, OverlayError, SourceUnavailable
from overlay.kafka.confluent import check_reachable, refuse_settings
from overlay.kafka.header_names import CORRELATION, REPLY_TOPIC
from overlay.kafka.message_headers import read_headers
from overlay.kafka.own_topics import reply_topic, workers_group
from overlay.kafka.properties import Properties, for_confluent
from overlay.output.record import Headers

from .presence import WorkerWatch
from .replies import is_refusal, judge, open_replies

POLL_S = 0.05
REACH_S = 5.0
LOOK_S = 0.5
"""Seconds without an answer after which an impatient inbox looks whether any service runs."""
LOOK_AGAIN_S = 2.0
SEND_S = 10.0
"""Seconds that Kafka may take for the request itself, however short the wait for its answer is."""
_NOT_WRITTEN = (
    RdKafkaError.NOT_LEADER_FOR_PARTITION,
    RdKafkaError.LEADER_NOT_AVAILABLE,
    RdKafkaError.NOT_ENOUGH_REPLICAS,
    RdKafkaError.UNKNOWN_TOPIC_OR_PART,
)
"""Errors by which a broker says that a record is not in the log."""


class NoAnswer(OverlayError, TimeoutError):
    """No answer came in time. The request may have been carried out all the same."""


class NoService(NoAnswer):
    """No answer can come, since no service runs. A request was withdrawn; an ack stays in its topic.
    The operator acts: a service has to be started.
    """


class RequestRefused(CredentialsRefused):
    """Kafka does not let this client write to the topic of a request, which was not sent. The operator acts."""


class Inbox:
    """A sender of requests to the service, which reads the answers from the reply topic. The first
    request opens its connections. Not thread-safe.

    `is_patient`: whether to wait for an answer while no service runs. One may start meanwhile and
    answer, for example after a restart. An impatient inbox raises NoService instead.
    """

    def __init__(self, kafka: Properties, prefix: str, *, is_patient: bool = True) -> None:
        self._kafka, self._prefix, self._is_patient = kafka, prefix, is_patient
        self._look_s = LOOK_S
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None
        self._first: Producer | None = None

    def __enter__(self) -> Inbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. The next request opens new ones."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = self._producer = self._first = None

    def ask(
        self,
        topic: str,
        key: bytes,
        value: bytes,
        timeout: float,
        headers: Headers = (),
        id: str = "",
        quiet_s: float = 0.0,
        stop: threading.Event | None = None,
    ) -> Iterator[Message]:
        """Send a record to `topic` and yield the answers to it as they come, blocking between them.
        The caller stops when it has enough. `timeout` seconds after the record was sent NoAnswer is
        raised, even if there were answers.

        Nothing is sent before the first answer is asked for. `headers`: further ones of the record.
        `id`: the correlation id, a random one if empty. `quiet_s`: seconds for which a service may
        have nothing to answer yet, so that an impatient inbox looks later whether one runs. `stop`: ends
        the answers when it is set, without an error. Also raises SourceUnavailable, CredentialsRefused,
        and NoService if this inbox is impatient and no service runs.
        """
        correlation = (id or uuid.uuid4().hex).encode()
        consumer = self._open()
        more = [*headers, (REPLY_TOPIC, reply_topic(self._prefix).encode()), (CORRELATION, correlation)]
        self._send(topic, key, value, more)
        sent = time.monotonic()
        deadline, fault = sent + timeout, ""
        watch = self._open_watch(quiet_s)
        while (left := deadline - time.monotonic()) > 0:
            if stop is not None and stop.is_set():
                return
            record = consumer.poll(min(left, POLL_S))
            if record is None:
                if watch is not None and watch.finds_none(time.monotonic() - sent):
                    # further requests learn it without the delay
                    self._look_s = 0.0
                    raise NoService(
                        f"no service runs: group {workers_group(self._prefix)} has no members on"
                        f" {self._kafka['bootstrap.servers']}"
                    )
                continue
            if (error := record.error()) is not None:
                if is_refusal(error):
                    self.close()
                    raise judge(reply_topic(self._prefix), "Read", error)
                fault = f" Reading the answers failed: {error.str()}."
                continue
            # a service answers
            watch, self._look_s = None, LOOK_S
            if _find(record, CORRELATION) == correlation:
                yield record
        # the next request opens new clients: these may be the reason (overlay/kafka/confluent.py,
        # Contact)
        self.close()
        raise NoAnswer(
            f"no answer within {timeout:g} s.{fault} Does a service with topics.prefix {self._prefix!r} run on"
            f" {self._kafka['bootstrap.servers']}?"
        )

    def ask_all(
        self, topic: str, questions: Mapping[str, tuple[bytes, bytes]], timeout: float, headers: Headers = ()
    ) -> Iterator[tuple[str, Message]]:
        """Send requests to `topic`, all at once, and yield the first answer to each with the id of the request, in the order in
        which they come. Ends without an error once each has its answer, or `timeout` seconds after the last was sent.

        `questions`: key and value by correlation id. Blocks between answers. Raises SourceUnavailable, CredentialsRefused.
        """
        consumer = self._open()
        left = {id.encode(): id for id in questions}
        for id, (key, value) in questions.items():
            more = [*headers, (REPLY_TOPIC, reply_topic(self._prefix).encode()), (CORRELATION, id.encode())]
            self._send(topic, key, value, more)
        deadline = time.monotonic() + timeout
        while left and (remaining := deadline - time.monotonic()) > 0:
            record = consumer.poll(min(remaining, POLL_S))
            if record is None:
                continue
            if (error := record.error()) is not None:
                if is_refusal(error):
                    self.close()
                    raise judge(reply_topic(self._prefix), "Read", error)
            elif (found := left.pop(_find(record, CORRELATION) or b"", None)) is not None:
                yield found, record

    def _open_watch(self, quiet_s: float) -> WorkerWatch | None:
        if self._is_patient:
            return None
        return WorkerWatch(self._kafka, self._prefix, self._look_s + quiet_s, LOOK_AGAIN_S)

    def withdraw(self, topic: str, key: bytes) -> None:
        """Write a tombstone for a request with this key to `topic`, the topic that the request was sent
        to, so that a service that starts later does not carry it out. Call it right after `ask` has
        raised NoService: it uses the open connections. Raises SourceUnavailable, CredentialsRefused.
        """
        self._send(topic, key, None, ())

    def has_topic(self, topic: str) -> bool:
        """Return whether a topic exists and Kafka shows it to this user: False also without the right
        to describe it. Raises SourceUnavailable, CredentialsRefused.
        """
        try:
            found = self._open().list_topics(topic, REACH_S).topics.get(topic)
        except KafkaException as error:
            raise judge(topic, "Describe", error.args[0]) from error
        return found is not None and found.error is None

    def _open(self) -> Consumer:
        """Return the reader of answers. Open it and the producers if they are not open yet.

        An idempotent producer asks for its producer id half a second after it was made, and sends
        nothing before. So the first request has a producer of its own, which sends at once and
        never repeats a request: the service would carry it out twice.
        """
        if self._consumer is None:
            settings = {**for_confluent(self._kafka), "log_level": 0}
            with refuse_settings(self._kafka):
                self._first = Producer({**settings, "acks": "all", "retries": 0})
                self._producer = Producer({**settings, "enable.idempotence": True})
            try:
                check_reachable(self._kafka, REACH_S)
                group = f"overlay-inbox-{uuid.uuid4().hex}"
                self._consumer = open_replies(self._kafka, reply_topic(self._prefix), group)
            except BaseException:
                self.close()
                raise
        return self._consumer

    def _send(self, topic: str, key: bytes, value: bytes | None, headers: Headers) -> None:
        """Send a request and wait until Kafka has it. `_open` must have been called. Raises BadQuestion
        for a request that is too large, SourceUnavailable, and RequestRefused without the right to
        write; the connections are then closed.
        """
        assert self._producer is not None
        first, self._first = self._first, None
        failure = _produce(first or self._producer, topic, key, value, headers)
        if first is not None and failure is not None and failure.code() in _NOT_WRITTEN:
            failure = _produce(self._producer, topic, key, value, headers)
        if failure is None:
            return
        if failure.code() == RdKafkaError.MSG_SIZE_TOO_LARGE:
            raise BadQuestion(f"{topic}: the request is too large for Kafka: {len(value or b''):,} bytes")
        self.close()  # as after a missing answer
        if failure.code() == RdKafkaError._MSG_TIMED_OUT:
            raise SourceUnavailable(f"{topic}: Kafka did not take the request within {SEND_S:g} s")
        judged = judge(topic, "Write", failure)
        raise RequestRefused(str(judged)) if isinstance(judged, CredentialsRefused) else judged


def _produce(producer: Producer, topic: str, key: bytes, value: bytes | None, headers: Headers) -> RdKafkaError | None:
    """Send a record, and block until Kafka has it, at most SEND_S seconds. Return None if Kafka has
    it, else the error, which is _MSG_TIMED_OUT after SEND_S. The record may still be written then,
    as after any error that is not one of _NOT_WRITTEN.
    """
    failures: list[RdKafkaError] = []
    try:
        producer.produce(
            topic,
            value,
            key,
            headers=list(headers),
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    except KafkaException as error:  # the record is too large, for example
        failed: RdKafkaError = error.args[0]
        return failed
    left = producer.flush(SEND_S)
    if failures:
        return failures[0]
    return RdKafkaError(RdKafkaError._MSG_TIMED_OUT) if left else None


def _find(record: Message, name: str) -> bytes | None:
    return next((value for key, value in reversed(read_headers(record)) if key == name), None)
