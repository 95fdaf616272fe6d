"""The scan against the oracle: the same records, the same fields, the same faults."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overlay.scan import Decoder, Fault, Malformed, Records
from overlay.scan.codec import XERIAL, Arena
from tests.oracle.batches import Record
from tests.scan.compare import PLAN, as_array, read_oracle, read_scan
from tests.scan.test_oracle import MALFORMED, RECORDS, SOUND
from tests.support import batches as make
from tests.support.strategies import FetchBuffer, any_records, fetch_buffers

SLOW_DRAWS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
AFTER = make.build([Record(5000, 1, b"after", b"v")], base_offset=5000)


def _decoder(slice_bytes: int = 1 << 20, slice_rows: int = 1 << 16) -> Decoder:
    return Decoder(PLAN, slice_bytes=slice_bytes, slice_rows=slice_rows, arena=Arena(size=256, limit=1 << 22))


@SLOW_DRAWS
@given(fetch_buffers(), st.sampled_from([1, 300, 1 << 20]), st.sampled_from([1, 3, 1 << 16]))
def test_committed_records_of_any_fetch(fetch: FetchBuffer, slice_bytes: int, slice_rows: int) -> None:
    """Whatever the slices: the arena of 256 bytes has to grow in the middle of most of these."""
    decoder = _decoder(slice_bytes, slice_rows)
    reading = read_scan(as_array(fetch.data), decoder, fetch.aborted, stop=fetch.last_stable_offset)
    expected = read_oracle(fetch.data, fetch.aborted, stop=fetch.last_stable_offset)
    assert reading.seen == fetch.committed == expected.seen
    assert reading.fields == expected.fields
    assert reading.next_offset == expected.next_offset


@SLOW_DRAWS
@given(fetch_buffers(), st.data(), st.sampled_from([1, 3, 1 << 16]))
def test_from_any_position_to_any_stop(fetch: FetchBuffer, data: st.DataObject, slice_rows: int) -> None:
    """As a consumer with a position of its own reads a fetch that others share."""
    position = data.draw(st.integers(fetch.first_offset, fetch.next_offset + 2))
    stop = data.draw(st.integers(position, fetch.next_offset + 5))
    decoder = _decoder(slice_rows=slice_rows)
    reading = read_scan(as_array(fetch.data), decoder, fetch.aborted, position=position, stop=stop)
    expected = read_oracle(fetch.data, fetch.aborted, position=position, stop=stop)
    assert reading.seen == expected.seen
    assert reading.next_offset == expected.next_offset


@SLOW_DRAWS
@given(fetch_buffers())
def test_uncommitted_records_are_shown_when_asked_for(fetch: FetchBuffer) -> None:
    reading = read_scan(as_array(fetch.data), _decoder(), fetch.aborted, committed=False)
    assert reading.seen == read_oracle(fetch.data, committed=False).seen


@SLOW_DRAWS
@given(any_records(base_offset=77, max_size=12), st.integers(0, 4), st.booleans(), st.booleans())
def test_one_batch(records: list[Record], codec: int, xerial: bool, log_append_time: bool) -> None:
    buf = make.build(
        records, base_offset=77, codec=codec, xerial=xerial, log_append_time=log_append_time, max_timestamp=5
    )
    reading = read_scan(as_array(buf), _decoder())
    assert reading.seen == read_oracle(buf).seen
    assert reading.fields == read_oracle(buf).fields
    assert len(reading.seen) == len(records)


@pytest.mark.parametrize("reason", MALFORMED)
def test_malformed(reason: str) -> None:
    buf = MALFORMED[reason] + AFTER
    assert read_scan(as_array(buf), _decoder()).seen == read_oracle(buf).seen


def test_a_fault_hides_only_its_own_batch() -> None:
    bad = make.build(base_offset=1000, payload=b"\x7f" * 30, count=3, last_offset_delta=9)
    worse = make.build(base_offset=3000, codec=4, section=b"no zstd", count=3, last_offset_delta=99)
    torn = make.build(base_offset=4000, crc=1, count=2, last_offset_delta=1)
    buf = SOUND + bad + worse + torn + AFTER
    reading = read_scan(as_array(buf), _decoder())
    assert reading.seen == read_oracle(buf).seen
    assert reading.next_offset == 5001
    assert [(one.fault, one.base_offset, one.next_offset) for one in _faults(buf)] == [
        (Fault.RECORD, 1000, 1010),
        (Fault.DECOMPRESS, 3000, 3100),
        (Fault.CRC, 4000, 4002),
    ]


@pytest.mark.parametrize("delta", [3, 998, 999, 1_000, 2**31 - 1])
def test_a_damaged_range_of_offsets_hides_nothing_behind_it(delta: int) -> None:
    """It may reach over two billion offsets; the record count says where the batch ends."""
    torn = bytearray(make.build([Record(4000 + i, 5, b"k", b"v") for i in range(3)], base_offset=4000))
    torn[23:27] = delta.to_bytes(4, "big")
    buf = SOUND + bytes(torn) + AFTER
    reading = read_scan(as_array(buf), _decoder())
    records = [one for one in reading.seen if isinstance(one, Record)]
    assert records == read_scan(as_array(SOUND + AFTER), _decoder()).seen
    assert reading.next_offset == 5001
    assert [(one.fault, one.base_offset, one.next_offset) for one in _faults(buf)] == [(Fault.CRC, 4000, 4003)]
    assert [(one.base_offset, one.next_offset) for one in _faults(bytes(torn))] == [(4000, 4003)]


def test_a_range_of_offsets_that_compaction_left_wide_is_believed() -> None:
    wide = make.build([Record(4000, 5, b"k", b"v")], base_offset=4000, last_offset_delta=500)
    assert read_scan(as_array(SOUND + wide), _decoder()).next_offset == 4501


def _faults(buf: bytes) -> list[Malformed]:
    return [piece for piece in _decoder().decode(as_array(buf)) if isinstance(piece, Malformed)]


# the last four overflow an int32 when they are multiplied by the 7 bytes of the smallest record
LIES = [-1, -5, -(2**31), 2**31 - 1, 306_783_379, 613_566_757, 1_227_133_513, 1_840_700_270]


@pytest.mark.parametrize("count", LIES)
@pytest.mark.parametrize("payload", [b"", b"\x0c\x00\x00\x00\x01\x01\x00"])
def test_counts_that_lie(count: int, payload: bytes) -> None:
    """Neither a negative count nor one that overflows when multiplied may size the arrays that a later batch fills."""
    buf = make.build(base_offset=1, payload=payload, count=count) + AFTER
    decoder = _decoder()
    reading = read_scan(as_array(buf), decoder)
    assert reading.seen == read_oracle(buf).seen
    assert [fault.base_offset for fault in reading.faults] == [1]
    assert decoder._rows <= 4096


def test_a_marker_that_cannot_be_read_hides_nothing_behind_it() -> None:
    bad = make.build([Record(401, 0, b"\x00", b"")], base_offset=401, control=True, producer_id=7)
    buf = SOUND + bad + AFTER
    assert read_scan(as_array(buf), _decoder()).seen == read_oracle(buf).seen


def test_a_transaction_that_ended_before_the_position() -> None:
    """A consumer ahead of its neighbours starts behind the marker; what the producer committed since is its to see."""
    first = make.build([Record(0, 0, b"a", None)], transactional=True, producer_id=7)
    second = make.build([Record(2, 0, b"b", None)], base_offset=2, transactional=True, producer_id=7)
    buf = first + make.end_marker(1, 7, commit=False) + second + make.end_marker(3, 7, commit=True)
    for position in range(4):
        reading = read_scan(as_array(buf), _decoder(), [(7, 0)], position=position)
        assert reading.seen == read_oracle(buf, [(7, 0)], position=position).seen, position


def test_a_transaction_listed_twice_ends_once() -> None:
    first = make.build([Record(0, 0, b"a", None)], transactional=True, producer_id=7)
    second = make.build([Record(2, 0, b"b", None)], base_offset=2, transactional=True, producer_id=7)
    buf = first + make.end_marker(1, 7, commit=False) + second
    reading = read_scan(as_array(buf), _decoder(), [(7, 0), (7, 0)])
    assert [record.offset for record in reading.seen if isinstance(record, Record)] == [2]


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_refused_with_their_offset(magic: int) -> None:
    buf = SOUND + make.old_message(900, b"old", magic=magic)
    assert [(one.fault, one.base_offset) for one in _faults(buf)] == [(Fault.OLD_FORMAT, 900)]


@pytest.mark.parametrize("section", [b"\x00\x01", b"\x00NAPPY", XERIAL + struct.pack(">iii", 1, 1, 2) + b"\x00\x01"])
def test_snappy_that_says_it_is_empty_and_is_not(section: bytes) -> None:
    assert [one.fault for one in _faults(make.build(base_offset=10, codec=2, section=section))] == [Fault.DECOMPRESS]
    assert not _faults(make.build(base_offset=10, codec=2, section=b"\x00"))


def test_a_small_batch_that_inflates_without_end() -> None:
    bomb = make.build(RECORDS, base_offset=10, codec=4, payload=b"\x00" * (8 << 20))
    assert [one.fault for one in _faults(bomb)] == [Fault.TOO_LARGE]


@pytest.mark.parametrize("codec", range(5))
def test_many_small_batches(codec: int) -> None:
    """More than `split` finds in one go, and in two."""
    parts = [make.build([Record(i, i, b"%d" % i, b"v")], base_offset=i, codec=codec) for i in range(2500)]
    reading = read_scan(as_array(b"".join(parts)), _decoder())
    assert [record.offset for record in reading.seen if isinstance(record, Record)] == list(range(2500))


def test_a_large_record() -> None:
    """One record far larger than a slice, and than the arena at its start."""
    record = Record(3, 9, b"k" * 70_000, np.random.default_rng(1).bytes(700_000), [(b"origin", b"JFK")])
    for codec in range(5):
        reading = read_scan(as_array(make.build([record], base_offset=3, codec=codec) + AFTER), _decoder(1000))
        assert reading.seen[0] == record
        assert len(reading.seen) == 2


def test_batches_that_fit_only_alone() -> None:
    """Whether a batch can be read does not depend on those beside it."""
    records = [Record(at, 9, b"k", bytes(3 << 20), []) for at in range(3)]
    buf = b"".join(make.build([record], base_offset=record.offset, codec=4) for record in records)
    assert read_scan(as_array(buf), _decoder(8 << 20)).seen == records


def test_a_decoder_that_ran_out_of_memory_decodes_on() -> None:
    """Its arrays must be as large as it takes them to be: the walk checks no bounds."""
    records = [Record(i, 0, None, b"", []) for i in range(5000)]
    buf, decoder = as_array(make.build(records)), _decoder()
    plan, decoder.plan = decoder.plan, replace(decoder.plan, width=1 << 45)
    with pytest.raises((MemoryError, ValueError)):
        list(decoder.decode(buf))
    decoder.plan = plan
    piece = next(decoder.decode(buf))
    assert isinstance(piece, Records)
    assert piece.offset.tolist() == list(range(5000))
    assert piece.size.shape == (plan.width, 5000)
