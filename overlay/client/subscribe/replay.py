"""Replay of dead letters: they are produced again as messages of their stream.

A dead letter is the original message with additional headers of the overlay. Those are removed, and
the rest is produced like any other message. It gets a new offset and is delivered to every consumer
that it matches. There is no other way: the old message is settled for good, and its stream sequence
cannot be used again. A dead letter without its value (docs/consumers.md#dead-letters) is not a
complete message and is not replayed.

How far dead letters have been replayed is the committed offset of a consumer group,
`<prefix>.replay.<stream>.<consumer>`. It is committed in the transaction that produces the
messages. So no dead letter is replayed twice, even if a replay breaks off, unless a replay reads
all of them again (`--again`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka import KafkaError as RdKafkaError
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from overlay.config import Loaded
from overlay.errors import OverlayError, SourceUnavailable
from overlay.kafka.confluent import check_reachable
from overlay.kafka.header_names import (
    CAUSES,
    DEAD_CONSUMER,
    DEAD_STREAM,
    DELIVERIES,
    FULL,
    REASON,
    SOURCE_OFFSET,
    SOURCE_PARTITION,
    SUBJECT,
    TOKEN,
    VALUE_SIZE,
)
from overlay.kafka.message_headers import read_headers
from overlay.kafka.own_topics import replay_group
from overlay.kafka.properties import Properties, for_confluent

REACH_S = 5.0
DEADLINE_S = 30.0
ROOM_S = 30.0
"""Seconds for which the producer's queue may stay full."""
POLL_S = 0.2
_NO_COORDINATOR = (
    RdKafkaError.NOT_COORDINATOR,
    RdKafkaError.COORDINATOR_NOT_AVAILABLE,
    RdKafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)
_OURS = frozenset({SUBJECT, TOKEN, VALUE_SIZE, *FULL, *CAUSES})


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter: a record of a dead-letter topic, with a message that was given up and the reason in headers."""

    record: Message

    @property
    def where(self) -> str:
        """Where the dead letter is: topic-partition@offset."""
        return f"{self.record.topic()}-{self.record.partition()}@{self.record.offset()}"

    @property
    def subject(self) -> str:
        return self._find(SUBJECT)

    @property
    def reason(self) -> str:
        """Why the message was given up: max_deliver, term or undeliverable."""
        return self._find(REASON)

    @property
    def deliveries(self) -> str:
        """How often the message was delivered: a decimal number, as the dead letter's header has
        it; "" without this header."""
        return self._find(DELIVERIES)

    @property
    def is_whole(self) -> bool:
        """Whether the dead letter has the value of the original message (which may be null), not only its size."""
        return self.record.value() is not None or not self._find(VALUE_SIZE)

    @property
    def origin(self) -> str:
        """Where the original message is or was: partition@offset in a topic of the stream."""
        return f"{self._find(SOURCE_PARTITION)}@{self._find(SOURCE_OFFSET)}"

    @property
    def line(self) -> str:
        """The dead letter as a line of text, with why it is not replayed if it is not."""
        left = "" if self.is_whole else f"; left out: it has no value, which is at {self.origin}"
        return f"{self.where}  {self.subject}  {self.reason}, {self.deliveries} deliveries{left}"

    @property
    def headers(self) -> list[tuple[str, Any]]:
        """The headers of the original message in order, without those that the overlay added."""
        return [(name, value) for name, value in read_headers(self.record) if name not in _OURS]

    def is_of(self, stream: str, consumer: str) -> bool:
        """Return whether this is a dead letter of the consumer of that stream and name."""
        return (self._find(DEAD_STREAM), self._find(DEAD_CONSUMER)) == (stream, consumer)

    def describe(self) -> dict[str, str | bool]:
        """Return the dead letter's properties as a JSON object: where, subject, reason, deliveries, whole, origin."""
        told = {"where": self.where, "subject": self.subject, "reason": self.reason, "deliveries": self.deliveries}
        return {**told, "whole": self.is_whole, "origin": self.origin}

    def _find(self, name: str) -> str:
        found = next((value for key, value in reversed(read_headers(self.record)) if key == name), None)
        return (found or b"").decode(errors="replace")


def choose_target(loaded: Loaded, stream: str, name: str, target: str | None) -> tuple[str, str]:
    """Return the dead-letter topic of the consumer `name` of a stream, and the topic to replay to.

    `target`: the topic to replay to, None for the stream's only topic. Raises OverlayError if no file
    describes the consumer, if it has no dead-letter topic, or if `target` is None and the stream has
    several topics.
    """
    config = loaded.consumers.get((stream, name))
    if config is None:
        raise OverlayError(f"there is no consumer {stream}/{name}; see `overlay consumer ls`")
    if config.dead_letter is None:
        raise OverlayError(f"consumer {stream}/{name} has no dead_letter topic, so there is nothing to replay")
    topics = loaded.streams[stream].topic_names
    if target is None and len(topics) > 1:
        raise OverlayError(f"stream {stream} has the topics {', '.join(topics)}. Say --to TOPIC")
    return config.dead_letter, target or topics[0]


class Replay:
    """One replay of a consumer's dead letters from the dead-letter topic `topic`. Use it in a `with`
    block, which opens and closes the Kafka client: call `read`, inspect what it returns, call `send`.
    `consumer`: stream and name. `prefix`: of the overlay's own topics.
    """

    def __init__(self, kafka: Properties, prefix: str, consumer: tuple[str, str], topic: str) -> None:
        self._kafka, self._who, self._topic = kafka, consumer, topic
        self._group = replay_group(prefix, consumer)
        self._consumer: Consumer | None = None
        self._read_to: dict[int, int] = {}

    def __enter__(self) -> Replay:
        check_reachable(self._kafka, REACH_S)
        settings = {
            **for_confluent(self._kafka),
            "group.id": self._group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
        self._consumer = Consumer(settings)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def read(self, *, limit: int | None = None, again: bool = False) -> list[Letter]:
        """Return the consumer's dead letters since the last replay, or with `again` all that are in the topic, in
        order within each partition. Blocks until the last stable offset of each partition is reached, or `limit`
        letters.

        Raises SourceUnavailable, and OverlayError if the topic does not exist or Kafka does not
        show it to this user.
        """
        assert self._consumer is not None
        try:
            places = self._find_places(again=again)
            self._consumer.assign(places)
            return self._read_letters({place.partition for place in places}, limit)
        except KafkaException as error:
            raise SourceUnavailable(f"{self._topic}: {error.args[0].str()}") from error

    def _find_places(self, *, again: bool) -> list[TopicPartition]:
        assert self._consumer is not None
        found = self._consumer.list_topics(self._topic, REACH_S).topics[self._topic]
        if found.error is not None:
            raise OverlayError(f"{self._topic}: {found.error.str()}. No message has been given up yet")
        places = [TopicPartition(self._topic, partition) for partition in found.partitions]
        known = [] if again else self._find_committed(places)
        offsets = {place.partition: place.offset for place in known if place.offset >= 0}
        return [TopicPartition(p.topic, p.partition, offsets.get(p.partition, OFFSET_BEGINNING)) for p in places]

    def _read_letters(self, open_ends: set[int], limit: int | None) -> list[Letter]:
        assert self._consumer is not None
        letters: list[Letter] = []
        deadline = time.monotonic() + DEADLINE_S
        while open_ends and (limit is None or len(letters) < limit):
            if time.monotonic() > deadline:
                raise SourceUnavailable(f"{self._topic}: its end was not reached within {DEADLINE_S:.0f} s")
            record = self._consumer.poll(POLL_S)
            if record is None:
                continue
            if record.error() is not None:
                if record.error().code() != RdKafkaError._PARTITION_EOF:
                    raise SourceUnavailable(f"{self._topic}: {record.error().str()}")
                open_ends.discard(record.partition())
                continue
            self._read_to[record.partition()] = record.offset() + 1
            deadline = time.monotonic() + DEADLINE_S
            if (letter := Letter(record)).is_of(*self._who):
                letters.append(letter)
        return letters

    def send(self, letters: list[Letter], topic: str) -> None:
        """Produce the messages of those letters that are whole to `topic`. In the same transaction,
        commit the offsets up to which `read` has read, so that a later replay continues there; where
        another replay has come further, its offset stays. So every letter that was read counts as
        replayed, also one without its value or one that is not in `letters`.

        Raises SourceUnavailable, also if the producer's queue is full for ROOM_S seconds, and OverlayError
        if the topic does not exist or Kafka does not show it to this user; nothing is produced then,
        unless only the answer to the commit was lost.
        """
        assert self._consumer is not None
        settings = {
            **for_confluent(self._kafka),
            "transactional.id": self._group,
            # the partitioner of Java's clients, and as a rule of the producers that wrote the
            # originals
            "partitioner": "murmur2_random",
            "log_level": 0,
        }
        outcome = "nothing was replayed"
        try:
            producer = Producer(settings)
            if (found := producer.list_topics(topic, REACH_S).topics[topic]).error is not None:
                raise OverlayError(f"{topic}: {found.error.str()}. Create the topic first; nothing was replayed")
            producer.init_transactions(DEADLINE_S)
            done = self._find_done()  # not before: until then another replay may still commit
            producer.begin_transaction()
            for letter in filter(lambda letter: letter.is_whole, letters):
                _produce(producer, topic, letter)
            producer.send_offsets_to_transaction(done, self._consumer.consumer_group_metadata(), DEADLINE_S)
            outcome = "it is not known whether it was replayed; a replay without --again sends no letter twice"
            producer.commit_transaction(DEADLINE_S)
        except KafkaException as error:
            raise SourceUnavailable(f"{topic}: {outcome}: {error.args[0].str()}") from error

    def _find_done(self) -> list[TopicPartition]:
        """Return the offsets to commit, one for each partition that `read` has read: that up to which it has read, or the
        committed one if that is higher. Raises KafkaException.
        """
        places = [TopicPartition(self._topic, partition) for partition in self._read_to]
        before = {place.partition: place.offset for place in self._find_committed(places)}
        return [
            TopicPartition(self._topic, partition, max(offset, before[partition]))
            for partition, offset in self._read_to.items()
        ]

    def _find_committed(self, places: list[TopicPartition]) -> list[TopicPartition]:
        """Return these partitions with the offsets up to which their letters were replayed, negative if
        none was. Waits up to DEADLINE_S seconds for a coordinator of the replay's group, which a broker
        that has just started does not have yet. Raises KafkaException."""
        assert self._consumer is not None
        retrying = Retrying(
            retry=retry_if_exception(_lacks_coordinator),
            stop=stop_after_delay(DEADLINE_S),
            wait=wait_fixed(POLL_S),
            reraise=True,
        )
        found: list[TopicPartition] = retrying(self._consumer.committed, places, REACH_S)
        return found


def _produce(producer: Producer, topic: str, letter: Letter) -> None:
    """Queue the message of a letter in the open transaction. While the producer's queue is full, wait until
    Kafka has taken messages out of it. Raises SourceUnavailable after ROOM_S seconds without room, and
    KafkaException.
    """
    until = time.monotonic() + ROOM_S
    while True:
        try:
            producer.produce(topic, letter.record.value(), letter.record.key(), headers=letter.headers)
        except BufferError as error:
            if time.monotonic() > until:
                raise SourceUnavailable(
                    f"{topic}: nothing was replayed: Kafka has taken no message for {ROOM_S:g} s"
                ) from error
            producer.poll(POLL_S)  # ends early when Kafka has taken a message
        else:
            producer.poll(0)
            return


def _lacks_coordinator(error: BaseException) -> bool:
    return isinstance(error, KafkaException) and error.args[0].code() in _NO_COORDINATOR
