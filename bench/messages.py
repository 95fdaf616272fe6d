"""Topics full of small messages: 200 bytes each that do not compress away, no key, no headers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.outputs import fill_topic, make_topic

SIZE = 200


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
        fill_topic(self.bootstrap, topic, ((value, []) for value in list_values(records)), progress)
        return MessageTopic(self.bootstrap, topic, records)


def list_values(records: int) -> Iterator[bytes]:
    """The same for every side."""
    rng = random.Random(1)
    bodies = [rng.randbytes(SIZE - 8) for _ in range(1_000)]
    return (number.to_bytes(8, "big") + bodies[number % len(bodies)] for number in range(records))
