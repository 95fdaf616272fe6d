"""overlay/deliver/{assemble,batch,outbox,partition}.py against the slow twin, through the independent batch parser."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.config.consumer import PartitionBy
from overlay.output.partition import murmur2
from overlay.scan.codec import Codec
from tests.oracle import push
from tests.oracle.batches import Record
from tests.output.pressing import NOW, Settings, builder, check, decode, make_buffer, make_records
from tests.support.batches import build
from tests.support.strategies import any_records, build_any, nullable_bytes

OURS = [push.SUBJECT, push.TOKEN, push.VALUE_SIZE, *push.FULL_NAMES]

outputs = st.builds(
    Settings,
    partitions=st.sampled_from([1, 1, 3, 7]),
    partition_by=st.sampled_from(PartitionBy),
    max_message_bytes=st.sampled_from([1_048_588, 20_000, 2_000, 700]),
    codec=st.sampled_from(Codec),
    transactional=st.booleans(),
    sequenced=st.booleans(),
    full=st.booleans(),
    source_time=st.booleans(),
    headers_only=st.booleans(),
    more=st.sampled_from([(), (("Overlay-Correlation-Id", b"7"), ("empty", b""))]),
    counted=st.booleans(),
)


@st.composite
def source_records(draw: st.DrawFn, base_offset: int) -> list[Record]:
    """Records as strategies.py makes them, most with a subject, some with headers that bear our names."""
    records = []
    for record in draw(any_records(base_offset)):
        headers = list(record.headers)
        for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
            name = draw(
                st.sampled_from(OURS) | st.sampled_from([b"Nats-Subjecu", b"Nats-Subjec", b"nats-subject", b"N"])
            )
            headers.insert(draw(st.integers(0, len(headers))), (name, draw(nullable_bytes)))
        if draw(st.integers(0, 3)):
            headers.append((b"origin", draw(st.sampled_from([b"JFK", b"LGA", b"a.b", "ö".encode(), b"x" * 90]))))
        records.append(replace(record, headers=headers))
    return records


@st.composite
def source_logs(draw: st.DrawFn) -> tuple[list[Record], list[bytes]]:
    """Fetch buffers of one partition and their records; the buffers are read one after the other."""
    records, buffers, offset = list[Record](), list[bytes](), draw(st.sampled_from([0, 5, 1 << 40]))
    for _ in range(draw(st.integers(1, 3))):
        part = draw(source_records(offset))
        buffers.append(build_any(draw, part, offset))
        records += part
        offset = int.from_bytes(buffers[-1][23:27], "big") + offset + 1
    return records, buffers


@given(log=source_logs(), output=outputs, partition=st.integers(0, 9), first=st.sampled_from([1, 99, 1 << 40]))
@settings(max_examples=120, deadline=None)
def test_output_is_what_the_twin_says(
    log: tuple[list[Record], list[bytes]], output: Settings, partition: int, first: int
) -> None:
    records, buffers = log
    check(records, builder(buffers, output, partition=partition, first=first), output, partition=partition, first=first)


@pytest.mark.parametrize("limit", [300, 1_000, 5_000, 17_000, 18_000, 40_000, 1_048_588, 5_000_000])
@pytest.mark.parametrize("codec", list(Codec))
def test_batches_stay_under_the_topic_s_limit(limit: int, codec: Codec) -> None:
    """With values that do not compress, which is where a codec adds to the size."""
    records = make_records(3_000, 200)
    output = Settings(max_message_bytes=limit, codec=codec)
    check(records, builder([make_buffer(records)], output), output)


def test_batches_are_filled() -> None:
    records = make_records(20_000, 200)
    sent = builder([make_buffer(records)], Settings())
    assert len(sent) <= 8  # some 6.5 MB
    assert sum(out.batch.count for out in sent) == len(records)


def test_a_record_larger_than_the_topic_takes_is_flagged_and_by_itself() -> None:
    small, huge = make_records(4, 50), make_records(1, 3_000_000, start=4)
    more = make_records(4, 50, start=5)
    records = small + huge + more
    output = Settings(codec=Codec.LZ4)
    sent = builder([make_buffer(small), make_buffer(huge), make_buffer(more)], output)
    check(records, sent, output)
    assert [(out.batch.count, out.oversized_offset) for out in sent] == [(4, -1), (1, 4), (4, -1)]


def test_a_large_record_that_compresses_is_delivered() -> None:
    record = Record(0, NOW, b"k", b"a" * 5_000_000, [(b"origin", b"JFK")])
    output = Settings(codec=Codec.ZSTD)
    sent = builder([build([record])], output)
    check([record], sent, output)
    assert [out.oversized_offset for out in sent] == [-1]


def test_records_of_every_size_around_the_limit() -> None:
    """The last record that fits and the first that does not, whatever the sizes of the varints in between."""
    for size in [*range(0, 300, 7), *range(16_000, 16_500, 13)]:
        records = make_records(9, size)
        output = Settings(max_message_bytes=18_000)
        check(records, builder([make_buffer(records)], output), output)


def test_producer_state_of_a_retry_replaces_the_first() -> None:
    (sent,) = builder([make_buffer(make_records(3))], Settings())
    assert decode(sent, (1, 0, 0)).base_sequence == 0
    again = decode(sent, (9, 2, 77))
    assert (again.producer_id, again.producer_epoch, again.base_sequence) == (9, 2, 77)


@given(st.binary(max_size=70))
def test_murmur2(data: bytes) -> None:
    padded = np.frombuffer(b"\xff" * 3 + data + b"\xff", np.uint8)
    assert int(murmur2(padded, 3, len(data))) == push.murmur2(data)


# from Kafka's own unit test of Utils.murmur2, as signed integers
KNOWN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("data", KNOWN)
def test_murmur2_of_known_keys(data: bytes) -> None:
    assert int(murmur2(np.frombuffer(data, np.uint8), 0, len(data))) == KNOWN[data] % (1 << 32)


EXTREMES = [0, -1, 1, 9_223_372_036_854, 9_223_372_036_855, -9_223_372_036_855, 1 << 57, (1 << 63) - 1, -(1 << 63)]


def test_any_timestamp_is_survived() -> None:
    """In a process of its own: a fault here would be the interpreter's end. Times beyond int64's nanoseconds are cut."""
    program = "from tests.output.test_batch_builder import press_extremes; press_extremes()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]


def press_extremes() -> None:
    for timestamp in EXTREMES:
        for source_time in (False, True):
            record = Record(0, timestamp, b"k", b"v", [(b"origin", b"JFK")])
            (sent,) = builder([build([record])], Settings(full=True, source_time=source_time))
            (out,) = decode(sent).records
            limit = 9_223_372_036_854
            shown = max(-limit, min(limit, timestamp)) * 1_000_000
            assert push.parse_token(dict(out.headers)[push.TOKEN] or b"").time == shown
            assert out.timestamp == (timestamp if source_time else NOW)
