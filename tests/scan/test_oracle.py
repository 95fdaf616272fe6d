"""The oracle and the builder, held against each other and against rules written out by hand."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.oracle.batches import HEADER_SIZE, Malformed, Record, parse, read_committed
from tests.support import batches as make
from tests.support.strategies import FetchBuffer, any_records, fetch_buffers, mutate

SLOW_DRAWS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
RECORDS = [
    Record(10, 1_700_000_000_000, None, b"", [(b"a", None), (b"a", b""), (b"a", b"last")]),
    Record(11, 1_600_000_000_000, b"", None, []),
    Record(400, 1_700_000_000_001, b"k" * 100, b"v" * 3000, [(b"", b"x"), ("größe".encode(), b"\xff")]),
]


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("xerial", [True, False])
def test_every_codec_reads_back(codec: int, xerial: bool) -> None:
    [batch] = parse(make.build(RECORDS, base_offset=10, codec=codec, xerial=xerial, producer_id=5, leader_epoch=3))
    assert batch.records == RECORDS
    assert (batch.codec, batch.count, batch.last_offset, batch.producer_id, batch.leader_epoch) == (codec, 3, 400, 5, 3)
    assert (batch.base_timestamp, batch.max_timestamp) == (1_700_000_000_000, 1_700_000_000_001)


@SLOW_DRAWS
@given(any_records(1 << 40), st.integers(0, 4), st.booleans())
def test_any_records_read_back(records: list[Record], codec: int, xerial: bool) -> None:
    [batch] = parse(make.build(records, base_offset=1 << 40, codec=codec, xerial=xerial))
    assert batch.records == records


def test_bytes_of_a_batch_written_out_by_hand() -> None:
    """So that builder and oracle cannot share a mistake about the layout."""
    record = bytes([0x14, 0x00, 0x02, 0x00, 0x02]) + b"k" + bytes([0x01, 0x02, 0x02]) + b"h" + bytes([0x01])
    assert len(record) == 1 + 0x14 // 2
    covered = bytes.fromhex(
        "0000" "00000000" "0000000000000064" "0000000000000065" "ffffffffffffffff" "ffff" "ffffffff" "00000001"
    )  # fmt: skip
    crc = _crc32c(covered + record)
    buf = struct.pack(">qiibI", 7, 49 + len(record), 0, 2, crc) + covered + record
    [batch] = parse(buf)
    assert batch.records == [Record(7, 101, b"k", None, [(b"h", None)])]
    assert make.build(batch.records, base_offset=7, base_timestamp=100) == buf


def test_crc_is_castagnoli() -> None:
    assert _crc32c(b"123456789") == 0xE3069283
    assert make.repair_crc(bytes(HEADER_SIZE))[17:21] == struct.pack(">I", _crc32c(bytes(HEADER_SIZE - 21)))


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("number", "wire"),
    [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (64, "8001"), (-64, "7f"), (-65, "8101"), (2**31 - 1, "feffffff0f")],
)
def test_varints(number: int, wire: str) -> None:
    assert make.varint(number).hex() == wire


def test_log_append_time_overrules_the_records() -> None:
    [batch] = parse(make.build(RECORDS, base_offset=10, log_append_time=True, max_timestamp=123))
    assert [record.timestamp for record in batch.records] == [123] * 3


def test_empty_batch_keeps_its_offsets() -> None:
    [batch] = parse(make.empty(100, 20))
    assert (batch.records, batch.last_offset) == ([], 119)


@pytest.mark.parametrize("codec", range(5))
def test_incomplete_last_batch_is_left_out(codec: int) -> None:
    whole, cut = make.build(RECORDS, base_offset=10, codec=codec), make.build(RECORDS[:1], base_offset=500)
    for size in range(len(cut)):
        assert [batch.base_offset for batch in parse(whole + cut[:size])] == [10]


def _payload(*records: bytes) -> bytes:
    return make.build(payload=b"".join(records), count=len(records), last_offset_delta=10)


def _body(
    *, offset: int = 0, key: bytes = b"\x01", value: bytes = b"\x01", headers: bytes = b"\x00", over: int = 0
) -> bytes:
    body = b"\x00\x00" + make.varint(offset) + key + value + headers
    return make.varint(len(body) + over) + body


SOUND = make.build(RECORDS, base_offset=10)
MALFORMED = {
    "CRC": make.build(RECORDS, base_offset=10, crc=1),
    "batch length 48": make.build(RECORDS, batch_length=48),
    "old message format (0)": make.old_message(3, b"v", magic=0, key=b"k"),
    "old message format (1)": make.old_message(3, b"v", magic=1),
    "unknown magic (3)": make.build(RECORDS, magic=3),
    "count -1": make.build(count=-1),
    "base offset": make.build(RECORDS, base_offset=-5),
    "last offset delta -1": make.build(last_offset_delta=-1),
    "unknown codec 5": make.build(RECORDS, codec=5),
    "unknown codec 7": make.build(RECORDS, codec=7),
    "cannot decompress": make.build(RECORDS, codec=4, section=b"no zstd"),
    "3 bytes after the last record": make.build(payload=_body() + b"abc", count=1, last_offset_delta=5),
    "record length of 1 bytes passes": make.build(count=1),
    "record of 14 bytes passes": _payload(_body(over=8)),
    "1 bytes after the record's last field": _payload(_body(headers=b"\x00\x00")),
    "key size -2": _payload(_body(key=b"\x03")),
    "value size -2": _payload(_body(value=b"\x03")),
    "key of 64 bytes passes": _payload(_body(key=b"\x80\x01")),
    "header count -1": _payload(_body(headers=b"\x01")),
    "header name of -1 bytes": _payload(_body(headers=b"\x02\x01\x01")),
    "header value size -2": _payload(_body(headers=b"\x02\x00\x03")),
    "header name size of 1 bytes passes": _payload(_body(headers=b"\x04\x00\x01")),
    "longer than a 32-bit": _payload(_body(key=b"\x80\x80\x80\x80\x80\x00")),
    "does not fit 32 bits": _payload(_body(key=b"\x80\x80\x80\x80\x10")),
    "offset delta 11 after -1": _payload(_body(offset=11)),
    "offset delta -1 after -1": _payload(_body(offset=-1)),
    "offset delta 2 after 2": _payload(_body(offset=2), _body(offset=2)),
}


@pytest.mark.parametrize("reason", MALFORMED)
def test_malformed(reason: str) -> None:
    base = int.from_bytes(MALFORMED[reason][:8], "big", signed=True)
    with pytest.raises(Malformed) as caught:
        parse(MALFORMED[reason])
    assert reason in caught.value.reason
    assert caught.value.base_offset == base


def test_what_precedes_a_malformed_batch_is_kept() -> None:
    with pytest.raises(Malformed) as caught:
        parse(SOUND + make.build([Record(500, 0, None, None)], base_offset=500, crc=1) + SOUND)
    assert caught.value.base_offset == 500
    assert [batch.records for batch in caught.value.before] == [RECORDS]


def test_batches_may_not_overlap() -> None:
    with pytest.raises(Malformed, match="ends at 400"):
        parse(SOUND + make.build([Record(400, 0, None, None)], base_offset=400))


def test_old_messages_are_what_old_brokers_wrote() -> None:
    """Message format 1: offset i64, size i32, crc i32 (of the rest), magic, attributes, timestamp, key, value."""
    message = make.old_message(3, b"v", magic=1, timestamp=9)
    assert struct.unpack_from(">qi", message) == (3, len(message) - 12)
    assert struct.unpack_from(">I", message, 12)[0] == zlib.crc32(message[16:])
    assert message[16:] == bytes.fromhex("01 00 0000000000000009 ffffffff 00000001 76")


def _transactional(offset: int, producer: int) -> bytes:
    record = Record(offset, 0, None, b"%d" % offset)
    return make.build([record], base_offset=offset, transactional=True, producer_id=producer)


def _committed(buf: bytes, aborted: list[tuple[int, int]], stable: int = 1000) -> list[int]:
    return [record.offset for record in read_committed(parse(buf), aborted, stable)]


def test_aborted_transactions_end_at_their_marker() -> None:
    buf = b"".join(
        [
            _transactional(0, 7),
            _transactional(1, 8),
            _transactional(2, 7),
            make.end_marker(3, 7, commit=False),
            make.build([Record(4, 0, None, None)], base_offset=4, producer_id=8),  # not transactional: no part of it
            _transactional(5, 7),
            _transactional(6, 8),
            make.end_marker(7, 8, commit=True),
            make.end_marker(8, 7, commit=False),
            _transactional(9, 7),
        ]
    )
    assert _committed(buf, [(7, 0), (7, 5)]) == [1, 4, 6, 9]
    assert _committed(buf, [(7, 5), (7, 0), (7, 0)]) == [1, 4, 6, 9]
    assert _committed(buf, [(7, 0), (7, 5), (8, 1)]) == [4, 9]
    assert _committed(buf, [(7, 0), (7, 5)], stable=6) == [1, 4]


def test_a_marker_without_its_record_ends_nothing() -> None:
    gone = make.build(base_offset=1, control=True, transactional=True, producer_id=7)
    assert _committed(_transactional(0, 7) + gone + _transactional(2, 7), [(7, 0)]) == []


def test_a_marker_that_cannot_be_read_is_malformed() -> None:
    bad = make.build([Record(1, 0, b"\x00\x00\x00", b"")], base_offset=1, control=True, producer_id=7)
    with pytest.raises(Malformed, match="control record"):
        _committed(_transactional(0, 7) + bad, [(7, 0)])


@SLOW_DRAWS
@given(fetch_buffers())
def test_fetch_buffers_hold_what_they_say(fetch: FetchBuffer) -> None:
    batches = parse(fetch.data)
    assert len(batches) == fetch.batches
    assert read_committed(batches, fetch.aborted, fetch.last_stable_offset) == fetch.committed


def test_mutations_reach_past_the_crc() -> None:
    """Decided by the seed alone; never a crash of the oracle; and most of the damage not caught by the CRC."""
    buf = SOUND
    reasons: list[str] = []
    for seed in range(1500):
        mutated = mutate(seed, buf)
        assert mutated == mutate(seed, buf)
        try:
            parse(mutated)
        except Malformed as error:
            reasons.append(error.reason)
    assert sum("CRC" in reason for reason in reasons) < len(reasons) / 4
    parts = ("key", "value", "header name", "header value", "header count", "offset delta", "record length", "codec")
    for part in parts:
        assert any(part in reason for reason in reasons), f"no mutation reached the {part}"
