"""What else could be asked the questions of the skip bench: confluent-kafka, and a NATS JetStream ordered consumer.

confluent reads all records in batches and tests a header in Python, or the timestamp; for "everything" it tests nothing.
Consumer and fetch settings are those of the scan bench.

nats has a copy of the records in file storage, under the subject plant.LINE.KIND.SHIFT. Its server applies the filter, so
the client receives matching messages only. It keeps no time but its own: for the window it is told the sequence at which the
window begins, and stops when it has all. Copying is not counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence

from confluent_kafka import Message

from bench.meters import Meters, Question
from bench.peers.confluent_scan import open_consumer, take
from bench.peers.nats import Message as NatsMessage
from bench.peers.nats import Server, copy, count
from bench.sides import Tally, Work

Pick = Callable[[Sequence[Message]], int]
STREAM = "meters"


class ConfluentSkip:
    name = "confluent"
    warm = False
    """It has nothing to compile, and a warm-up would read everything once more."""

    def run(self, question: Question) -> Tally:
        meters, pick = question.meters, _make_pick(question)
        work = Work(meters.bootstrap, meters.topic, meters.records, "")
        began = time.perf_counter()
        with open_consumer(work.bootstrap, work.topic) as consumer:
            read = matched = 0
            while read < work.records:
                messages = take(consumer, work, read)
                read += len(messages)
                matched += pick(messages)
            seconds = time.perf_counter() - began
        return Tally(read, matched, seconds)

    def close(self) -> None:
        """Nothing is kept between runs."""


def _make_pick(question: Question) -> Pick:
    wanted, window = question.header, question.window
    if window is not None:
        since, until = window
        return lambda messages: sum(since <= message.timestamp()[1] < until for message in messages)
    if wanted is None:
        return len
    return lambda messages: sum(wanted in (message.headers() or ()) for message in messages)


class NatsSkip:
    name = "nats"
    warm = False

    def __init__(self) -> None:
        self._server: Server | None = None

    def run(self, question: Question) -> Tally:
        if self._server is None:
            self._server = Server()
            asyncio.run(copy(self._server.url, STREAM, list_messages(question.meters), question.meters.records))
        found = question.matches
        start = int(found.argmax()) + 1 if question.window is not None else None
        records, expected = question.meters.records, int(found.sum())
        return asyncio.run(count(self._server.url, STREAM, question.subject, records, expected, start))

    def close(self) -> None:
        if self._server is not None:
            self._server.stop()


def list_messages(meters: Meters) -> Iterator[NatsMessage]:
    for _, value, pairs in meters.list_records():
        headers = {name: text.decode() for name, text in pairs}
        yield f"plant.{headers['line']}.{headers['kind']}.{headers['shift']}", value, headers
