"""Fields of JSON values, found in the bytes, against json.loads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from overlay.field import Field, FieldKind
from overlay.scan import MALFORMED, MISSING, UNDECODED, Decoder, Records, make_plan
from tests.oracle.batches import Record
from tests.support.batches import build
from tests.support.strategies import broken_json, json_documents, json_keys, json_leaves, json_values

SLOW_DRAWS = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
PATHS = ["origin", "leg", "leg.dest", "leg.origin.a", "a", "a.a", "ключ", 'q"uote', "back\\slash", "origin "]
DECODER = Decoder(make_plan([Field(FieldKind.VALUE, path) for path in PATHS]))
TOKENS = [
    *(b"{", b"}", b"[", b"]", b'"', b":", b",", b"\\", b" ", b"null", b"tru", b"1", b"-"),
    *(b'"leg"', b'"dest"', b'"leg":{', b'"a":{', b'"a":1,', b'"origin":', b'"x":'),
]
token_soups = st.lists(st.sampled_from(TOKENS), max_size=14).map(lambda tokens: b"{" + b"".join(tokens))
"""Texts that are nearly JSON: broken in more places than one."""
Text = bytes | int  # what the scan found: JSON text, MISSING or MALFORMED


def find(values: Sequence[bytes | None], decoder: Decoder = DECODER) -> list[list[Text]]:
    """Per value, per path. Each value has its neighbours' bytes around it, as in a real batch."""
    records = [Record(i, 0, None, value, []) for i, value in enumerate(values)]
    found: list[list[Text]] = []
    for piece in decoder.decode(np.frombuffer(build(records), np.uint8)):
        assert isinstance(piece, Records)
        found += [[_text(piece, slot, row) for slot in range(len(decoder.plan.fields))] for row in range(len(piece))]
    assert len(found) == len(values)
    return found


def _text(piece: Records, slot: int, row: int) -> Text:
    at, size = int(piece.at[slot, row]), int(piece.size[slot, row])
    if size < 0:
        return size
    assert int(piece.body[row]) < at
    assert at + size < int(piece.end[row])
    return piece.buf[at : at + size].tobytes()


def _keep_first(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of keys that stand twice in an object the first counts, as search.py says; json.loads alone keeps the last."""
    return dict(reversed(pairs))


def lookup(document: Any, path: str) -> tuple[bool, Any]:
    for step in path.split("."):
        if not isinstance(document, dict) or step not in document:
            return False, None
        document = document[step]
    return True, document


def check(value: bytes, found: list[Text]) -> None:
    document = json.loads(value.decode("utf-8", "surrogatepass"), object_pairs_hook=_keep_first)
    for path, text in zip(PATHS, found, strict=True):
        there, expected = lookup(document, path)
        if not there:
            assert text == MISSING, path
        else:
            assert isinstance(text, bytes), path
            assert json.loads(text.decode("utf-8", "surrogatepass"), object_pairs_hook=_keep_first) == expected, path


@SLOW_DRAWS
@given(st.lists(json_values(), max_size=4))
def test_any_documents(values: list[bytes]) -> None:
    for value, found in zip(values, find(values), strict=True):
        check(value, found)


@st.composite
def objects_with_duplicates(draw: st.DrawFn) -> bytes:
    """An object written by hand: keys may stand twice, keys and strings may be escaped in full."""
    pairs = draw(st.lists(st.tuples(json_keys, json_leaves | json_documents), max_size=6))
    blank = draw(st.sampled_from(["", " ", "\r\n\t"]))
    members = [f"{_spell(draw, key)}{blank}:{blank}{json.dumps(value)}" for key, value in pairs]
    text = f"{blank}{{{blank}{f'{blank},{blank}'.join(members)}{blank}}}{blank}"
    return text.encode("utf-8", "surrogatepass")


def _spell(draw: st.DrawFn, key: str) -> str:
    if draw(st.booleans()):
        return json.dumps(key, ensure_ascii=draw(st.booleans()))
    units = key.encode("utf-16-be", "surrogatepass").hex(" ", 2).split()
    return '"' + "".join(f"\\u{unit.upper() if draw(st.booleans()) else unit}" for unit in units) + '"'


@SLOW_DRAWS
@given(objects_with_duplicates())
@example(b'{"a": 1, "a": {"a": 2}}')
@example(b'{"or\\u0069gin": "x", "origin": "y"}')
@example(b'{"\\u006Ceg": {"\\u0064est": null}}')
def test_duplicate_and_escaped_keys(value: bytes) -> None:
    check(value, find([value])[0])


@SLOW_DRAWS
@given(st.lists(broken_json() | st.binary(max_size=30), min_size=1, max_size=4))
def test_broken_documents_stay_within_themselves(values: list[bytes]) -> None:
    """What was found before the break may be there, but never a byte of the neighbours, and no fault of the batch."""
    alone = [find([value])[0] for value in values]
    assert find(values) == alone
    for value, found in zip(values, alone, strict=True):
        assert all(
            text in value if isinstance(text, bytes) else text in (MISSING, MALFORMED, UNDECODED) for text in found
        )


@pytest.mark.parametrize(
    ("value", "origin"),
    [
        (None, MISSING),
        (b"", MALFORMED),
        (b"  ", MALFORMED),
        (b"{}", MISSING),
        (b"[]", MISSING),
        (b"12", MISSING),
        (b'"origin"', MISSING),
        (b'{"origin"', MALFORMED),
        (b'{"origin":', MALFORMED),
        (b'{"origin":}', MALFORMED),
        (b'{"origin":"JFK', MALFORMED),
        (b'{"origin":"JF\\"K"}', b'"JF\\"K"'),
        (b'{"origin":"JFK\\', MALFORMED),
        (b'{"dest":"LAX",}', MALFORMED),
        (b'{"dest":"LAX" "origin":"JFK"}', MALFORMED),
        (b'{"dest":"LAX"', MALFORMED),
        (b'{"x":{"origin":1}, "origin": -1.5e+7}', b"-1.5e+7"),
        (b'{"x":"}","y":["{",{}],"origin":[1,[2]],"z":0}', b"[1,[2]]"),
        (b'{"originate":1,"origi":2}', MISSING),
        (b'{"origin":null}', b"null"),
        (b'{"origin":1_000}', b"1_000"),
        (b'{"origin":12:30 }', b"12:30"),
        (b'{"origin":9\x00}', b"9\x00"),
        (b'{"x":[1_000],"origin":9}', b"9"),
        (b'{"origin":null"}', MALFORMED),
        (b'{"origin":1{}}', MALFORMED),
        (b'{"origin":1[2]}', MALFORMED),
        (b'{"x":1{},"origin":2}', MALFORMED),
        (b'{"x":[1{}],"origin":2}', b"2"),
    ],
)
def test_one_field(value: bytes | None, origin: Text) -> None:
    assert find([value])[0][0] == origin


def plan_for(*paths: str) -> Decoder:
    return Decoder(make_plan([Field(FieldKind.VALUE, path) for path in paths]))


ALONE = [plan_for(path) for path in PATHS]


@SLOW_DRAWS
@given(st.lists(token_soups | broken_json() | json_values() | objects_with_duplicates(), min_size=1, max_size=4))
@example([b'{"leg":{"dest" 1},"origin":"JFK"}'])
@example([b'{"leg":[},"origin":"JFK"}'])
@example([b'{"a":{"a":1'])
@example([b'{"leg":{"origin":{"a":1},"dest":2]},"a":{"a":'])
@example([b'{"leg":{"origin":null"}'])
@example([b'{"leg":{"origin":1{},"dest":2},"a":3}'])
@example([b'{"leg":{"x":1[,"dest":2],"a":3}'])
def test_paths_do_not_disturb_each_other(values: list[bytes]) -> None:
    """Each path is answered as if it were looked for alone, however broken what another one has to read."""
    alone = [find(values, decoder) for decoder in ALONE]
    together = find(values)
    assert together == [[alone[p][row][0] for p in range(len(PATHS))] for row in range(len(values))]


STEPS = st.lists(st.sampled_from(["a", "b", "c", "long-name", "long-nama"]), min_size=1, max_size=4)
trees = st.recursive(
    st.integers() | st.just("x,}]\\") | st.none(),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["a", "b", "c", "long-name", "long-nama", ""]), inner, max_size=5)
    ),
    max_leaves=20,
)


@SLOW_DRAWS
@given(st.lists(trees, min_size=1, max_size=3), st.lists(STEPS.map(".".join), min_size=1, max_size=8, unique=True))
@example([{"a": {"b": {"c": 1}}}], ["a.b.c", "a.b", "a"])
@example([{"a": 1, "b": 2}, {"b": {"a": {}}, "a": {"b": 3}}], ["a.b", "b", "b.a.c", "a"])
def test_any_combination_of_paths(documents: list[Any], paths: list[str]) -> None:
    """Nested ones, siblings, and paths that lead through others that are wanted too."""
    for document, found in zip(
        documents, find([json.dumps(one).encode() for one in documents], plan_for(*paths)), strict=True
    ):
        for path, text in zip(paths, found, strict=True):
            there, expected = lookup(document, path)
            assert (json.loads(text) if isinstance(text, bytes) else text) == (expected if there else MISSING), path


def test_hints_of_one_record_do_not_reach_the_next() -> None:
    """What was met in a record counts for that record alone."""
    found = find([b'{"a":1,"b":{"c":2}}', b'{"b":{}}', b'{"b":{"c":3},"a":{}}'], plan_for("a", "b.c"))
    assert found == [[b"1", b"2"], [MISSING, MISSING], [b"{}", b"3"]]


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        # a key that was passed over because it stood there before
        ([b'{"a":1,"a":2,"c":3}', b'{"b":1,"a":2,"c":3}'], [[b"1", b"3"], [b"2", b"3"]]),
        # the same text, but here it is another object's
        ([b'{"x":{"a":1},"a":4,"c":3}', b'{"c":{"a":1},"a":5}'], [[b"4", b"3"], [b"5", b'{"a":1}']]),
        # a blank behind it belongs to it as well
        ([b'{"x":1,"a":2,"c":3}', b'{"x":1,"a": 2,"c":\n3}'], [[b"2", b"3"], [b"2", b"3"]]),
        # nothing behind it
        ([b'{"x":1,"a":2,"c":3}', b'{"x":1,"a":'], [[b"2", b"3"], [MALFORMED, MALFORMED]]),
        # equal up to the last byte, in keys shorter and longer than a word
        ([b'{"x":1,"a":2,"c":3}', b'{"x":1,"b":2,"a":3}'], [[b"2", b"3"], [b"3", MISSING]]),
        (
            [b'{"0123456789abcde":1,"a":2,"c":3}', b'{"0123456789abcdf":1,"c":2,"a":3}'],
            [[b"2", b"3"], [b"3", b"2"]],
        ),
    ],
)  # fmt: skip
def test_what_stood_between_values_before(documents: list[bytes], expected: list[list[Text]]) -> None:
    """overlay/scan/json/templates.py: only what is the same may be taken as the same."""
    assert find(documents, plan_for("a", "c")) == expected


def test_more_members_than_templates() -> None:
    document = json.dumps({f"k{i}": i for i in range(100)}).encode()
    assert find([document] * 3, plan_for("k1", "k99")) == [[b"1", b"99"]] * 3


SHAPES = st.lists(st.tuples(st.sampled_from("abcx"), st.sampled_from(["", " "])), max_size=6)


@SLOW_DRAWS
@given(st.lists(SHAPES, min_size=2, max_size=5), json_leaves)
def test_documents_that_are_nearly_alike(shapes: list[list[tuple[str, str]]], value: Any) -> None:
    text = json.dumps(value)
    documents = ["{" + ",".join(f'{gap}"{key}":{gap}{text}' for key, gap in shape) + "}" for shape in shapes]
    found = find([document.encode("utf-8", "surrogatepass") for document in documents], plan_for("a", "c"))
    for shape, answers in zip(shapes, found, strict=True):
        keys = [key for key, _ in shape]
        assert [isinstance(answer, bytes) for answer in answers] == ["a" in keys, "c" in keys]


def test_a_path_of_many_steps() -> None:
    """Deep paths and documents take no deep stack."""
    depth = 5000
    document = b'{"a":' * depth + b"7" + b"}" * depth
    assert find([document], plan_for(".".join("a" * depth), "a.b")) == [[b"7", MISSING]]


@pytest.mark.parametrize(
    ("value", "outer", "inner", "after"),
    [
        (b'{"a":{"b" 1},"c":3}', b'{"b" 1}', MALFORMED, b"3"),
        (b'{"a":{"b":1,"b":2},"a":5,"c":3}', b'{"b":1,"b":2}', b"1", b"3"),
        (b'{"a":5,"a":{"b":1},"c":3}', b"5", MISSING, b"3"),
        (b'{"a":{"b":1}', b'{"b":1}', b"1", MALFORMED),
        (b'{"a":{"b":1', MALFORMED, MALFORMED, MALFORMED),
        (b'{"a":{"b":1 ', MALFORMED, b"1", MALFORMED),
        (b'{"a":{"x":1}}', b'{"x":1}', MISSING, MISSING),
        (b'{"a":{}x', b"{}", MISSING, MALFORMED),
        (b'{"a":', MALFORMED, MALFORMED, MALFORMED),
        (b'{"a":!,"c":3}', MALFORMED, MISSING, MALFORMED),
        (b'{"c":3,"a":{"b":', MALFORMED, MALFORMED, b"3"),
    ],
)
def test_a_path_through_another(value: bytes, outer: Text, inner: Text, after: Text) -> None:
    assert find([value], plan_for("a", "a.b", "c")) == [[outer, inner, after]]
