"""Fields of Avro values, found in the bytes: against fastavro's reading, and against the slow twin where bytes are broken."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overlay.avro import parse_schema
from overlay.errors import SchemaError
from overlay.field import Field, FieldKind
from overlay.scan import MALFORMED, MISSING, UNDECODED, Decoder, Records, make_plan
from overlay.scan.avro.reader import AvroFormat
from overlay.scan.avro.search import DEEPEST
from tests.oracle import avro as twin
from tests.oracle.batches import Record
from tests.support.avro import Schema, count_ms, decode, draw_value, encode, list_named, list_paths, schemas
from tests.support.batches import build
from tests.support.tight_arena import TightArena

SLOW_DRAWS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
Path = tuple[str, ...]
Text = bytes | int
ANSWERS = {twin.MISSING: MISSING, twin.BROKEN: MALFORMED, twin.UNKNOWN: UNDECODED}
FLAT = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}


def find(schemas: dict[int, Schema], values: Sequence[bytes | None], paths: Sequence[Path]) -> list[list[Text]]:
    """Per value, per path. Schemas are by id, 0 alone for values without a frame."""
    form = AvroFormat({id: parse_schema(schema) for id, schema in schemas.items()}, is_framed=0 not in schemas)
    arena = TightArena()
    plan = make_plan([Field(FieldKind.VALUE, ".".join(path)) for path in paths])
    decoder = Decoder(plan, arena=arena, values=form)
    records = [Record(i, 0, b"k", value, []) for i, value in enumerate(values)]
    found: list[list[Text]] = []
    for piece in decoder.decode(np.frombuffer(build(records), np.uint8)):
        assert isinstance(piece, Records)
        for row in range(len(piece)):
            slots = zip(piece.at[: len(paths), row].tolist(), piece.size[: len(paths), row].tolist(), strict=True)
            found.append([piece.buf[at : at + size].tobytes() if size >= 0 else size for at, size in slots])
    arena.check()
    assert len(found) == len(values)
    return found


def spells(text: Text, wanted: Any) -> bool:
    """Whether a text is that of a Python value, or an answer that of the twin."""
    match wanted:
        case object() if wanted in (twin.MISSING, twin.BROKEN, twin.UNKNOWN):
            return text == ANSWERS[wanted]
        case object() if wanted is twin.OTHER:
            return text in (b"{}", b"[]")
        case bool():
            return text == json.dumps(wanted).encode()
        case bytes():
            return text == b'"' + wanted.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
        case int():
            return text == b"%d" % wanted
        case Decimal():
            return isinstance(text, bytes) and Decimal(text.decode()) == wanted
        case float() if not math.isfinite(wanted):
            return text == b"NaN"
        case float():
            return isinstance(text, bytes) and same_double(float(text), wanted)
    raise AssertionError(f"{wanted!r} is no value of a field")


def same_double(one: float, other: float) -> bool:
    return struct.pack("<d", one) == struct.pack("<d", other)


def look_up(value: Any, path: Path) -> Any:
    """Return the field of what fastavro has read, as the twin gives it."""
    for step in path:
        if not isinstance(value, dict) or step not in value:
            return twin.MISSING
        value = value[step]
    match value:
        case None:
            return twin.MISSING
        case dict() | list():
            return twin.OTHER
        case str():
            return value.encode()
        case date():
            return count_ms(value)
        case _:
            return value


@st.composite
def encoded(draw: st.DrawFn) -> tuple[Schema, list[Path], list[bytes]]:
    """A schema, some paths, some values as fastavro encodes them."""
    schema = draw(schemas())
    paths = list(dict.fromkeys(list_paths(schema, list_named(schema))))
    chosen = draw(st.lists(st.sampled_from(paths), min_size=1, max_size=5, unique=True))
    count = draw(st.integers(1, 3))
    return schema, chosen, [encode(schema, draw_value(draw, schema)) for _ in range(count)]


@SLOW_DRAWS
@given(encoded())
def test_fields_are_what_fastavro_reads(drawn: tuple[Schema, list[Path], list[bytes]]) -> None:
    schema, paths, values = drawn
    for value, texts in zip(values, find({0: schema}, values, paths), strict=True):
        read = decode(schema, value)
        for path, text in zip(paths, texts, strict=True):
            wanted = look_up(read, path)
            assert spells(text, wanted), (path, text, wanted)
            assert spells(text, twin.find(schema, value, path))


@SLOW_DRAWS
@given(encoded(), st.data())
def test_broken_values_are_what_the_twin_says(
    drawn: tuple[Schema, list[Path], list[bytes]], data: st.DataObject
) -> None:
    """Cut, changed, random; with and without a frame. Each path as if it were the only one."""
    schema, paths, values = drawn
    framed = data.draw(st.booleans())
    broken = [data.draw(_break(value)) for value in values]
    if framed:
        head = st.sampled_from([b"\0\0\0\0\x07", b"\0\0\0\0\x08", b"\0", b"Obj\x01", b""])
        broken = [data.draw(head) + value for value in broken]
    known = {7: schema} if framed else {0: schema}
    found = find(known, broken, paths)
    assert [[texts[i] for i in range(len(paths))] for texts in found] == [
        [find(known, [value], [path])[0][0] for path in paths] for value in broken
    ]
    for value, texts in zip(broken, found, strict=True):
        for path, text in zip(paths, texts, strict=True):
            wanted = twin.find_framed(known, value, path) if framed else twin.find(schema, value, path)
            assert spells(text, wanted), (value, path, text, wanted)


def _break(value: bytes) -> st.SearchStrategy[bytes]:
    changed = st.tuples(st.integers(0, max(len(value) - 1, 0)), st.binary(min_size=1, max_size=2)).map(
        lambda change: value[: change[0]] + change[1] + value[change[0] + 1 :]
    )
    return st.integers(0, len(value)).map(lambda end: value[:end]) | changed | st.binary(max_size=24) | st.just(value)


@SLOW_DRAWS
@given(encoded())
def test_a_cut_value_answers_as_the_whole_does_or_is_malformed(drawn: tuple[Schema, list[Path], list[bytes]]) -> None:
    schema, paths, (value, *_) = drawn
    cuts = [value[:end] for end in range(len(value) + 1)][-40:]
    *parts, whole = find({0: schema}, cuts, paths)
    for part in parts:
        assert all(text in (MALFORMED, answer) for text, answer in zip(part, whole, strict=True))


def make(*fields: tuple[str, Schema]) -> Schema:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": type} for name, type in fields]}


def test_a_value_is_read_no_further_than_its_last_wanted_field() -> None:
    schema = make(("a", "long"), ("b", ["null", "string"]), ("c", "double"))
    assert find({0: schema}, [b"\x02", b"\x02\x63garbage"], [("a",)]) == [[b"1"], [b"1"]]
    assert find({0: schema}, [b"\x02\x63garbage"], [("a",), ("b",)]) == [[b"1", MALFORMED]]
    assert find({0: schema}, [b"\x02"], [("none",), ("a", "x")]) == [[MISSING, MISSING]]


@pytest.mark.parametrize(
    "counts",
    [
        b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # more items than any value has
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02",  # the least count there is, and a size
        b"\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a block whose size is below 0
        b"\x03\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # and one beyond the value
    ],
)
def test_blocks_that_lie_end_with_the_value(counts: bytes) -> None:
    for items in ("string", {"type": "array", "items": "long"}, "R"):
        schema = make(("l", {"type": "array", "items": items}), ("a", "long"))
        value = counts + b"\x02" * 6
        assert spells(find({0: schema}, [value], [("a",)])[0][0], twin.find(schema, value, ("a",)))


def test_items_without_bytes_take_no_time() -> None:
    schema = make(("l", {"type": "array", "items": "null"}), ("a", "long"))
    assert find({0: schema}, [b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x02"], [("a",)]) == [[b"1"]]


@pytest.mark.parametrize("deep", [1, DEEPEST - 1, DEEPEST, DEEPEST + 1, 100_000])
def test_records_within_themselves_have_a_limit(deep: int) -> None:
    """A list of a record in a record, each of which is a routine."""
    link = {"type": "record", "name": "Link", "fields": [{"name": "next", "type": ["null", "Link"]}]}
    schema = make(("first", link), ("a", "long"))
    value = b"\x02" * (deep - 1) + b"\x00" + b"\x0a"
    assert find({0: schema}, [value], [("a",)]) == [[b"5" if deep <= DEEPEST else MALFORMED]]
    assert find({0: schema}, [value], [("first", "next", "next")]) == [[b"{}" if deep > 2 else MISSING]]


@pytest.mark.parametrize(
    ("type", "raw", "text"),
    [
        ("double", struct.pack("<d", 5e-324), b"5e-324"),  # left to Python
        ("double", struct.pack("<d", math.inf), b"NaN"),
        ("double", struct.pack("<d", -0.0), b"-0"),
        ("float", struct.pack("<f", 0.1), b"0.10000000149011612"),
        ("boolean", b"\x02", MALFORMED),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", MALFORMED),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x01", MALFORMED),
        ("long", b"\xff" * 9 + b"\x01", b"-9223372036854775808"),
        ("long", b"\xff" * 10 + b"\x01", MALFORMED),
        ({"type": "long", "logicalType": "timestamp-micros"}, b"\x01", b"-1"),
        ({"type": "int", "logicalType": "date"}, b"\x01", b"-86400000"),
        ({"type": "int", "logicalType": "date"}, b"\xff" * 9 + b"\x01", MALFORMED),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, b"\x04\x04\xd2", b"12.34"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, b"\x00", b"0"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 40}, b"\x12" + b"\x01" * 9, b"NaN"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 40}, b"\x12" + b"\xff" * 8 + b"\x85", b"-123"),
        ({"type": "fixed", "name": "F", "size": 0}, b"", b'""'),
    ],
)
def test_texts(type: Schema, raw: bytes, text: Text) -> None:
    assert find({0: make(("x", type))}, [raw], [("x",)]) == [[text]]


def test_values_of_null_are_missing() -> None:
    assert find({0: FLAT}, [None], [("a",)]) == [[MISSING]]
    assert find({7: FLAT}, [None, b"\0\0\0\0\x07\x02"], [("a",)]) == [[MISSING], [b"1"]]


def test_a_double_that_python_spells_has_its_room() -> None:
    """Floats and doubles at the end of a slice, one after the other."""
    schema = make(*((f"f{i}", "double") for i in range(20)))
    doubles = [2.2250738585072014e-308 / (3 + i) for i in range(20)]
    value = b"".join(struct.pack("<d", double) for double in doubles)
    (texts,) = find({0: schema}, [value], [(f"f{i}",) for i in range(20)])
    assert texts == [repr(double).encode() for double in doubles]


def test_many_schemas_of_one_stream() -> None:
    """The limit on rows is one for each schema: a registry keeps all versions that there have been."""
    fields = [(f"f{i}", ["null", "string"]) for i in range(100)]
    known = {id: make(*fields, ("x", "long")) for id in range(1, 300)}
    value = b"\0" * 100 + b"\x0a"
    assert find(known, [b"\0\0\0\1\x2b" + value, b"\0\0\0\0\1" + value], [("x",)]) == [[b"5"], [b"5"]]


def test_a_schema_that_needs_too_many_rows_is_refused() -> None:
    """The search is written out for each way through unions."""
    other = make(("next", ["null", "R", "B"])) | {"name": "B"}
    with pytest.raises(SchemaError, match="too large"):
        find({0: make(("next", ["null", "R", other]))}, [b""], [("next",) * 18])


@pytest.mark.parametrize("byte", [0, 1, 2, 3, 4, 0x7F, 0x80, 0xFE, 0xFF])
def test_a_value_made_to_cost_much_costs_what_its_bytes_do(byte: int) -> None:
    """A megabyte of blocks without items, of items within items, of counts that lie: square costs would never end."""
    inner = make(("n", "null"), ("l", {"type": "array", "items": ["null", "I"]}), ("m", {"type": "map", "values": "I"}))
    schema = make(
        ("e", {"type": "array", "items": "null"}),
        ("r", {"type": "array", "items": {**inner, "name": "I"}}),
        ("x", "long"),
    )
    for front in (b"", b"\x00", b"\x00\xfe\xff\x7f"):
        assert find({0: schema}, [front + bytes([byte]) * 1_000_000], [("x",)])[0][0] in (MALFORMED, b"0", b"-1", b"1")
