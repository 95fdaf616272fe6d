"""The value cache against columns and Python's sets: whatever was met before, a chunk gets what its own records say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from overlay.arrays import Words
from overlay.field import Field, FieldKind
from overlay.index.skip.term_set import TermSet
from overlay.index.skip.terms import property_term, seed_of
from overlay.index.skip.value_cache import HAS_LEFT, HAS_NULL, SHORT, TYPES, ValueCache, Wanted
from overlay.index.skip.zones import TYPES as ZONED
from overlay.index.skip.zones import Bounds, read_bounds, text_key
from overlay.scan import Records, make_plan
from overlay.scan.columns import Origin, gather
from overlay.subject.dictionary import Codes

PLAN = make_plan((Field(FieldKind.HEADER, "p"),))
SEED = seed_of("value", "p")
EDGES = [
    b"",
    b"a" * 7,
    b"a" * 8,
    b"a" * 15,
    b"a" * 16,
    b"a" * 17,
    b"a" * SHORT,
    b"a" * 32,
    b"a" * 31 + b"b",
    b"a\0",
    b"a",
]
SPELLED = [
    b"0", b"-0", b"-0.0", b"1", b"1.0", b"01", b"-7.5", b"9223372036854775807", b"9223372036854775808", b"1e999", b"null",
    b"true", b"False", b"2013-01-01T05:00:00Z", b"2013-01-01T05:00:00.123+01:00", b"0.1234567890123456789012345",
    "größe".encode(), b"\xff", b'"a"', b'"a', b'"a\\n"', b'"1"', b'""', b'"', b'"2013-01-01T05:00:00Z"', b'"\xff"',
]  # fmt: skip
values = st.none() | st.sampled_from(EDGES + SPELLED) | st.binary(max_size=40) | st.integers().map(lambda n: b"%d" % n)


def lay(found: Sequence[bytes | None]) -> Records:
    """Values end to end, the last one at the end of the buffer."""
    size = np.array([-1 if value is None else len(value) for value in found], np.int64)
    at = np.concatenate(([0], np.cumsum(size.clip(0))))[: size.size]
    buf = np.frombuffer(b"".join(value or b"" for value in found) or b"", np.uint8)
    none = np.empty(0, np.int64)
    return Records(buf, none, none, none, none, at.reshape(1, -1), size.reshape(1, -1), 0, PLAN)


def take(
    table: ValueCache,
    found: Sequence[bytes | None],
    words: Words,
    terms: TermSet,
    codes: Codes | None = None,
) -> None:
    records, codes = lay(found), np.zeros(len(found), np.int32) if codes is None else codes
    table.take(records, slice(0, len(found)), codes, np.array([0]), words, terms)


def read(found: Sequence[bytes | None], type: str, *, is_json: bool) -> list[Any]:
    records = lay(found)
    column = gather(records.buf, records.at[0], records.size[0], type, Origin.JSON if is_json else Origin.TEXT).array
    column = column.cast("int64") if type == "timestamp" else column
    return column.to_pylist()  # type: ignore[no-any-return]


def is_left(value: bytes | None, type: str, *, is_json: bool) -> bool:
    """Whether the value cache may leave a value to columns: strings with a quote or an escape, doubles that are hard
    to round."""
    if value is None:
        return False
    if type == "double":
        return len(value) > 19 or b"e" in value.lower()
    return is_json and (b"\\" in value or b'"' in value[1:-1])


def as_terms(terms: TermSet) -> set[tuple[int, int]]:
    assert len(terms.hashes) == terms.count
    return {(int(h1), int(h2)) for h1, h2 in terms.hashes}


def expect_terms(present: Sequence[Any]) -> set[tuple[int, int]]:
    return {(term.h1, term.h2) for term in (property_term("p", value) for value in present)}


def expect_bounds(present: Sequence[Any], type: str, *, has_null: bool) -> Bounds:
    keys = [text_key(value.encode()) for value in present] if type == "string" else present
    return Bounds(type, min(keys, default=None), max(keys, default=None), has_null)


@pytest.mark.parametrize("is_json", [False, True])
@pytest.mark.parametrize("type", TYPES)
@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.tuples(values, st.booleans()), max_size=8)), max_size=6))
@example([(0, [(value, True) for value in EDGES + SPELLED]), (1, [(value, True) for value in SPELLED + EDGES])])
def test_chunks_that_grow_side_by_side(
    type: str, is_json: bool, steps: list[tuple[int, list[tuple[bytes | None, bool]]]]
) -> None:
    table = ValueCache([Wanted(type, is_json, 0, SEED, True, type in ZONED)])
    chunks = [(table.begin(), TermSet(1 << 20)) for _ in range(3)]
    met: list[list[bytes | None]] = [[], [], []]
    for chunk, found in steps:
        codes = np.array([0 if is_wanted else -1 for _, is_wanted in found], np.int32)
        take(table, [value for value, _ in found], *chunks[chunk], codes)
        met[chunk] += [value for value, is_wanted in found if is_wanted]
    for (words, terms), records in zip(chunks, met, strict=True):
        if any(is_left(value, type, is_json=is_json) for value in records):
            own = [value for value in records if not is_left(value, type, is_json=is_json)]
            assert expect_terms([v for v in read(own, type, is_json=is_json) if v is not None]) <= as_terms(terms)
            continue
        said = read(records, type, is_json=is_json)
        present = [value for value in said if value is not None]
        assert not words[0, HAS_LEFT]
        assert as_terms(terms) == expect_terms(present)
        assert bool(words[0, HAS_NULL]) == (len(present) < len(said))
        if type in ZONED:
            expected = expect_bounds(present, type, has_null=len(present) < len(said))
            assert read_bounds(words[0], type, bool(words[0, HAS_NULL])) == expected


@pytest.mark.parametrize(
    ("type", "is_json", "value"),
    [("string", True, b'"a\\n"'), ("string", True, b'"a"b"'), ("double", False, b"0.1234567890123456789012345")],
)
def test_what_is_left_is_said_once_a_chunk(type: str, is_json: bool, value: bytes) -> None:
    table = ValueCache([Wanted(type, is_json, 0, SEED, True, True)])
    for _ in range(2):
        words, terms = table.begin(), TermSet(1000)
        take(table, [value], words, terms)
        assert (words[0, HAS_LEFT], words[0, HAS_NULL], terms.count) == (1, 0, 0)


def test_more_values_than_there_are_lines() -> None:
    numbers = np.random.default_rng(1).integers(0, 6000, 30_000).tolist()
    found = [b"%d" % number for number in numbers]
    table, words, terms = ValueCache([Wanted("long", False, 0, SEED, True, True)]), None, None
    for _ in range(2):
        words, terms = table.begin(), TermSet(1 << 20)
        take(table, found, words, terms)
        assert as_terms(terms) == expect_terms(sorted(set(numbers)))
        assert read_bounds(words[0], "long", False) == Bounds("long", min(numbers), max(numbers), False)


def test_a_set_that_is_full_stops_no_bounds_and_no_terms_of_later_chunks() -> None:
    found = [b"%d" % number for number in range(9000)]
    table = ValueCache([Wanted("long", False, 0, SEED, True, True)])
    words, terms = table.begin(), TermSet(100)
    take(table, found, words, terms)
    assert terms.is_full
    assert read_bounds(words[0], "long", False) == Bounds("long", 0, 8999, False)
    words, terms = table.begin(), TermSet(1 << 20)
    take(table, found, words, terms)
    assert as_terms(terms) == expect_terms(range(9000))


def test_an_empty_value_may_count_as_missing() -> None:
    table = ValueCache([Wanted("binary", False, 1, SEED, True, False)])
    words, terms = table.begin(), TermSet(1000)
    take(table, [b"", b"a"], words, terms)
    assert words[0, HAS_NULL]
    assert as_terms(terms) == expect_terms([b"a"])


def test_several_properties_and_one_that_is_left_as_a_whole() -> None:
    wanted = [Wanted("long", False, 0, SEED, False, True), Wanted("string", False, 0, SEED, True, False)]
    table = ValueCache([wanted[0], wanted[1], wanted[1]])
    words, terms = table.begin(), TermSet(1000)
    records = lay([b"3", b"x", None, b"1"])
    table.take(records, slice(1, 4), np.zeros(3, np.int32), np.array([0, -1, 0]), words, terms)
    assert words[:, HAS_LEFT].tolist() == [0, 1, 0]
    assert words[:, HAS_NULL].tolist() == [1, 0, 1]
    assert read_bounds(words[0], "long", True) == Bounds("long", 1, 1, True)
    assert as_terms(terms) == expect_terms(["x", "1"])
