"""Whether a storm broke a promise: the outputs against the source, record by record, in plain Python.

The promises, for each consumer:

- nothing is lost: every committed record that the consumer wants is in its output;
- nothing is invented: the output has no other record, and a record's key and value are those of the
  source;
- order: sequences first appear in rising order in each output partition, and one sequence names one
  record in all outputs;
- `exactly_once`: consumer sequences count from 1 without a hole or a repetition; without acks every
  record is there once, with acks a record comes again only with the next number of deliveries;
- with acks: every record was acked by an application in the end, so nothing was settled without an
  ack. A message whose ack the service confirmed does not come again, and neither does one that was
  acked well before its ack_wait was over;
- no worker ended by itself (workers.py).

`at_least_once` may deliver again what it delivered before a failure, so for it only the first
appearance of a record is in order.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, KafkaException, TopicPartition
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError as RdKafkaError

from overlay.kafka.confluent import Contact
from tests.oracle.push import parse_token

from .applications import Notes
from .plan import ACK_WAIT_S, NUMBER, Consumer, Flight, read_flight

PROMPT_S = ACK_WAIT_S - 3.0
"""An ack this soon after its delivery reaches the service before ack_wait is over, unless Kafka itself was away."""
AWAY_S = 15.0
"""How long acks may take around the restart of the broker."""
SHOWN = 5


class Delivery(NamedTuple):
    """A record of an output topic. `body`: hash of key and value; `time`: ms since 1970, of its arrival in the log."""

    partition: int
    offset: int
    number: int
    body: int
    time: int
    sequence: int
    consumer_sequence: int
    deliveries: int


@dataclass(slots=True)
class Source:
    """The committed records of the source topic by number: what consumers can ask of each, and its hash of key and value."""

    flights: dict[int, Flight] = field(default_factory=dict)
    bodies: dict[int, int] = field(default_factory=dict)


class Output:
    """A consumer's output topic, read with read_committed by confluent-kafka, more at each call of `read`."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._reader = Reader(bootstrap, topic)
        self.deliveries: list[Delivery] = []
        self.numbers: set[int] = set()

    def read(self) -> None:
        """Read up to the end of what is committed now."""
        for message in self._reader.read():
            headers = dict(message.headers() or ())
            token = headers.get("Nats-Reply-To")
            if token is None:
                continue
            parsed = parse_token(token)
            delivery = Delivery(
                message.partition(),
                message.offset(),
                int(headers[NUMBER]),
                hash((message.key(), message.value())),
                message.timestamp()[1],
                parsed.sequence,
                parsed.consumer_sequence,
                parsed.deliveries,
            )
            self.deliveries.append(delivery)
            self.numbers.add(delivery.number)

    def close(self) -> None:
        self._reader.close()


class Reader:
    """The committed records of a topic. A Kafka client that is lost (producers.py) is replaced."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self._positions: dict[int, int] = {}
        self._open()

    def _open(self) -> None:
        self._contact = Contact()
        self._consumer = KafkaConsumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": f"judge-{uuid.uuid4().hex}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "log_level": 0,
                **self._contact.settings,
            }
        )

    def read(self) -> Iterator[Any]:
        """Yield the records up to where the committed part of the log ends now, from where the last call ended."""
        try:
            left = self._assign()
        except KafkaException:
            left = self._assign_anew()
        while left:
            if self._contact.is_lost:
                left = self._assign_anew()
            for message in self._consumer.consume(5000, 0.1):
                error = message.error()
                if error is None:
                    self._positions[message.partition()] = message.offset() + 1
                    yield message
                elif error.code() == RdKafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                elif not error.retriable():
                    raise AssertionError(f"{self._topic}: {error}")

    def _assign(self) -> set[int]:
        """Assign every partition from its position on; return the partitions."""
        partitions = self._consumer.list_topics(self._topic, 30).topics[self._topic].partitions
        self._consumer.assign(
            [TopicPartition(self._topic, each, self._positions.get(each, OFFSET_BEGINNING)) for each in partitions]
        )
        return set(partitions)

    def _assign_anew(self) -> set[int]:
        self._consumer.close()
        self._open()
        return self._assign()

    def close(self) -> None:
        self._consumer.close()


def read_source(bootstrap: str, topic: str) -> Source:
    """Read the whole source topic."""
    source, reader = Source(), Reader(bootstrap, topic)
    for message in reader.read():
        headers = dict(message.headers())
        number = int(headers[NUMBER])
        if number in source.flights:
            raise AssertionError(f"the producers wrote record {number} twice: the storm cannot be judged")
        source.flights[number] = read_flight(message.value(), headers)
        source.bodies[number] = hash((message.key(), message.value()))
    reader.close()
    return source


@dataclass(slots=True)
class Judge:
    """Collects what is wrong as sentences. `restart`: when the broker was away, seconds since 1970."""

    source: Source
    delivery: str
    restart: tuple[float, float]
    trusts_clock: bool = True
    """Whether an ack is in Kafka within PROMPT_S. On a machine with too much to do it may not be."""
    faults: list[str] = field(default_factory=list)
    _names: dict[int, int] = field(default_factory=dict)
    """The record's number by sequence, over all outputs."""

    def find_wanted(self, consumer: Consumer) -> set[int]:
        """Return the numbers of the records that a consumer wants."""
        return {number for number, flight in self.source.flights.items() if consumer.wants(flight)}

    def judge(self, consumer: Consumer, deliveries: Sequence[Delivery], notes: Notes | None) -> None:
        """Compare one output with the source."""
        wanted, found = self.find_wanted(consumer), {each.number for each in deliveries}
        self._blame(consumer, "lost", wanted - found)
        self._blame(consumer, "not wanted", found - wanted)
        self._blame(consumer, "changed", {d.number for d in deliveries if self.source.bodies.get(d.number) != d.body})
        self._check_sequences(consumer, deliveries)
        self._check_order(consumer, deliveries)
        if self.delivery == "exactly_once":
            self._check_counts(consumer, deliveries)
        if notes is not None:
            self._check_acks(consumer, deliveries, notes)

    def judge_pulled(self, consumer: Consumer, notes: Notes) -> None:
        """Compare what an application has pulled with the source."""
        wanted = self.find_wanted(consumer)
        found = {number for numbers in notes.numbers.values() for number in numbers}
        self._blame(consumer, "lost", wanted - found)
        self._blame(consumer, "not wanted", found - wanted)
        odd = {s for s, numbers in notes.numbers.items() if numbers != {self._names.setdefault(s, min(numbers))}}
        self._blame(consumer, "sequences that name two records", odd)
        self._blame(consumer, "settled without an ack", notes.numbers.keys() - notes.acked.keys())

    def _blame(self, consumer: Consumer, what: str, which: set[int]) -> None:
        if which:
            self.faults.append(f"{consumer.name}: {what}: {len(which)}, such as {sorted(which)[:SHOWN]}")

    def _check_sequences(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        odd = {
            each.sequence for each in deliveries if self._names.setdefault(each.sequence, each.number) != each.number
        }
        self._blame(consumer, "sequences that name two records", odd)

    def _check_order(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        seen: set[int] = set()
        highest: dict[int, int] = defaultdict(int)
        late = set[int]()
        for each in sorted(deliveries, key=lambda d: (d.partition, d.offset)):
            if each.sequence not in seen:
                seen.add(each.sequence)
                if each.sequence < highest[each.partition]:
                    late.add(each.sequence)
                highest[each.partition] = max(highest[each.partition], each.sequence)
        self._blame(consumer, "sequences out of order", late)

    def _check_counts(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        own = sorted(each.consumer_sequence for each in deliveries)
        if own != list(range(1, len(own) + 1)):
            holes = set(range(1, len(own) + 1)) - set(own)
            self.faults.append(
                f"{consumer.name}: consumer sequences are not 1 to {len(own)}: missing {sorted(holes)[:SHOWN]}"
            )
        counts: dict[int, list[int]] = defaultdict(list)
        for each in sorted(deliveries, key=lambda d: d.consumer_sequence):
            counts[each.sequence].append(each.deliveries)
        if not consumer.acks:
            self._blame(consumer, "doubled", {s for s, found in counts.items() if len(found) > 1})
        self._blame(
            consumer,
            "sequences whose deliveries are not counted 1, 2, 3",
            {s for s, found in counts.items() if found != list(range(1, len(found) + 1))},
        )

    def _check_acks(self, consumer: Consumer, deliveries: Sequence[Delivery], notes: Notes) -> None:
        sequences = {each.sequence for each in deliveries}
        if consumer.acks_all:
            self._blame(consumer, "settled before it was taken", sequences - notes.taken.keys())
            highest = max(notes.acked, default=0)
            self._blame(consumer, "settled without an ack", {s for s in sequences if s > highest})
            return
        self._blame(consumer, "settled without an ack", sequences - notes.acked.keys())
        if self.delivery == "exactly_once":
            self._blame(consumer, "came again after ack_sync", set(self._find_confirmed(deliveries, notes)))
            if self.trusts_clock:
                self._blame(consumer, "came again though acked in time", set(self._find_prompt(deliveries, notes)))

    @staticmethod
    def _find_confirmed(deliveries: Sequence[Delivery], notes: Notes) -> Iterator[int]:
        for each in deliveries:
            at = notes.confirmed.get(each.sequence)
            # times of the log and of the application are of one clock; a millisecond is lost in the record's
            if at is not None and each.time / 1000 > at + 0.05:
                yield each.sequence

    def _find_prompt(self, deliveries: Sequence[Delivery], notes: Notes) -> Iterator[int]:
        last: dict[int, float] = {}
        begin, end = self.restart
        for each in sorted(deliveries, key=lambda d: d.consumer_sequence):
            before, time = last.get(each.sequence), each.time / 1000
            acked = notes.acked.get(each.sequence)
            if before is not None and acked is not None and each.sequence not in notes.nakked:
                is_away = begin - AWAY_S < acked < end + AWAY_S
                if before <= acked < before + PROMPT_S and not is_away:
                    yield each.sequence
            last[each.sequence] = time
