"""confluent-kafka's consumer, filtering by headers in Python: what most Python users have today.

Records come in batches (`consume`), from a fetch queue that is allowed to run well ahead. The test looks for whole
header tuples with `in`, which runs in C; it tests those headers that decide and no others, and for "everything" it
tests nothing.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from confluent_kafka import Consumer, Message, TopicPartition

from bench.errors import PeerUnavailable
from bench.sides import Tally, Work

BATCH = 10_000
SILENCE_S = 30.0
FETCHING = {
    "fetch.message.max.bytes": 8 << 20,
    "fetch.max.bytes": 32 << 20,
    "queued.max.messages.kbytes": 256 << 10,
    "queued.min.messages": 1_000_000,
}
"""Fetches as large as ours, and a queue that never lets the fetcher wait."""


class ConfluentScan:
    name = "confluent"
    warm = True

    def run(self, work: Work) -> Tally:
        pick = make_pick(work)
        began = time.perf_counter()
        with open_consumer(work.bootstrap, work.topic) as consumer:
            read = matched = 0
            while read < work.records:
                messages = take(consumer, work, read)
                read += len(messages)
                matched += len(pick(messages))
            seconds = time.perf_counter() - began
        return Tally(read, matched, seconds)

    def close(self) -> None:
        """Nothing is kept between runs."""


@contextmanager
def open_consumer(bootstrap: str, topic: str, **more: object) -> Iterator[Consumer]:
    """A consumer of committed records with large fetches, in a group of its own, at the start of a topic's partition 0."""
    group = {"group.id": f"bench-{uuid.uuid4().hex}", "enable.auto.commit": False, "auto.offset.reset": "error"}
    settings = {"bootstrap.servers": bootstrap, "isolation.level": "read_committed", **group, **FETCHING, **more}
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        yield consumer
    finally:
        consumer.close()


def take(consumer: Consumer, work: Work, read: int) -> list[Message]:
    """The next messages, at most as many as are wanted. Raises PeerUnavailable after a long silence or for an error."""
    messages: list[Message] = consumer.consume(min(BATCH, work.records - read), SILENCE_S)
    failed = next((message.error() for message in messages if message.error()), None)
    if failed or not messages:
        why = failed.str() if failed else f"nothing came for {SILENCE_S:.0f} s"
        raise PeerUnavailable(f"confluent-kafka stopped at {work.topic}-0@{read}: {why}")
    return messages


def make_pick(work: Work) -> Callable[[Sequence[Message]], Sequence[Message]]:
    """The client's filter, as someone would write it who wants it fast."""
    wanted = [(name, value.encode()) for name, value in work.list_wanted().items()]
    if not wanted:
        return lambda messages: messages
    # the rarest first would be better still, but who filters does not know it; the order is the subject's
    first, rest = wanted[0], wanted[1:]
    if not rest:
        return lambda messages: [m for m in messages if first in (m.headers() or ())]

    def pick(messages: Sequence[Message]) -> Sequence[Message]:
        picked = []
        for message in messages:
            headers = message.headers() or ()
            if first in headers and all(pair in headers for pair in rest):
                picked.append(message)
        return picked

    return pick
