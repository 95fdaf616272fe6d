"""Values that are no JSON: named as what they are, and read where their format is declared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.avro import parse_schema
from overlay.field import Field, FieldKind
from overlay.inspect.formats import ValueFormat
from overlay.inspect.formats import recognise as inspect
from overlay.scan import (
    MALFORMED,
    MISSING,
    UNDECODED,
    Decoder,
    Encoding,
    Fault,
    Malformed,
    Records,
    decode,
    make_plan,
)
from overlay.scan.avro.reader import AvroFormat
from overlay.scan.codec import Arena
from overlay.scan.values import recognise
from tests.oracle.batches import Record
from tests.support.avro import encode
from tests.support.batches import build

PLAN = make_plan([Field(FieldKind.VALUE, "a"), Field(FieldKind.VALUE, "b.c")])

REGISTRIES = (ValueFormat.JSON_REGISTRY, ValueFormat.AVRO_REGISTRY, ValueFormat.PROTOBUF_REGISTRY)


def find(values: Sequence[bytes | None], decoder: Decoder) -> list[list[bytes | int]]:
    """Per value, the text of each field or the size that says why there is none."""
    records = [Record(i, 0, b"key", value, []) for i, value in enumerate(values)]
    (piece,) = [p for p in decoder.decode(np.frombuffer(build(records, codec=3), np.uint8)) if len_of(p)]
    assert isinstance(piece, Records)
    return [
        [
            piece.buf[at : at + size].tobytes() if size >= 0 else size
            for at, size in zip(piece.at[:2, row].tolist(), piece.size[:2, row].tolist(), strict=True)
        ]
        for row in range(len(piece))
    ]


def len_of(piece: object) -> int:
    assert isinstance(piece, Records)
    return len(piece)


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (b"\x00\x00\x00\x00\x07\x02\x06abc", UNDECODED),  # Avro of a registry
        (b'\x00\x00\x00\x00\x07{"a":1}', UNDECODED),  # JSON of a registry
        (b"Obj\x01\x04", UNDECODED),
        (b"\x00\x00\x00\x00\x07", MALFORMED),  # a frame around nothing
        (b"Obj\x02", MALFORMED),
        (b"\x08\x96\x01", MALFORMED),  # bare Protobuf has no log positions
        (b"hello", MALFORMED),
        (b"\xff", MALFORMED),
        (b"", MALFORMED),
        (b"[1]", MISSING),
        (b" 12", MISSING),
        (b"true", MISSING),
        (None, MISSING),
    ],
)
def test_a_value_without_fields_says_why(value: bytes | None, size: int) -> None:
    assert find([b'{"a":1}', value, b'{"b":{"c":2}}'], Decoder(PLAN)) == [
        [b"1", MISSING],
        [size, size],
        [MISSING, b"2"],
    ]


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=12) | st.binary(max_size=12).map(b"Obj\x01".__add__) | st.binary(max_size=12).map(b"\0".__add__)
)
def test_the_scan_and_init_name_the_same_formats(value: bytes) -> None:
    """`overlay init` looks closer, at a sample; what log positions itself they must call the same."""
    found = recognise(np.frombuffer(value, np.uint8), 0, len(value))
    form = inspect(value)
    assert (found == Encoding.REGISTRY) == (form in REGISTRIES)
    assert (found == Encoding.AVRO_FILE) == (form is ValueFormat.AVRO_FILE)


ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "a", "type": "long"},
        {"name": "b", "type": {"type": "record", "name": "Inner", "fields": [{"name": "c", "type": "string"}]}},
    ],
}
AVRO = b"\x0a\x06xyz"  # a = 5, b.c = "xyz"
FIVE, TEXT = b"5", b'"xyz"'


def test_a_declared_format_takes_the_place_of_json() -> None:
    decoder = Decoder(PLAN, values=AvroFormat({0: parse_schema(ORDER)}, is_framed=False))
    assert find([AVRO, None, AVRO[:3], b"", b'{"a":1}', AVRO + b"more"], decoder) == [
        [FIVE, TEXT],
        [MISSING, MISSING],
        [FIVE, MALFORMED],
        [MALFORMED, MALFORMED],
        [b"-62", MALFORMED],
        [FIVE, TEXT],
    ]


def test_a_schema_is_found_by_the_id_in_front_of_the_value() -> None:
    other = {**ORDER, "fields": ORDER["fields"][1:]}
    schemas = {7: parse_schema(ORDER), 70_000: parse_schema(other)}
    decoder = Decoder(PLAN, values=AvroFormat(schemas, is_framed=True))
    values = [
        b"\0\0\0\0\7" + AVRO,
        b"\0\0\1\x11\x70" + AVRO[1:],
        b"\0\0\0\0\x08" + AVRO,
        b"\0\0\0\0\7",
        b"\0\0\0\0",
        AVRO,
        b"",
        b"Obj\x01",
        b"\0\0\0\0\7" + AVRO,
    ]
    assert find(values, decoder) == [
        [FIVE, TEXT],
        [MISSING, TEXT],
        [UNDECODED, UNDECODED],
        *([[MALFORMED, MALFORMED]] * 4),
        [UNDECODED, UNDECODED],
        [FIVE, TEXT],
    ]


@pytest.mark.parametrize("codec", [0, 3])
def test_texts_of_a_slice_do_not_overwrite_its_records(codec: int) -> None:
    """Longer texts than the arena has room for, in batches of one fetch and of several slices."""
    values = [AVRO[:1] + b"\xfe\x07" + b'"' * 511] * 40
    batches = [
        build([Record(at + i, 0, b"key", value, []) for i, value in enumerate(values)], base_offset=at, codec=codec)
        for at in range(0, 400, 40)
    ]
    arena = Arena(256, 1 << 22)
    decoder = Decoder(
        PLAN, slice_bytes=50_000, arena=arena, values=AvroFormat({0: parse_schema(ORDER)}, is_framed=False)
    )
    seen = 0
    for piece in decoder.decode(np.frombuffer(b"".join(batches), np.uint8)):
        assert isinstance(piece, Records)
        for row in range(len(piece)):
            at, size = piece.at[:, row].tolist(), piece.size[:, row].tolist()
            texts = [piece.buf[a : a + n].tobytes() for a, n in zip(at, size, strict=True)]
            assert texts == [FIVE, b'"' + b'\\"' * 511 + b'"', values[0]]
            seen += 1
    assert seen == 400


def test_records_whose_texts_need_much_room_come_in_several_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """One record's texts may need more than the room; the others go with their neighbours."""
    monkeypatch.setattr(decode, "TEXT_BYTES", 1_000)
    lengths = [1, 1, 400, 2_000, 1, 300, 0, 1]
    values = [encode_order("x" * length) for length in lengths]
    batches = [
        build([Record(at + i, 0, b"key", value, []) for i, value in enumerate(values)], base_offset=at)
        for at in (0, len(values))
    ]
    buf = np.frombuffer(b"".join(batches), np.uint8)
    for start in range(2 * len(values)):
        decoder = Decoder(PLAN, values=AvroFormat({0: parse_schema(ORDER)}, is_framed=False))
        seen, position, slices = [], start, 0
        for piece in decoder.decode(buf, start):
            assert isinstance(piece, Records)
            rooms = decoder._extractor.find_room(piece.size[PLAN.value_slot]) if decoder._extractor else np.zeros(1)
            assert len(piece) <= 1 or rooms.sum() <= 1_000
            assert piece.offset.tolist() == list(range(position, piece.next_offset))
            seen += [int(size) - 2 for size in piece.size[1]]
            position, slices = piece.next_offset, slices + 1
        assert seen == (lengths * 2)[start:]
        assert position == 2 * len(values)
        assert start or slices > 4


@pytest.mark.parametrize("codec", [0, 4])
def test_the_limit_of_a_batch_does_not_depend_on_texts_that_were_written_before(codec: int) -> None:
    """A value near the limit needs more room for its texts than the limit. The next batch gets none of it."""
    arena = Arena(256, 1 << 20)
    decoder = Decoder(PLAN, arena=arena, values=AvroFormat({0: parse_schema(ORDER)}, is_framed=False))
    before = build([Record(0, 0, None, encode_order("x" * 1_000_000), [])], codec=codec)
    bomb = build([Record(1, 0, None, encode_order("x" * 1_200_000), [])], base_offset=1, codec=codec)
    after = build([Record(2, 0, None, AVRO, [])], base_offset=2, codec=codec)
    pieces = decoder.decode(np.frombuffer(before + bomb + after, np.uint8))
    # each piece is looked at while it is valid
    sizes = [piece.fault if isinstance(piece, Malformed) else piece.size[1].tolist() for piece in pieces]
    assert sizes[:3] == [[1_000_002], Fault.TOO_LARGE, [5]]
    assert arena.buf.size <= arena.limit


def encode_order(text: str) -> bytes:
    return AVRO[:1] + encode("string", text)
