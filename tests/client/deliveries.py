"""An output topic as a service would fill it, and what comes back on the ack topic."""

from __future__ import annotations

import gc
import itertools
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from confluent_kafka import Consumer, Producer, TopicPartition

from overlay.client.subscribe.ack_answers import AckAnswers
from overlay.client.subscribe.acking import Head
from overlay.client.subscribe.intake import OnSilence
from overlay.client.subscribe.message import Delivered, Message
from overlay.client.subscribe.subscription import Subscription
from overlay.client.subscribe.target import Target
from overlay.config.consumer import AckPolicy
from overlay.consumer.acks import Ack, RangeAck, Token, Verb, parse_ack
from overlay.consumer.effects import Status
from overlay.consumer.pulls import StatusText
from overlay.replies.answers import encode_statuses
from tests.support.kafka import NewTopicFixture, SureProducer
from tests.support.waiting import wait_until
from tests.worker.scenes import CommittedReader, Seen

DEADLINE_S = 30.0
SUBSCRIBING = ("overlay-subscription", "overlay-acks", "overlay-answers")
"""The threads of a subscription."""
ORDERS_LATE = Head("ORDERS", "late")


@dataclass(slots=True)
class Output:
    """Topics of one consumer, in place of the service that would serve it. Consumer and stream sequences count from 1."""

    bootstrap: str
    topic: str
    ack_topic: str
    reply_topic: str
    partitions: int = 1
    head: Head = ORDERS_LATE
    group: str = field(default_factory=lambda: f"late-{uuid.uuid4().hex[:8]}")
    policy: AckPolicy = AckPolicy.EXPLICIT
    heartbeat_s: float = 0.0
    _numbers: Iterable[int] = field(default_factory=lambda: itertools.count(1))
    _producer: Producer = field(init=False)

    def __post_init__(self) -> None:
        self._producer = SureProducer(self.bootstrap, {"linger.ms": 5})

    @property
    def kafka(self) -> dict[str, str]:
        return {"bootstrap.servers": self.bootstrap}

    def deliver(self, count: int, head: Head | None = None, *, partition: int | None = None) -> None:
        """So many messages, with their consumer sequence as value, dealt out to the partitions."""
        who = head or self.head
        for _, number in zip(range(count), self._numbers, strict=False):
            token = Token(who.stream, who.consumer, 1, number, number, 1_700_000_000_000_000_000, 0)
            headers = [("from", b"oslo"), ("Nats-Subject", b"t.oslo"), ("Nats-Reply-To", str(token).encode())]
            where = number % self.partitions if partition is None else partition
            self._producer.produce(self.topic, str(number), partition=where, headers=headers)
        assert self._producer.flush(DEADLINE_S) == 0

    def say(self, text: StatusText, answer_to: str = "", head: Head | None = None) -> None:
        """A status in every partition."""
        who = head or self.head
        status = Status("", text, answer_to)
        for entry in encode_statuses([status], who.stream, who.consumer, self.topic, self.partitions):
            headers = list(entry.record.headers)
            self._producer.produce(self.topic, None, partition=entry.partition, headers=headers)
        assert self._producer.flush(DEADLINE_S) == 0

    def produce_stray(self) -> None:
        """Records that no service wrote."""
        for partition in range(self.partitions):
            self._producer.produce(self.topic, b"stray", partition=partition)
            self._producer.produce(self.topic, b"stray", partition=partition, headers=[("Nats-Status", b"100")])
        assert self._producer.flush(DEADLINE_S) == 0

    def subscribe(
        self,
        where: Callable[[Delivered], bool] | None = None,
        *,
        prefetch: int = 1_000,
        on_silence: OnSilence = OnSilence.FLAG,
        idle: float | None = None,
    ) -> Subscription:
        target = Target(self.head, self.topic, self.group, self.policy, self.heartbeat_s)
        answers = AckAnswers(self.kafka, self.reply_topic)
        return Subscription(
            self.kafka, target, self.ack_topic, answers, where, prefetch=prefetch, on_silence=on_silence, idle=idle
        )

    def read_acks(self) -> Acks:
        """All that was said so far."""
        found = Acks()
        with CommittedReader(self.bootstrap, self.ack_topic) as reader:
            for record in reader.read():
                found.add(record)
        return found

    def await_acks(self, is_there: Callable[[Acks], bool], what: str) -> Acks:
        def look() -> Acks | None:
            found = self.read_acks()
            return found if is_there(found) else None

        found = wait_until(look, DEADLINE_S, what)
        assert found is not None
        return found

    def read_committed_offsets(self) -> dict[int, int]:
        """Of the reader group, by partition; none where it has committed nothing."""
        consumer = Consumer({**self.kafka, "group.id": self.group})
        places = [TopicPartition(self.topic, partition) for partition in range(self.partitions)]
        found = {place.partition: place.offset for place in consumer.committed(places, DEADLINE_S) if place.offset >= 0}
        consumer.close()
        return found


@dataclass(slots=True)
class Acks:
    """What the records of an ack topic say, as the service reads them."""

    acked: list[int] = field(default_factory=list)
    """Consumer sequences, in the order of the records."""
    words: list[tuple[Verb, int, int | None, str]] = field(default_factory=list)
    """Other verbs: consumer sequence, delay, text."""
    records: list[Seen] = field(default_factory=list)
    flows: list[tuple[str, bytes]] = field(default_factory=list)
    """Answers to flow control requests: subject and body."""

    def add(self, record: Seen) -> None:
        self.records.append(record)
        token = record.header(b"Nats-Reply-To") or record.key or b""
        if token.startswith(b"$JS.FC."):
            self.flows.append((token.decode(), record.value or b""))
            return
        ack = parse_ack(token, record.value or b"")
        assert not getattr(ack, "is_flawed", False), ack
        if isinstance(ack, RangeAck):
            self.acked += [number for first, last in ack.ranges for number in range(first, last + 1)]
        else:
            assert isinstance(ack, Ack), ack
            if ack.verb is Verb.ACK:
                self.acked.append(ack.token.consumer_seq)
            else:
                self.words.append((ack.verb, ack.token.consumer_seq, ack.delay, ack.text))


def make_output(bootstrap: str, new_topic: NewTopicFixture, partitions: int = 1) -> Output:
    # acks lie in several partitions: nothing may depend on how many there are
    return Output(bootstrap, new_topic(partitions), new_topic(3), new_topic(), partitions)


def list_subscribing() -> list[str]:
    """The threads of subscriptions that have not ended, nor been forgotten."""
    gc.collect()
    return [thread.name for thread in threading.enumerate() if thread.name in SUBSCRIBING]


def read_numbers(messages: Iterator[Message]) -> list[int]:
    return [int(message.data) for message in messages]
