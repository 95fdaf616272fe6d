"""A topic of small orders: each has one of many customers, and its subject is `orders.CUSTOMER`.

Customers take turns, so that a slice of the log has records of all of them: the worst order for a service that has a
consumer for each. The customer is a header, the value some 100 bytes of JSON. In the value, `cents` takes each number below
CENTS once before it repeats; it is a property of the stream. lz4, one partition.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.outputs import Row, fill_topic

STREAM = "ORDERS"
DEADLINE_S = 60.0
CENTS = 100_000


@dataclass(frozen=True, slots=True)
class Orders:
    """`records` orders of `customers` customers, in a topic of one broker. All customers have equally many."""

    bootstrap: str
    records: int
    customers: int
    topic: str = field(default_factory=lambda: f"orders-{uuid.uuid4().hex[:8]}")

    def describe_stream(self) -> Mapping[str, object]:
        """Return the content of the stream's file."""
        return {
            "name": STREAM,
            "topics": [self.topic],
            "subject": {"template": "orders.{header:customer}"},
            "subjects": ["orders.>"],
            "properties": {"cents": {"type": "long", "from": "{value:cents}"}},
        }

    def list_rows(self) -> Iterator[Row]:
        """Yield the value and the headers of each order."""
        names = [name_customer(number).encode() for number in range(self.customers)]
        for number in range(self.records):
            customer = names[number % self.customers]
            value = b'{"order":%d,"customer":"%s","cents":%d,"note":"%032x"}' % (
                number, customer, number * 7 % CENTS, number * 0x9E3779B97F4A7C15,
            )  # fmt: skip
            yield value, [("customer", customer)]

    def publish(self, progress: Callable[[int], None]) -> None:
        """Make the topic and fill it. Raises WrongAnswer when Kafka does not take all."""
        client = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 3})
        client.create_topics([NewTopic(self.topic, num_partitions=1)])[self.topic].result(DEADLINE_S)
        fill_topic(self.bootstrap, self.topic, self.list_rows(), progress)


def name_customer(number: int) -> str:
    return f"c{number:05d}"
