"""Topics full of small messages: 200 bytes each that do not compress away, no key, no headers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.errors import WrongAnswer
from bench.outputs import make_topic
from bench.peers.confluent_push import open_producer

SIZE = 200
DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class MessageTopic:
    """A topic of one partition that holds `records` messages."""

    bootstrap: str
    name: str
    records: int


@dataclass(frozen=True, slots=True)
class Messages:
    """Where they go."""

    bootstrap: str

    def publish(self, records: int, progress: Callable[[int], None]) -> MessageTopic:
        topic = make_topic(self.bootstrap, "messages")
        producer = open_producer(self.bootstrap, transactional=False, idempotent=True)
        for number, value in enumerate(list_values(records), start=1):
            while True:
                try:
                    producer.produce(topic, value, partition=0)
                    break
                except BufferError:
                    producer.poll(0.05)
            if number % 65_536 == 0:
                progress(number)
        if left := producer.flush(DEADLINE_S):
            raise WrongAnswer(f"{topic}: {left} of {records} records were not taken. See the broker's log")
        return MessageTopic(self.bootstrap, topic, records)


def list_values(records: int) -> Iterator[bytes]:
    """The same for every side."""
    rng = random.Random(1)
    bodies = [rng.randbytes(SIZE - 8) for _ in range(1_000)]
    return (number.to_bytes(8, "big") + bodies[number % len(bodies)] for number in range(records))
