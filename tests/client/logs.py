"""A topic with everything that a log can hold, and what an independent client reads from it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer

import overlay
from overlay.client import Client
from overlay.filter import Filter
from tests.oracle.push import wants
from tests.support.kafka import await_markers
from tests.support.service import write_service_file
from tests.worker.scenes import Seen, read_committed

BASE = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PLACES = ("rome", "oslo", "bonn", None)
PREFIX = "t."
KEPT = {"retention.ms": "-1"}
"""The records are old."""


def fill(bootstrap: str, topic: str, partitions: int, *, rounds: int = 10, each: int = 120, seed: int = 1) -> None:
    """Transactions of all codecs, every third aborted; times out of order, keys, values and headers of all kinds."""
    rng = random.Random(seed)
    for codec in CODECS:
        settings = {"compression.type": codec, "transactional.id": f"{topic}-{codec}", "batch.num.messages": 30}
        producer = Producer({"bootstrap.servers": bootstrap, **settings})
        producer.init_transactions(30)
        for number in range(rounds // len(CODECS) + 1):
            producer.begin_transaction()
            for _ in range(each):
                _produce(producer, topic, rng, partitions)
            producer.flush(30)
            if number % 3 == 1:
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)
    await_markers(bootstrap, topic)


def _produce(producer: Producer, topic: str, rng: random.Random, partitions: int) -> None:
    to, delay = rng.choice(PLACES), rng.choice(["5", "70.5", "x", None])
    headers: list[tuple[str, str | bytes | None]] = [("delay", delay)] if delay else []
    headers += [("odd", b"\xff\x00"), ("null", None)] if rng.random() < 0.2 else []
    if to:
        headers += [("to", "elsewhere"), ("to", to)]  # the last one counts
    value = rng.choice([b'{"n": %d}' % rng.randrange(100), b"", None, b"\xfe\xff", b"x" * rng.randrange(300)])
    producer.produce(
        topic,
        value,
        rng.choice([None, b"", b"key", b"\xff"]),
        rng.randrange(partitions),
        timestamp=BASE + rng.randrange(5_000),
        headers=headers,
    )


@dataclass(slots=True)
class Log:
    """`seen` is what confluent-kafka reads with read_committed, by partition and in order."""

    client: Client
    topic: str
    seen: dict[int, list[Seen]] = field(default_factory=dict)

    @property
    def addressed(self) -> dict[int, list[Seen]]:
        return {p: [record for record in seen if record.header(b"to")] for p, seen in self.seen.items()}


def open_log(bootstrap: str, folder: Path, topic: str) -> Log:
    """The topic as stream S: subject `t.{header:to}`, properties delay (double), raw (binary, the header odd) and n (long,
    in the value)."""
    write_service_file(folder, bootstrap)
    (folder / "streams").mkdir()
    (folder / "streams" / "s.yaml").write_text(
        f"name: S\ntopics: [{topic}]\nsubject: {{template: '{PREFIX}{{header:to}}'}}\nproperties:\n"
        "  delay: double\n  raw: {type: binary, from: '{header:odd}'}\n  n: {type: long, from: '{value:n}'}\n"
    )
    log = Log(overlay.open(folder), topic)
    for record in read_committed(bootstrap, topic):
        log.seen.setdefault(record.partition, []).append(record)
    return log


def is_wanted(record: Seen, subjects: Sequence[str], since: int | None, until: int | None) -> bool:
    to = (record.header(b"to") or b"").decode()
    return (
        bool(to)
        and wants(subjects, PREFIX + to)
        and (since is None or record.timestamp >= since)
        and (until is None or record.timestamp < until)
    )


def read_properties(record: Seen) -> dict[str, Any]:
    """The application properties of a record: those that the stream declares, and other headers as strings."""
    raw = dict(record.headers)
    found: dict[str, Any] = {name.decode(): value if _is_text(value) else None for name, value in raw.items()}
    if b"odd" in raw:
        found["raw"] = raw[b"odd"]
    if b"delay" in raw:
        found["delay"] = None if raw[b"delay"] == b"x" else float(raw[b"delay"] or b"")
    return found


def _is_text(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def passes(compiled: Filter, record: Seen) -> bool | None:
    """The row evaluator's answer."""
    return compiled.matches({"application_properties": read_properties(record)})


def merge_last(partitions: Mapping[int, Sequence[Seen]], count: int) -> list[Seen]:
    """From the partitions' ends, each time the record with the latest timestamp; the later partition of equals."""
    left = {partition: list(records) for partition, records in sorted(partitions.items())}
    taken: list[Seen] = []
    while len(taken) < count and any(left.values()):
        best = max((p for p in left if left[p]), key=lambda p: (left[p][-1].timestamp, p))
        taken.append(left[best].pop())
    return taken[::-1]


def name_offsets(records: Iterable[Seen]) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in records]


def read_offsets(batches: Iterable[pa.RecordBatch]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for batch in batches:
        found += zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)
    return found


def by_partition(found: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    split: dict[int, list[int]] = {}
    for partition, offset in found:
        split.setdefault(partition, []).append(offset)
    return split
