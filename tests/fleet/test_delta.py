"""Changes from one picture to the next: a page that applies them has the next picture."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from overlay.fleet.delta import KEYS, IndexedPicture, compare, index

FIELDS = st.dictionaries(
    st.sampled_from("abc"), st.none() | st.integers(0, 2) | st.lists(st.integers(0, 1), max_size=2)
)


@st.composite
def pictures(draw: st.DrawFn) -> dict[str, Any]:
    """A picture of a few rows, of which two draws share many keys; some have no table at all for a part."""
    picture: dict[str, Any] = {"time": draw(st.integers(0, 3)), "ignored": draw(FIELDS)}
    for part, names in KEYS.items():
        keys = draw(st.none() | st.sets(st.tuples(*(st.sampled_from("xy") for _ in names))))
        if keys is not None:
            picture[part] = [draw(FIELDS) | dict(zip(names, key, strict=True)) for key in sorted(keys)]
    return picture


def apply(tables: IndexedPicture, delta: dict[str, Any]) -> IndexedPicture:
    """What the page does with a change, as docs/fleet.md has it."""
    rows = {part: {key: dict(row) for key, row in found.items()} for part, found in tables.rows.items()}
    for part in KEYS:
        for key in delta.get(part, {}).get("gone", ()):
            del rows[part][key]
        for key, fields in delta.get(part, {}).get("rows", {}).items():
            rows[part].setdefault(key, {}).update(fields)
    members = {name: value for name, value in delta.items() if name not in KEYS}
    return IndexedPicture(rows, {**tables.members, **members})


@given(pictures(), pictures())
def test_a_change_makes_the_next_picture_of_the_last(old: dict[str, Any], new: dict[str, Any]) -> None:
    delta = compare(index(old), index(new))
    assert apply(index(old), json.loads(json.dumps(delta))) == index(new)


@given(pictures(), pictures())
def test_a_change_has_nothing_that_did_not_change(old: dict[str, Any], new: dict[str, Any]) -> None:
    before, after = index(old), index(new)
    delta = compare(before, after)
    for part, change in delta.items():
        if part not in KEYS:
            assert before.members.get(part) != after.members[part]
            continue
        assert change["gone"] or change["rows"]
        for key, fields in change["rows"].items():
            known = before.rows[part].get(key)
            assert known != after.rows[part][key]
            if known is not None and key not in change["gone"]:
                assert fields and all(name not in known or known[name] != value for name, value in fields.items())


@given(pictures())
def test_the_same_picture_is_no_change(picture: dict[str, Any]) -> None:
    assert compare(index(picture), index(json.loads(json.dumps(picture)))) == {}


@given(pictures())
def test_the_first_picture_is_a_change_of_nothing(picture: dict[str, Any]) -> None:
    assert apply(IndexedPicture(), compare(IndexedPicture(), index(picture))) == index(picture)


def test_only_changed_fields_are_sent() -> None:
    old = {"time": 1, "consumers": [{"stream": "S", "name": "c", "lag": 5, "rate": 1.0}, {"stream": "S", "name": "d"}]}
    new = {"time": 2, "consumers": [{"stream": "S", "name": "c", "lag": 4, "rate": 1.0}]}
    assert compare(index(old), index(new)) == {
        "time": 2,
        "consumers": {"gone": ["S/d"], "rows": {"S/c": {"lag": 4}}},
    }
