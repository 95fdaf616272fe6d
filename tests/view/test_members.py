"""Members of JSON objects, as they are spelled."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.view.members import read_members, split_members

_documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def test_members_keep_their_spelling() -> None:
    assert split_members(' {"a" : 1.50 ,"b":{"c":[1e400, "}"]}, "d": "x"}\n') == {
        "a": "1.50", "b": '{"c":[1e400, "}"]}', "d": '"x"',
    }  # fmt: skip
    assert split_members("{}") == {}
    for wrong in ("[]", "1", ""):
        with pytest.raises(ValueError, match="no object"):
            split_members(wrong)


def test_members_come_with_their_values_as_often_as_they_are_there() -> None:
    assert [*read_members('{"a": 1, "a": [2.0]}')] == [("a", "1", 1), ("a", "[2.0]", [2.0])]


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ('{"a": 1 "b": 2}', 9),
        ('{"a" 1}', 6),
        ('{"a": 1,}', 9),
        ('{"a": }', 7),
        ('{"a": 1', 8),
        ("{} x", 4),
        ("{a: 1}", 2),
    ],
)
def test_the_place_of_a_fault_is_told(text: str, column: int) -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        split_members(text)
    assert caught.value.colno == column


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_words_of_other_languages_are_no_json(word: str) -> None:
    with pytest.raises(ValueError, match=f"{word} is no JSON"):
        split_members(f'{{"a": {word}}}')


@given(st.dictionaries(st.text(max_size=6), _documents, max_size=4), st.sampled_from([None, 1]))
def test_any_object_is_read_as_json_reads_it(document: dict[str, object], indent: int | None) -> None:
    text = json.dumps(document, indent=indent)
    assert {name: value for name, _, value in read_members(text)} == document
    assert {name: json.loads(spelled) for name, spelled in split_members(text).items()} == document


@given(st.text(alphabet='{}[]:,"a1 \\', max_size=12))
def test_what_json_refuses_is_refused(text: str) -> None:
    try:
        wanted = json.loads(text)
    except ValueError:
        wanted = None
    if isinstance(wanted, dict):
        assert {name: value for name, _, value in read_members(text)} == wanted
    else:
        with pytest.raises(ValueError):
            split_members(text)
