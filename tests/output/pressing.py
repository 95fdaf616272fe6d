"""Source records through Builder and back: what the slow twin expects and what the output batches hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from overlay.config.consumer import PartitionBy
from overlay.match import Addressed, Addressing
from overlay.output.assemble import Numbers, make_envelope
from overlay.output.batch_builder import BatchBuilder, OutputBatch, OutputTopic
from overlay.scan.codec import Codec
from overlay.subject import Pattern, SubjectRule
from tests.oracle import push
from tests.oracle.batches import Batch, Record, parse
from tests.oracle.subjects import escape
from tests.support.batches import build

STREAM, CONSUMER, NOW = "FLIGHTS", "late-jfk", 1_700_000_000_123
RULE = SubjectRule.from_template("t.{header:origin}")


@dataclass(frozen=True, slots=True)
class Settings:
    """How the output is written; as a consumer's file and its topic say."""

    partitions: int = 1
    partition_by: PartitionBy = PartitionBy.KEY
    max_message_bytes: int = 1_048_588
    codec: Codec = Codec.NONE
    transactional: bool = True
    sequenced: bool = True
    full: bool = False
    source_time: bool = False
    headers_only: bool = False
    more: tuple[tuple[str, bytes], ...] = ()
    counted: bool = False
    """Whether the numbers of deliveries and of pending messages are given."""

    def make_output_topic(self) -> OutputTopic:
        envelope = make_envelope(
            STREAM,
            CONSUMER,
            full=self.full,
            source_time=self.source_time,
            headers_only=self.headers_only,
            more=self.more,
        )
        return OutputTopic(
            "out",
            self.partitions,
            self.partition_by,
            self.max_message_bytes,
            self.codec,
            self.transactional,
            envelope,
        )


def builder(sources: Sequence[bytes], settings: Settings, *, partition: int = 0, first: int = 1) -> list[OutputBatch]:
    """All addressed records of some fetch buffers, in one round."""
    output_topic, maker = settings.make_output_topic(), BatchBuilder()
    addressing = Addressing(RULE, [Pattern.parse(">")])
    for data in sources:
        for piece in addressing.read("source", partition, np.frombuffer(data, np.uint8), 0):
            assert isinstance(piece, Addressed), piece
            rows = np.flatnonzero(piece.codes >= 0)
            if rows.size:
                sequences = piece.records.offset[rows] + 1 if settings.sequenced else np.zeros(rows.size, np.int64)
                numbers = Numbers(sequences, np.arange(first, first + rows.size))
                if settings.counted:
                    offsets = piece.records.offset[rows]
                    numbers = replace(numbers, deliveries=offsets % 12_000 + 1, pending=offsets * 7 % 1_000_003)
                maker.add(output_topic, piece, rows, partition, numbers, NOW)
                first += rows.size
    return [out for _, out in maker.flush()]


def decode(outgoing: OutputBatch, state: tuple[int, int, int] = (5, 1, 40)) -> Batch:
    """The batch as a broker would store it."""
    (batch,) = parse(outgoing.batch.build(*state))
    return batch


def expect(
    records: Sequence[Record], settings: Settings, *, partition: int = 0, first: int = 1
) -> dict[int, list[Record]]:
    """What the twin puts into each output partition; offsets within a batch are for the reader to compare."""
    wanted: dict[int, list[Record]] = {}
    for record in records:
        origin = next((value for name, value in reversed(record.headers) if name == b"origin"), None)
        if not origin:
            continue
        subject = "t." + escape(origin)
        sequence = record.offset + 1 if settings.sequenced else 0
        counts = (record.offset % 12_000 + 1, record.offset * 7 % 1_000_003) if settings.counted else (1, 0)
        time = record.timestamp * 1_000_000
        token = push.Token(STREAM, CONSUMER, counts[0], sequence, first, time, counts[1])
        headers = push.deliver(record, subject, token, full=settings.full, headers_only=settings.headers_only)
        headers += [(name.encode(), value) for name, value in settings.more]
        target = push.place(settings.partition_by.value, settings.partitions, partition, record.key, subject)
        time = record.timestamp if settings.source_time else NOW
        value = None if settings.headers_only else record.value
        wanted.setdefault(target, []).append(Record(record.offset, time, record.key, value, headers))
        first += 1
    return wanted


def check(records: Sequence[Record], sent: Sequence[OutputBatch], settings: Settings, **more: int) -> None:
    """Every batch is sound and small enough, and together they hold what the twin expects, in order."""
    found: dict[int, list[Record]] = {}
    for outgoing in sent:
        batch = decode(outgoing)
        assert batch.is_transactional == settings.transactional == outgoing.batch.is_transactional
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (5, 1, 40)
        assert (batch.base_offset, batch.codec, batch.count) == (0, settings.codec, outgoing.batch.count)
        assert [record.offset for record in batch.records] == list(range(batch.count))
        assert batch.last_offset_delta == batch.count - 1
        assert batch.max_timestamp == max(record.timestamp for record in batch.records)
        assert outgoing.batch.size == batch.batch_length + 12
        assert batch.count == 1 or outgoing.batch.size <= settings.max_message_bytes
        found.setdefault(outgoing.partition, []).extend(batch.records)
    wanted = expect(records, settings, **more)
    assert {p: [strip(r) for r in rs] for p, rs in found.items()} == {
        p: [strip(r) for r in rs] for p, rs in wanted.items()
    }


def strip(record: Record) -> tuple[object, ...]:
    """A record without its offset."""
    return record.timestamp, record.key, record.value, record.headers


def make_records(count: int, size: int = 100, *, start: int = 0) -> list[Record]:
    """Addressed records with values that do not compress."""
    noise = np.random.default_rng(count + start).bytes(count * size)
    return [
        Record(start + i, NOW - 5000 + i, b"key-%d" % (i % 11), noise[i * size : (i + 1) * size], [(b"origin", b"JFK")])
        for i in range(count)
    ]


def make_buffer(records: Sequence[Record], batch: int = 500) -> bytes:
    """Source batches of so many records."""
    parts = [records[at : at + batch] for at in range(0, len(records), batch)]
    return b"".join(build(part, base_offset=part[0].offset, codec=3) for part in parts)
