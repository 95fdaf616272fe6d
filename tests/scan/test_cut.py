"""JSON documents that end too early: a cut never changes an answer, it only takes it away."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from overlay.scan import MALFORMED, MISSING, Records
from overlay.scan.columns import Origin, gather
from tests.oracle.batches import Record
from tests.scan.json.test_search import PATHS, SLOW_DRAWS, Text, find, objects_with_duplicates, plan_for
from tests.support.batches import build
from tests.support.strategies import broken_json, json_keys, json_leaves, json_values

Cuts = list[list[Text]]


def cut_everywhere(value: bytes) -> Cuts:
    """The answers to PATHS for each beginning of the value, the whole one last."""
    return find([value[:size] for size in range(len(value) + 1)])


@SLOW_DRAWS
@given(json_values() | objects_with_duplicates() | broken_json() | st.binary(max_size=30))
@example(b'{"a": 93}')
@example(b'{"leg":{"dest":936.25,"origin":{"a":-1e5}},"a":[1,22,{"a":3}]}')
@example(b'{"origin":true,"leg":null,"a":false}')
@example(b'{"a":1,"a":22} garbage')
@example(b'{"a":12a}')
@example(b'{"a":1_000}')
@example(b"\x00\x00\x00\x00\x01\x06abc")
@example(b"Obj\x01abc")
def test_a_cut_document_answers_as_the_whole_one_or_not_at_all(value: bytes) -> None:
    *cuts, whole = cut_everywhere(value)
    for size, found in enumerate(cuts):
        for path, text, expected in zip(PATHS, found, whole, strict=True):
            assert text in (expected, MALFORMED), (value[:size], path)


@SLOW_DRAWS
@given(json_values() | objects_with_duplicates() | broken_json())
def test_what_a_document_has_answered_stays_answered(value: bytes) -> None:
    """More bytes never take an answer back."""
    for column in zip(*cut_everywhere(value), strict=True):
        answered = [text for text in column if text != MALFORMED]
        assert column[len(column) - len(answered) :] == tuple(answered)


@SLOW_DRAWS
@given(json_keys, json_leaves, st.sampled_from(["", " ", "\n\t"]))
def test_a_scalar_needs_a_byte_behind_it(key: str, value: Any, blank: str) -> None:
    """Only then nothing can be added to it. A string has its quote."""
    begin = f"{{{json.dumps(key)}:{blank}".encode()
    text = json.dumps(value).encode()
    path = "a" if "." in key or not key else key
    [[alone], [closed], [more]] = find(
        [begin + text, begin + text + b"}", begin + text + b" "], plan_for(path)
    )  # fmt: skip
    if path != key:
        assert (alone, closed, more) == (MALFORMED, MISSING, MALFORMED)
        return
    assert closed == more == text
    assert alone == (text if text.startswith(b'"') else MALFORMED)


@pytest.mark.parametrize(
    "text",
    [b"9", b"93", b"936.", b"936.25", b"-", b"-0", b"1e", b"1e+", b"1E5", b"t", b"tru", b"true", b"nul", b"null"],
)
@pytest.mark.parametrize(
    "before", [b'{"a":', b'{"a": ', b'{"x":{"a":1},"a":', b'{"a":{"b":', b'{"c":0,"a":{"x":[],"b":']
)
def test_a_document_that_ends_in_a_number_or_a_word(before: bytes, text: bytes) -> None:
    """Also where an earlier document of the same shape has left its templates."""
    whole = before + text + b"}}"
    for values in ([before + text], [whole, before + text]):
        assert find(values, plan_for("a", "a.b"))[-1][0] == MALFORMED
        assert find(values, plan_for("a.b"))[-1] in ([MALFORMED], [MISSING])
        assert find(values, plan_for("z"))[-1] == [MALFORMED]


@pytest.mark.parametrize("value", [b"93", b"936.25", b"tru", b'"text', b"[1, 2", b" -", b"nul"])
def test_a_value_that_is_no_object_has_no_fields(value: bytes) -> None:
    """A number alone may be whole, and nothing of it is asked for; so it is never read to its end."""
    assert find([value], plan_for("a", "a.b")) == [[MISSING, MISSING]]


def test_what_stands_behind_the_document_is_not_read() -> None:
    garbage = [b" garbage", b"}", b"{", b'{"a":2}', b"\x00", b'"']
    assert find([b'{"a":1}' + each for each in garbage], plan_for("a", "b")) == [[b"1", MISSING]] * len(garbage)


def test_a_filter_sees_no_part_of_a_number() -> None:
    """936.25 cut to 9 is null to a filter, counted as malformed, and not below 10."""
    values = [b'{"a":936.25}'[:size] for size in range(6, 13)]
    records = [Record(i, 0, None, value, []) for i, value in enumerate(values)]
    numbers: list[float | None] = []
    nulls: Counter[str] = Counter()
    for piece in plan_for("a").decode(np.frombuffer(build(records), np.uint8)):
        assert isinstance(piece, Records)
        column = gather(piece.buf, piece.at[0, : len(piece)], piece.size[0, : len(piece)], "double", Origin.JSON)
        numbers += column.array.to_pylist()
        nulls.update(column.count_nulls())
    assert numbers == [None] * 6 + [936.25]
    assert nulls == {"malformed": 6}
