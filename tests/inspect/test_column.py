"""Columns of a sample and their types."""

from __future__ import annotations

import pytest

from overlay.config import PropertyType
from overlay.field import Field, FieldKind
from overlay.inspect.column import MAX_COLUMNS, count_unnamed, find_arrays, find_columns, guess_type, join_types
from overlay.inspect.sample import SampledRecord
from tests.inspect.samples import make_record


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0", PropertyType.LONG),
        ("-17", PropertyType.LONG),
        ("9223372036854775807", PropertyType.LONG),
        ("9223372036854775808", PropertyType.DOUBLE),
        ("007", PropertyType.STRING),
        ("1.5", PropertyType.DOUBLE),
        ("1e9", PropertyType.DOUBLE),
        ("true", PropertyType.BOOLEAN),
        ("True", PropertyType.STRING),
        ("2013-01-01T05:00:00Z", PropertyType.TIMESTAMP),
        ("2013-01-01T05:00:00.123456789+02:00", PropertyType.TIMESTAMP),
        ("2013-01-01T05:00:00", PropertyType.STRING),
        ("2013-13-01T05:00:00Z", PropertyType.STRING),
        ("١٢", PropertyType.STRING),
        ("JFK", PropertyType.STRING),
    ],
)
def test_type_of_a_text(text: str, wanted: PropertyType) -> None:
    assert guess_type(text) is wanted


def test_types_join_to_the_one_that_reads_all() -> None:
    long, double, text = PropertyType.LONG, PropertyType.DOUBLE, PropertyType.STRING
    assert join_types([long, long]) is long
    assert join_types([long, double]) is double
    assert join_types([long, PropertyType.BOOLEAN]) is text
    assert join_types([text, PropertyType.BINARY]) is PropertyType.BINARY


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([1.5] * 987 + ["2.5"] * 2, PropertyType.DOUBLE),
        ([1] * 98 + [2.5, "x"], PropertyType.DOUBLE),
        ([1] * 99 + ["x"], PropertyType.LONG),
        ([1] * 98 + ["x", "y"], PropertyType.STRING),
        ([True] * 99 + ["x"], PropertyType.BOOLEAN),
        ([1] * 99 + ["0150"], PropertyType.STRING),
        (["a"] * 99 + [1], PropertyType.STRING),
    ],
)
def test_a_type_that_nearly_all_values_fit(values: list[object], wanted: PropertyType) -> None:
    (column,) = find_columns([make_record(at, value={"a": value}) for at, value in enumerate(values)])
    assert column.type is wanted
    others = [at for at, value in enumerate(values) if isinstance(value, str)]
    assert column.misfits == (() if wanted is PropertyType.STRING else tuple(others))


def test_headers_fields_and_key_become_columns() -> None:
    records = [
        make_record(0, key="k", headers={"h": "1"}, value={"a": {"b": 1.5}, "list": [1], "none": None}),
        make_record(1, key="l", headers={"h": "2", "new": "x"}, value={"a": {"b": 2}}),
        make_record(2),
    ]
    columns = {str(column.field): column for column in find_columns(records)}
    assert list(columns) == ["{header:h}", "{header:new}", "{value:a.b}", "{value:none}", "{key}"]
    assert columns["{header:h}"].texts == ("1", "2", None)
    assert columns["{header:new}"].texts == (None, "x", None)
    assert columns["{value:a.b}"].type is PropertyType.DOUBLE
    assert (columns["{value:none}"].present, columns["{value:none}"].distinct) == (0, 0)
    assert columns["{key}"].share == pytest.approx(2 / 3)


def test_fields_of_json_are_judged_over_records_with_an_object() -> None:
    records = [
        make_record(0, key="k", headers={"h": "1"}, value={"a": 1, "b": 1}),
        make_record(1, value={"a": 2}),
        make_record(2, raw=b'{"a": '),
        make_record(3, raw=b"[1]"),
        make_record(4),
    ]
    columns = {str(column.field): column for column in find_columns(records)}
    assert {name: (column.rows, column.share) for name, column in columns.items()} == {
        "{header:h}": (5, 0.2), "{value:a}": (2, 1.0), "{value:b}": (2, 0.5), "{key}": (5, 0.2),
    }  # fmt: skip


def test_arrays_are_found_with_their_first_record() -> None:
    records = [
        make_record(0, value={"a": {"b": 1}, "c.d": [1], "e": {"": {"f": [1]}}}),
        make_record(1, value={"a": {"b": [1], "g": []}}),
        make_record(2, value={"a": {"b": [2]}, "h": [{"i": [1]}]}),
        make_record(3, raw=b"[[1]]"),
    ]
    assert {path: record.offset for path, record in find_arrays(records).items()} == {"a.b": 1, "a.g": 1, "h": 2}


def test_the_last_header_of_a_name_counts() -> None:
    record = SampledRecord(0, 0, headers=(("h", b"first"), ("x", b"1"), ("h", b"last"), ("empty", b""), ("null", None)))
    columns = {column.field.name: column.texts for column in find_columns([record])}
    assert columns == {"h": ("last",), "x": ("1",), "empty": (None,), "null": (None,)}


def test_numbers_of_json_that_fit_no_type() -> None:
    (column,) = find_columns([make_record(at, value={"n": value}) for at, value in enumerate([2**63, 10**999, 1.5])])
    assert (column.type, column.texts) == (PropertyType.DOUBLE, ("9.223372036854776e+18", "inf", "1.5"))


def test_bytes_that_are_no_text_are_binary() -> None:
    record = SampledRecord(0, 0, key=b"\xff\x00", headers=(("id", b"\x00\x01"),))
    assert {column.type for column in find_columns([record])} == {PropertyType.BINARY}


def test_names_that_no_path_can_spell_are_counted_apart() -> None:
    records = [make_record(value={"a.b": 1, "": 2, "c": {"d.e": 3}}), make_record(value={"fine": 1})]
    assert [column.field for column in find_columns(records)] == [Field(FieldKind.VALUE, "fine")]
    assert count_unnamed(records) == 1


def test_half_a_surrogate_pair_is_no_name() -> None:
    record = make_record(raw=b'{"\\ud800": 1}')
    assert find_columns([record]) == ()
    assert count_unnamed([record]) == 1


def test_ids_for_field_names_do_not_grow_without_bound() -> None:
    records = [make_record(at, value={f"id{at}-{n}": 1 for n in range(100)}) for at in range(30)]
    assert len(find_columns(records)) == MAX_COLUMNS
