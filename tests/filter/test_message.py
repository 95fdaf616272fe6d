"""Python values as filters take them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.filter.fields import FIELDS
from overlay.filter.message import has_property, read_field, to_value
from overlay.filter.nodes import Section


class Level(IntEnum):
    HIGH = 9


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (0, 0),
        (2**70, 2**70),
        (Level.HIGH, 9),
        (1.5, 1.5),
        (float("nan"), None),
        (float("inf"), None),
        (float("-inf"), None),
        ("", b""),
        ("é😀", "é😀".encode()),
        ("\ud800", b"\xed\xa0\x80"),
        (b"\xff", b"\xff"),
        (bytearray(b"a"), b"a"),
        pytest.param(memoryview(b"a"), b"a", id="memoryview"),
        (UUID(int=1), b"\0" * 15 + b"\1"),
        (Decimal("1.5"), None),
        ([1], None),
        ({"a": 1}, None),
        ((), None),
        pytest.param(object(), None, id="object"),
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1), 0),  # noqa: DTZ001
        (datetime(1970, 1, 1, tzinfo=timezone(timedelta(hours=1))), -3_600_000),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), -1),
        (datetime(1, 1, 1, tzinfo=UTC), -62_135_596_800_000),
        (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))), -62_135_596_800_000 - 14 * 3_600_000),
        (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), 253_402_300_799_999),
    ],
    ids=repr,
)
def test_values(value: object, expected: object) -> None:
    found = to_value(value)
    assert (type(found), found) == (type(expected), expected)


_zones = st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone)


@settings(deadline=None)
@given(st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=_zones))  # noqa: DTZ001
def test_times_are_milliseconds_cut_towards_the_past(value: datetime) -> None:
    assert to_value(value) == (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


@pytest.mark.parametrize("name", FIELDS[Section.PROPERTIES])
def test_fields_are_found_with_hyphens_and_underscores(name: str) -> None:
    for spelled in (name, name.replace("_", "-")):
        assert read_field({"properties": {spelled: "x"}}, Section.PROPERTIES, name) == b"x"
    assert read_field({"properties": {}}, Section.PROPERTIES, name) is None


def test_application_properties_are_found_by_their_exact_names() -> None:
    message = {"application_properties": {"a-b": 1, "c_d": 2}}
    assert read_field(message, Section.APPLICATION, "a-b") == 1
    assert read_field(message, Section.APPLICATION, "a_b") is None
    assert read_field(message, Section.APPLICATION, "c-d") is None


@pytest.mark.parametrize("section", [None, [], "text", 5])
def test_a_section_that_is_no_mapping_is_empty(section: Any) -> None:
    for each in Section:
        found = read_field({each.value: section}, each, "priority")
        assert found == (4 if each is Section.HEADER else None)
    assert not has_property({"application_properties": section}, "x")


def test_a_property_that_is_null_is_there() -> None:
    assert has_property({"application_properties": {"x": None}}, "x")
    assert not has_property({"application_properties": {"x": None}}, "y")
    assert not has_property({}, "x")
