"""Index records: there and back, and whatever else may stand in a topic."""

from __future__ import annotations

import os
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.index.skip import bloom
from overlay.index.skip.chunk_header import Header
from overlay.index.skip.encode import (
    Flaw,
    Foreign,
    decode,
    decode_key,
    encode,
    encode_key,
    parse,
    parse_values,
    read_header,
)
from overlay.index.skip.zones import Bounds
from overlay.scan.crc import crc32c
from tests.index.headers import any_headers

PLAIN = Header("flights", 3, 5, 10, 4, 3, 777, 100, 200, 2, 0xFFFFFFFF, True, 99, (1,), bloom.NONE, {"a.b": 1, "ü": 2})
FUZZ = int(os.environ.get("OVERLAY_FUZZ", "400"))


@settings(deadline=None)
@given(any_headers())
def test_there_and_back(header: Header) -> None:
    key, value = encode(header)
    assert decode(value) == header
    assert decode_key(key) == (header.topic, header.partition, header.first_offset)
    assert key.decode() == f"chunk {header.topic} {header.partition} {header.first_offset}"


def test_the_layout_is_what_the_table_says() -> None:
    """Written with struct from the table in the module's docstring."""
    zone = struct.pack("<IBBq8xq8x", 7, 0, 3, -3, 9)
    body = struct.pack("<BBqqqqqIIiqiIIHHHH", 3, 0, 5, 10, 777, 100, 200, 4, 3, 2, 0xFFFFFFFF, 3, 99, 0, 7, 1, 1, 2)
    body += b"flights" + struct.pack("<I", 1) + zone + struct.pack("<IHIH", 1, 3, 2, 2) + "a.bü".encode()
    value = b"\1\1" + struct.pack("<I", crc32c(body)) + body
    header = replace(PLAIN, zones={7: Bounds("long", -3, 9, True)})
    assert encode(header) == (b"chunk flights 3 5", value)
    assert decode(value) == header


def test_keys() -> None:
    assert encode_key("t", 0, 7) == b"chunk t 0 7"
    for other in (b"", b"chunk t 0", b"run t 0 7", b"chunk t 0 7 8", b"chunk t 0 -7", b"\xff", b"chunk t x 7"):
        assert decode_key(other) is None


def reseal(body: bytes) -> bytes:
    """A value with any body behind a CRC that is right."""
    return b"\1\1" + struct.pack("<I", crc32c(body)) + body


VALUE = encode(PLAIN)[1]
BODY = VALUE[6:]


@pytest.mark.parametrize(
    ("value", "flaw"),
    [
        (None, Flaw.EMPTY),
        (b"", Flaw.EMPTY),
        (b"\2" + VALUE[1:], Flaw.VERSION),
        (b"{}", Flaw.VERSION),
        (b"\1", Flaw.KIND),
        (b"\1\2" + VALUE[2:], Flaw.KIND),
        (VALUE[:50], Flaw.SHORT),
        (VALUE[:-1], Flaw.CRC),
        (VALUE + b"x", Flaw.CRC),
        (VALUE[:-1] + b"x", Flaw.CRC),
        (reseal(BODY + b"x"), Flaw.SIZES),
        (reseal(BODY[:-1]), Flaw.SIZES),
        (reseal(BODY[:74] + b"\xff\xff" + BODY[76:]), Flaw.SIZES),
        (reseal(BODY[:2] + struct.pack("<qq", 10, 10) + BODY[18:]), Flaw.FIGURES),
        (reseal(BODY[:2] + struct.pack("<qq", -1, 10) + BODY[18:]), Flaw.FIGURES),
        (reseal(b"\1" + BODY[1:]), Flaw.FIGURES),
        (reseal(BODY[:46] + struct.pack("<I", 5) + BODY[50:]), Flaw.FIGURES),
    ],
)
def test_what_is_no_header_says_why(value: bytes | None, flaw: Flaw) -> None:
    assert parse_values([value]).flaws.tolist() == [flaw]
    answer = decode(value)
    assert isinstance(answer, Foreign)
    assert answer.reason


@settings(max_examples=FUZZ, deadline=None)
@given(any_headers(), st.data())
def test_damage_is_seen(header: Header, data: st.DataObject) -> None:
    """Cut, flipped, stuffed: Foreign, and with a CRC that is right never an exception."""
    value = bytearray(encode(header)[1])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(value) - 1))
        match data.draw(st.sampled_from(["flip", "cut", "stuff"])):
            case "flip":
                value[at] ^= data.draw(st.integers(1, 255))
            case "cut" if at:
                del value[at:]
            case _:
                value[at:at] = data.draw(st.binary(min_size=1, max_size=4))
    damaged = bytes(value)
    if damaged != encode(header)[1]:
        assert isinstance(decode(damaged), Foreign)
    decode(reseal(damaged[6:]))


@settings(max_examples=FUZZ, deadline=None)
@given(st.binary(max_size=200))
def test_anything_else_is_foreign(value: bytes) -> None:
    assert isinstance(decode(value), Foreign)
    decode(reseal(value))


@settings(deadline=None)
@given(st.lists(any_headers() | st.binary(max_size=10) | st.none(), max_size=6), st.binary(max_size=5))
def test_many_are_read_where_they_lie(found: list[Header | bytes | None], before: bytes) -> None:
    values = [encode(one)[1] if isinstance(one, Header) else one for one in found]
    buf, at, size = before, [], []
    for value in values:
        at.append(len(buf))
        size.append(-1 if value is None else len(value))
        buf += (value or b"") + b"\xee"
    block = parse(np.frombuffer(buf, np.uint8), np.array(at, np.int64), np.array(size, np.int64))
    for row, one in enumerate(found):
        if isinstance(one, Header):
            assert block.flaws[row] == Flaw.NONE
            assert read_header(block, row) == one
        else:
            assert block.flaws[row]


def test_more_subjects_than_a_header_counts_are_refused() -> None:
    counts = {f"s.{i}": 1 for i in range(65)}
    with pytest.raises(ValueError, match="65 subjects"):
        encode(replace(PLAIN, subjects=counts))
