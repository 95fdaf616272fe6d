"""Records of files for a topic: sent idempotently and in order, and counted as Kafka acknowledges them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import KafkaException, Message, Producer

from overlay.errors import CredentialsRefused, FilePosition, OverlayError
from overlay.kafka.confluent import refuse_settings
from overlay.kafka.properties import Properties, for_confluent
from overlay.kafka.topics import TopicFacts

from .lines import MAX_LINE, LineRecord

DELIVERY_S = 30
"""How long a record may wait for its acknowledgement."""
_WAIT_S = 0.2
_BATCH_BYTES = 1_000_000
_PRODUCER = {
    # a batch that is sent again lands neither twice nor behind the next one
    "enable.idempotence": True,
    # keys go to the partitions to which Java's producers and the overlay send them
    "partitioner": "murmur2_random",
    "delivery.timeout.ms": DELIVERY_S * 1000,
    "linger.ms": 5,
    # the topic says how large a record may be
    "message.max.bytes": MAX_LINE + (1 << 20),
    "queue.buffering.max.kbytes": 2 * MAX_LINE >> 10,
    "log_level": 0,
}


class RecordRefused(OverlayError):
    """Kafka did not take a record. The user has to act."""


@dataclass(slots=True)
class Span:
    """Records that one partition has acknowledged. `first` and `last`: the lowest and the highest
    of their offsets that Kafka has told; None if it has told none.
    """

    count: int = 0
    first: int | None = None
    last: int | None = None

    def add(self, offset: int) -> None:
        """Count a record. `offset`: below 0 if Kafka does not tell it, as of a batch that was sent again."""
        self.count += 1
        if offset >= 0:
            self.first = offset if self.first is None else min(self.first, offset)
            self.last = offset if self.last is None else max(self.last, offset)


@dataclass(slots=True)
class Written:
    """What Kafka has acknowledged, by partition."""

    partitions: dict[int, Span] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(span.count for span in self.partitions.values())


def produce(
    kafka: Properties, topic: TopicFacts, records: Iterable[tuple[FilePosition, LineRecord]], written: Written
) -> None:
    """Send records to a topic in their order, and wait until Kafka has acknowledged them. `written` receives what it
    acknowledged, whatever happens.

    Records of one partition keep their order. If `records` raises an error, those before it are written; after
    KeyboardInterrupt, only those that were on their way. After the first record that Kafka refuses no more are sent,
    though some that were on their way may be written. Raises RecordRefused, with the place of the first refused
    record by file name and line, and CredentialsRefused.
    """
    # the client does not divide a batch that is too large as a whole
    limit = min(_BATCH_BYTES, int(topic.config.get("max.message.bytes", _BATCH_BYTES)))
    with refuse_settings(kafka):
        producer = Producer({**for_confluent(kafka), **_PRODUCER, "batch.size": max(1, limit)})
    sending = _Sending(producer, topic.name, written)
    with sending:
        for place, record in records:
            sending.send(place, record)
            if sending.refusals:
                break
    if sending.refusals:
        raise _explain(topic.name, *min(sending.refusals, key=lambda refusal: refusal[0]))


@dataclass(slots=True)
class _Sending:
    producer: Any
    topic: str
    written: Written
    refusals: list[tuple[FilePosition, RdKafkaError]] = field(default_factory=list)
    """Records that Kafka refused, in the order in which it said so."""

    def __enter__(self) -> _Sending:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for what is on its way. After Ctrl-C or a refusal, records that wait are dropped."""
        if self.refusals or (kind is not None and issubclass(kind, KeyboardInterrupt)):
            self.producer.purge(in_flight=False)
        while self.producer.flush(_WAIT_S):
            if self.refusals:
                self.producer.purge(in_flight=False)

    def send(self, place: FilePosition, record: LineRecord) -> None:
        options: dict[str, Any] = {"key": record.key, "value": record.value, "headers": list(record.headers)}
        if record.time_ms is not None:
            options["timestamp"] = record.time_ms
        if record.partition is not None:
            options["partition"] = record.partition
        while not self.refusals:
            try:
                self.producer.produce(self.topic, on_delivery=partial(self._note, place), **options)
                break
            except BufferError:
                # the queue is full; what is in it is written or refused within DELIVERY_S
                self.producer.poll(_WAIT_S)
            except KafkaException as error:
                self.refusals.append((place, error.args[0]))
        self.producer.poll(0)

    def _note(self, place: FilePosition, error: RdKafkaError | None, message: Message) -> None:
        if error is None:
            self.written.partitions.setdefault(message.partition(), Span()).add(message.offset())
        elif error.code() != RdKafkaError._PURGE_QUEUE:
            self.refusals.append((place, error))


def _explain(topic: str, place: FilePosition, error: RdKafkaError) -> OverlayError:
    if error.code() == RdKafkaError.TOPIC_AUTHORIZATION_FAILED:
        return CredentialsRefused(f"{topic}: this user may not write to it. Grant Write on the topic")
    if error.code() in (RdKafkaError.MSG_SIZE_TOO_LARGE, RdKafkaError._MSG_TIMED_OUT):
        what = {
            RdKafkaError.MSG_SIZE_TOO_LARGE: f"it is larger than max.message.bytes of {topic}",
            RdKafkaError._MSG_TIMED_OUT: f"Kafka did not take it within {DELIVERY_S} s",
        }[error.code()]
        return RecordRefused(f"{place}: the record was not written: {what}")
    return RecordRefused(f"{place}: Kafka refused the record: {error.str()}")
