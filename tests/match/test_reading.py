"""Columns of a slice: each source and type, alone and with others to fall back on. test_masks.py has the long comparison."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from overlay.field import Field, FieldKind
from overlay.match import Addressed, Addressing
from overlay.match.properties import Given, Source
from overlay.match.reading import Reading
from overlay.scan import MALFORMED
from overlay.scan.columns import TYPES, Column
from overlay.subject import Pattern, SubjectRule
from tests.oracle.batches import Record
from tests.support.batches import build

TAIL, LEG = Field(FieldKind.VALUE, "tail"), Field(FieldKind.VALUE, "leg.no")
DELAY, OTHER = Field(FieldKind.HEADER, "delay"), Field(FieldKind.HEADER, "other")
KEY = Field(FieldKind.KEY)
RECORDS = [
    Record(0, 1000, b"1", b'{"tail":"N1","leg":{"no":7}}', [(b"delay", b"1.5"), (b"to", b"a")]),
    Record(1, 999, b"x", b'{"tail":12,"leg":{"no":7.5}}', [(b"delay", b"late"), (b"to", b"b")]),
    Record(2, -1, None, b'{"tail":null,"leg":[', [(b"delay", None), (b"other", b"3"), (b"to", b"a")]),
    Record(3, 1, b"3", b'{"tail', [(b"to", b"7")]),
]


def read_slice(records: list[Record] = RECORDS, topic: str = "flights") -> Addressed:
    rule = SubjectRule.from_template("{header:to}")
    addressing = Addressing(rule, [Pattern(">")])
    data = np.frombuffer(build(records), np.uint8).copy()
    piece = next(addressing.read(topic, 4, data, 0, more=(TAIL, LEG, DELAY, OTHER, KEY)))
    assert isinstance(piece, Addressed)
    return piece


def plain(column: Column, type: str) -> list[Any]:
    array = column.array
    array.validate(full=True)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    assert array.type == TYPES[type]
    values: list[Any] = (array.cast(pa.int64()) if pa.types.is_timestamp(array.type) else array).to_pylist()
    return values


@pytest.mark.parametrize(
    ("source", "type", "expected", "nulls"),
    [
        (Source((TAIL,)), "string", ["N1", None, None, None], {"unparsable": 1, "malformed": 1}),
        (Source((LEG,)), "long", [7, None, None, None], {"unparsable": 1, "malformed": 1}),
        (Source((DELAY,)), "double", [1.5, None, None, None], {"unparsable": 1}),
        (Source((KEY,)), "long", [1, None, None, 3], {"unparsable": 1}),
        (Source((), Given.TOPIC), "string", ["flights"] * 4, {}),
        (Source((), Given.TOPIC), "boolean", [None] * 4, {"unparsable": 4}),
        (Source((), Given.PARTITION), "long", [4] * 4, {}),
        (Source((), Given.TIMESTAMP), "timestamp", [1000, 999, None, 1], {}),
        (Source((), Given.TIMESTAMP), "string", ["1000", "999", None, "1"], {}),
        (Source((), Given.SUBJECT), "string", ["a", "b", "a", "7"], {}),
        (Source((), Given.SUBJECT), "long", [None, None, None, 7], {"unparsable": 3}),
        # the first that is there counts, even when it cannot be read
        (Source((DELAY, OTHER)), "double", [1.5, None, 3.0, None], {"unparsable": 1}),
        (Source((DELAY, OTHER, KEY)), "double", [1.5, None, 3.0, 3.0], {"unparsable": 1}),
        (Source((OTHER,), Given.TOPIC), "string", ["flights", "flights", "3", "flights"], {}),
        (Source((OTHER,), Given.SUBJECT), "string", ["a", "b", "3", "7"], {}),
        (Source((OTHER,), Given.TIMESTAMP), "timestamp", [1000, 999, 3, 1], {}),
        (Source((DELAY,), Given.TIMESTAMP), "long", [None, None, None, 1], {"unparsable": 2}),
    ],
)
def test_every_kind_of_source(source: Source, type: str, expected: list[Any], nulls: dict[str, int]) -> None:
    made = Reading(read_slice()).read(source, type)
    assert plain(made, type) == expected
    assert made.count_nulls() == nulls
    rows = np.array([3, 0], np.int64)
    some = Reading(read_slice(), rows).read(source, type)
    assert plain(some, type) == [expected[3], expected[0]]
    assert some.count_nulls() == made.count_nulls(rows)


def test_what_is_the_same_for_all_records_is_a_dictionary_of_one() -> None:
    made = Reading(read_slice()).read(Source((OTHER,), Given.TOPIC), "string")
    assert pa.types.is_string(made.array.type)
    bare = [Record(i, 0, None, None, [(b"to", b"a")]) for i in range(50)]
    for given in (Given.TOPIC, Given.SUBJECT, Given.PARTITION):
        made = Reading(read_slice(bare)).read(Source((OTHER,), given), "string")
        assert len(made.array.dictionary) == 1


def test_a_field_that_was_not_scanned_is_refused() -> None:
    with pytest.raises(ValueError, match=re.escape("{header:x}")):
        Reading(read_slice()).read(Source((Field(FieldKind.HEADER, "x"),)), "long")


def test_columns_outlive_the_slice() -> None:
    piece = read_slice()
    sources = [(Source((field,)), "string") for field in (TAIL, DELAY, KEY)]
    sources += [(Source((), given), "string") for given in Given] + [(Source((), Given.TIMESTAMP), "timestamp")]
    made = [(Reading(piece).read(source, type), type) for source, type in sources]
    before = [plain(column, type) for column, type in made]
    for array in (piece.records.timestamp, piece.records.at, piece.records.size):
        array[:] = MALFORMED
    piece.records.buf[:] = 0xFF
    assert [plain(column, type) for column, type in made] == before
