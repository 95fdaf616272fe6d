"""Whether a storm over a crowd broke a promise: the outputs against the source, record by record, in plain Python.

The promises, for each consumer:

- every order that it wants is in its output, no other one is, and each is as it was written;
- one stream sequence names one order in all outputs;
- `exactly_once`: consumer sequences count from 1 without a hole or a repetition, and an order comes again only with acks and
  the next number of deliveries;
- with acks nothing is settled without one.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaException, TopicPartition

from tests.oracle.push import parse_token

from .plan import NUMBER, PARTITIONS, STREAMS, Consumer, Order, name_topic

SHOWN = 5
Id = tuple[str, str]


class Delivery(NamedTuple):
    """A record of an output. `body`: hash of key and value."""

    number: int
    body: int
    sequence: int
    consumer_sequence: int
    deliveries: int


@dataclass
class Source:
    """The orders of all streams by number, and the hash of the key and value of each."""

    orders: dict[int, Order] = field(default_factory=dict)
    bodies: dict[int, int] = field(default_factory=dict)


class Reader:
    """The committed records of the partitions of some topics, more at each call of `read`."""

    def __init__(self, bootstrap: str, topics: Mapping[str, int]) -> None:
        """`topics`: with their numbers of partitions."""
        settings = {"group.id": "judge", "isolation.level": "read_committed", "enable.auto.commit": False}
        self._consumer = KafkaConsumer({"bootstrap.servers": bootstrap, **settings})
        parts = [(topic, number) for topic, count in topics.items() for number in range(count)]
        self._consumer.assign([TopicPartition(topic, number, 0) for topic, number in parts])

    def read(self, silence_s: float = 0.3) -> Iterator[tuple[bytes | None, bytes | None, dict[str, bytes]]]:
        """Yield key, value and headers of each record, until none has come for so many seconds."""
        while found := self._consumer.consume(2_000, silence_s):
            for message in found:
                if (error := message.error()) is not None:
                    if error.fatal():
                        raise KafkaException(error)
                    continue
                yield message.key(), message.value(), dict(message.headers() or ())

    def close(self) -> None:
        self._consumer.close()


def read_source(bootstrap: str, written: int) -> Source:
    """Return the orders of all streams, of which so many were written."""
    source = Source()
    for stream in range(STREAMS):
        reader = Reader(bootstrap, {name_topic(stream): PARTITIONS})
        for key, value, headers in reader.read(2.0):
            number = int(headers[NUMBER])
            kind, city = (int(headers[name][1:]) for name in ("kind", "city"))
            source.orders[number] = Order(stream, kind, city, json.loads(value or b"")["amount"])
            source.bodies[number] = hash((key, value))
        reader.close()
    if len(source.orders) != written:
        raise AssertionError(f"{len(source.orders)} of {written} orders could be read back")
    return source


class Outputs:
    """All deliveries in the output topics, by consumer."""

    def __init__(self, bootstrap: str, topics: Mapping[str, int]) -> None:
        self._reader = Reader(bootstrap, topics)
        self.deliveries: dict[Id, list[Delivery]] = defaultdict(list)
        self.numbers: dict[Id, set[int]] = defaultdict(set)

    def read(self, silence_s: float = 0.3) -> None:
        """Read what has come since the last call."""
        for key, value, headers in self._reader.read(silence_s):
            if (text := headers.get("Nats-Reply-To")) is None:
                continue
            token, number = parse_token(text), int(headers[NUMBER])
            found = Delivery(number, hash((key, value)), token.sequence, token.consumer_sequence, token.deliveries)
            self.deliveries[token.stream, token.consumer].append(found)
            self.numbers[token.stream, token.consumer].add(number)

    def close(self) -> None:
        self._reader.close()


@dataclass
class Judge:
    """Collects what is wrong in `faults`."""

    source: Source
    faults: list[str] = field(default_factory=list)
    _names: dict[tuple[str, int], int] = field(default_factory=dict)
    """The order that each sequence of a stream names."""

    def find_wanted(self, consumer: Consumer) -> set[int]:
        orders = self.source.orders.items()
        return {number for number, order in orders if order.stream == consumer.stream and consumer.wants(order)}

    def judge(self, consumer: Consumer, deliveries: Sequence[Delivery], acked: Collection[int] | None) -> None:
        """`acked`: the stream sequences that an application has acked; None for a consumer without acks."""
        self.judge_numbers(consumer, {each.number for each in deliveries})
        wrong = {each.number for each in deliveries if self.source.bodies.get(each.number) != each.body}
        self._blame(consumer, "not as they were written", wrong)
        stream = consumer.id[0]
        odd = {
            each.sequence
            for each in deliveries
            if self._names.setdefault((stream, each.sequence), each.number) != each.number
        }
        self._blame(consumer, "sequences that name two orders", odd)
        if consumer.is_exact:
            self._check_counts(consumer, deliveries)
        if acked is not None:
            self._blame(consumer, "settled without an ack", {each.sequence for each in deliveries} - set(acked))

    def judge_numbers(self, consumer: Consumer, found: set[int]) -> None:
        """Compare the orders that have come with those that the consumer wants."""
        wanted = self.find_wanted(consumer)
        self._blame(consumer, "lost", wanted - found)
        self._blame(consumer, "not wanted", found - wanted)

    def _check_counts(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        own = sorted(each.consumer_sequence for each in deliveries)
        if own != list(range(1, len(own) + 1)):
            self.faults.append(f"{'/'.join(consumer.id)}: consumer sequences are not 1 to {len(own)}")
        counts: dict[int, list[int]] = defaultdict(list)
        for each in sorted(deliveries, key=lambda delivery: delivery.consumer_sequence):
            counts[each.number].append(each.deliveries)
        if not consumer.is_acked:
            self._blame(consumer, "doubled", {number for number, found in counts.items() if len(found) > 1})
        odd = {number for number, found in counts.items() if found != list(range(1, len(found) + 1))}
        self._blame(consumer, "deliveries are not counted 1, 2, 3", odd)

    def _blame(self, consumer: Consumer, what: str, which: set[int]) -> None:
        if which:
            self.faults.append(f"{'/'.join(consumer.id)}: {what}: {len(which)}, such as {sorted(which)[:SHOWN]}")
