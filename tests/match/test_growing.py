"""Values whose schemas become known one by one, against a format that knows them all from the beginning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from overlay.avro import parse_schema
from overlay.config.schema_book import SchemaBook
from overlay.config.values import ValueFormat
from overlay.errors import SchemaError
from overlay.field import Field, FieldKind
from overlay.match.growing import GrowingFormat
from overlay.scan import UNDECODED, Decoder, Records, make_plan
from overlay.scan.avro import program
from overlay.scan.avro.reader import AvroFormat
from tests.oracle.batches import Record
from tests.support.avro import encode
from tests.support.batches import build

FIRST: Any = {"type": "record", "name": "Order", "fields": [{"name": "country", "type": "string"}]}
SECOND: Any = {**FIRST, "fields": [{"name": "total", "type": "long"}, *FIRST["fields"]]}
LONG: Any = {
    **FIRST,
    "fields": [{"name": "x", "type": {"type": "enum", "name": "E", "symbols": ["S" * 300]}}, *FIRST["fields"]],
}
SCHEMAS = {7: FIRST, 8: SECOND, 9: LONG}
PLAN = [Field(FieldKind.VALUE, "country")]


def make_data() -> Any:
    order = {"country": 'D"K', "total": 5, "x": "S" * 300}
    values = [b"\0" + id.to_bytes(4, "big") + encode(SCHEMAS[id], order) for id in (7, 8, 9, 7)]
    return np.frombuffer(build([Record(i, 5, None, value) for i, value in enumerate(values)]), np.uint8)


def read(decoder: Decoder, data: Any) -> list[bytes | int]:
    return [
        piece.buf[at : at + size].tobytes() if size >= 0 else int(size)
        for piece in decoder.decode(data)
        if isinstance(piece, Records)
        for at, size in zip(piece.at[0].tolist(), piece.size[0].tolist(), strict=True)
    ]


def test_a_decoder_takes_up_what_its_book_learns() -> None:
    book, data = SchemaBook({}, None), make_data()
    decoder = Decoder(make_plan(PLAN), values=GrowingFormat(ValueFormat.AVRO, book))
    assert read(decoder, data) == [UNDECODED] * 4
    text = b'"D\\"K"'
    for id, wanted in ((7, [text, UNDECODED, UNDECODED, text]), (9, [text, UNDECODED, text, text]), (8, [text] * 4)):
        book.add(id, SCHEMAS[id])
        assert read(decoder, data) == wanted
    whole = AvroFormat({id: parse_schema(schema) for id, schema in SCHEMAS.items()}, is_framed=True)
    assert read(Decoder(make_plan(PLAN), values=whole), data) == [text] * 4


def test_a_schema_that_comes_between_finding_room_and_searching_is_not_used_yet() -> None:
    """It could need more room than was found."""
    book = SchemaBook({7: FIRST}, None)
    plan = make_plan([Field(FieldKind.VALUE, "x")])
    extractor = GrowingFormat(ValueFormat.AVRO, book).prepare(plan.paths)
    value = b"\0\0\0\0\x09" + encode(LONG, {"country": "", "x": "S" * 300})
    at, size = np.zeros((plan.width, 1), np.int64), np.full((plan.width, 1), len(value), np.int64)
    room = int(extractor.find_room(size[plan.value_slot])[0])
    book.add(9, LONG)
    buf = np.concatenate((np.frombuffer(value, np.uint8), np.zeros(room, np.uint8)))
    extractor.extract(buf, at, size, plan.value_slot, 0, 1, len(value))
    assert size[0, 0] == UNDECODED
    assert int(extractor.find_room(size[plan.value_slot])[0]) > room


def test_a_schema_that_is_too_large_costs_its_own_values_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    large: Any = {**FIRST, "fields": [{"name": f"f{i}", "type": ["null", "int"]} for i in range(50)] + FIRST["fields"]}
    monkeypatch.setattr(program, "MOST_ROWS", 100)
    with pytest.raises(SchemaError):
        AvroFormat({8: parse_schema(large)}, is_framed=True).prepare(make_plan(PLAN).paths)
    book = SchemaBook({7: FIRST, 8: large}, None)
    found = read(Decoder(make_plan(PLAN), values=GrowingFormat(ValueFormat.AVRO, book)), make_data())
    assert found == [b'"D\\"K"', UNDECODED, UNDECODED, b'"D\\"K"']
