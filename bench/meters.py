"""The data of the skip bench: a day of a factory's meters, made so that each question finds its records in one way.

Record i of n, in one partition, in the order of time over one day, in batches of BATCH records (lz4):

- `line`, one of 60, stays for runs of 5,000 records: a value that is clustered.
- `shift`, one of 60, is another one for each record: a value that is interleaved.
- `kind` is `power`, and `alarm` for one record in a million (for one record when there are fewer).
- `machine`, in the JSON value, goes with the line; it is what SQL asks for.

Line, shift and kind are headers. A record has some 200 bytes. Two streams look at the topic: METERS has the subject
`plant.LINE.KIND`, and SHIFTS `shift.SHIFT.KIND`. A record's subject on the side of NATS holds all tokens.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.errors import WrongAnswer
from overlay.arrays import Flags, Ints

RUN, VALUES, MILLION = 5_000, 60, 1_000_000
BATCH = 512
DAY_MS = 86_400_000
BEGIN_MS = 1_735_689_600_000
"""The first of January 2025, UTC."""
DEADLINE_S = 60.0
STREAMS: Mapping[str, Mapping[str, object]] = {
    "METERS": {
        "subject": {"template": "plant.{header:line}.{header:kind}"},
        "properties": {"machine": {"type": "string", "from": "{value:machine}"}},
        "index": {"terms": ["machine"], "chunk_records": 1024, "chunk_age": "1s"},
    },
    "SHIFTS": {"subject": {"template": "shift.{header:shift}.{header:kind}"}, "index": {"chunk_age": "1s"}},
}
"""What their files say beside their names and topics.

METERS is cut into smaller chunks than by default, for readers of few records. SHIFTS is not. The last chunk of either
is handed out after a second, so that nothing of the topic is left without a header.
"""

Headers = list[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Meters:
    """`records` of them in a topic of one broker."""

    bootstrap: str
    records: int
    topic: str = field(default_factory=lambda: f"meters-{uuid.uuid4().hex[:8]}")

    @property
    def numbers(self) -> Ints:
        return np.arange(self.records)

    def is_alarm(self, number: Any) -> Any:
        return number % MILLION == min(MILLION, self.records) // 2

    def find_time(self, number: Any) -> Any:
        """Ms since 1970."""
        return BEGIN_MS + number * DAY_MS // self.records

    def list_records(self) -> Iterator[tuple[int, bytes, Headers]]:
        """Time, value and headers of each."""
        for number in range(self.records):
            line, kind = number // RUN % VALUES, b"alarm" if self.is_alarm(number) else b"power"
            value = (
                f'{{"id": {number}, "machine": "machine-{line:02d}", "watts": {number * 7919 % 100_003},'
                f' "volts": {230 + number % 7}, "phase": {number % 3}, "state": "running", "checked": true,'
                ' "firmware": "2.14.3-rc1", "note": null}'
            )
            shift = b"s%02d" % (number % VALUES)
            headers = [("line", b"line%02d" % line), ("shift", shift), ("kind", kind)]
            yield self.find_time(number), value.encode(), headers

    def publish(self, progress: Callable[[int], None]) -> int:
        """Fill the topic; returns the bytes of all records before compression."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        kept = NewTopic(self.topic, num_partitions=1, config={"retention.ms": "-1"})  # the records are old
        admin.create_topics([kept])[self.topic].result(DEADLINE_S)
        batching = {"linger.ms": 500, "batch.num.messages": BATCH, "batch.size": 1_000_000}
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "compression.type": "lz4",
                "enable.idempotence": True,
                "delivery.report.only.error": True,
                **batching,
            }
        )
        size = 0
        for count, (time, value, headers) in enumerate(self.list_records(), start=1):
            size += len(value) + sum(len(name) + len(text) for name, text in headers)
            while True:
                try:
                    producer.produce(self.topic, value, headers=headers, partition=0, timestamp=time)
                    break
                except BufferError:
                    producer.poll(0.05)
            if count % 65_536 == 0:
                progress(count)
        if left := producer.flush(DEADLINE_S):
            raise WrongAnswer(f"{self.topic}: {left} of {self.records} records were not taken. See the broker's log")
        return size


@dataclass(frozen=True, slots=True)
class Question:
    """The same question for every side, in its own words."""

    meters: Meters
    stream: str
    ask: Mapping[str, Any]
    """Of our client."""
    header: tuple[str, bytes] | None
    """The header that decides, for a client that tests them itself; None for all records."""
    subject: str
    """Of the copy on the side of NATS: plant.LINE.KIND.SHIFT."""
    window: tuple[int, int] | None = None
    """since <= time < until, in ms."""

    @property
    def matches(self) -> Flags:
        """Of each record, whether it is meant: from the data alone."""
        numbers = self.meters.numbers
        if self.window is not None:
            times = self.meters.find_time(numbers)
            found: Flags = (times >= self.window[0]) & (times < self.window[1])
            return found
        match self.header:
            case ("line", line):
                return np.asarray(numbers // RUN % VALUES == int(line[4:]))
            case ("shift", shift):
                return np.asarray(numbers % VALUES == int(shift[1:]))
            case ("kind", _):
                return np.asarray(self.meters.is_alarm(numbers))
        return np.ones(numbers.size, np.bool_)


LINE, SHIFT = 7, 17
MINUTE = 61
"""The minute of the day that is asked for; our own full scan begins there as well, since Kafka knows the times of offsets."""


def list_questions(meters: Meters) -> dict[str, Question]:
    """The cases of the bench."""
    line, shift = f"line{LINE:02d}", f"s{SHIFT:02d}"
    since = BEGIN_MS + MINUTE * 60_000
    by_line, by_shift = ("line", line.encode()), ("shift", shift.encode())
    one_line = f"plant.{line}.*.*"
    window = (since, since + 60_000)
    ask = {
        "clustered": ("METERS", {"subjects": f"plant.{line}.power"}, by_line, f"plant.{line}.power.*", None),
        "million": ("METERS", {"subjects": "*.*.alarm"}, ("kind", b"alarm"), "*.*.alarm.*", None),
        "window": ("METERS", {"since": _tell(since), "until": _tell(since + 60_000)}, None, ">", window),
        "interleaved": ("SHIFTS", {"subjects": f"shift.{shift}.*"}, by_shift, f"*.*.*.{shift}", None),
        "match-all": ("METERS", {}, None, ">", None),
        "wildcard": ("METERS", {"subjects": f"*.{line}.*"}, by_line, one_line, None),
        "sql-equality": ("METERS", {"sql": f"machine = 'machine-{LINE:02d}'"}, by_line, one_line, None),
    }
    return {case: Question(meters, *parts) for case, parts in ask.items()}


def _tell(ms: int) -> str:
    return str(np.datetime64(ms, "ms")) + "Z"
