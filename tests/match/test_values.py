"""Filter values of slices, for several consumers at once, against one record after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.config.consumer import FilterConfig
from overlay.config.stream import StreamConfig
from overlay.filter import Filter, compile_sql
from overlay.match import Addressed, Addressing, Audience, Masks, Sifted, Tally, choose_values
from overlay.match.values import narrow
from overlay.subject import Pattern
from tests.oracle.batches import Header, Record
from tests.oracle.filter_values import escape, fill, find_header, wants_value
from tests.oracle.push import wants
from tests.support.batches import build

TEMPLATE = "{header:region}.{header:tier}"
STREAMS = {
    name: StreamConfig.model_validate(
        {
            "name": "S",
            "topics": ("t",),
            "subject": {"template": "s.{header:dest}" + (".{header:region}" if name == "subject" else "")},
            "properties": {"delay": "long"},
            "filter_value": value,
        }
    )
    for name, value in (("subject", "subject"), ("header", {"header": "region"}), ("template", {"template": TEMPLATE}))
}
LATE = compile_sql("delay > 5", STREAMS["header"].properties)
REGIONS = [b"eu", b"us", b"a b", "é".encode(), b"\xff", b"", None]
VALUES = [
    "eu",
    "us",
    "",
    "a b",
    "é",
    "eu.gold",
    "us.gold",
    "a%20b.gold",
    "s.a.eu",
    "s.b.us",
    "s.a.a%20b",
    "s.*.eu",
    "x",
]

Wanted = tuple[list[str], list[str], bool, Filter | None]


@st.composite
def records(draw: st.DrawFn) -> list[Record]:
    found = []
    for offset in range(draw(st.integers(1, 14))):
        headers = {
            b"dest": draw(st.sampled_from([b"a", b"b", None])),
            b"region": draw(st.sampled_from(REGIONS)),
            b"tier": draw(st.sampled_from([b"gold", b"", None])),
            b"delay": draw(st.sampled_from([b"1", b"9", b"late"])),
        }
        named = [(name, value) for name, value in headers.items() if value is not None or draw(st.booleans())]
        earlier = [(b"region", b"eu")] if draw(st.booleans()) and find_region(named) else []
        found.append(Record(offset, 1, None, b"v", earlier + named))
    return found


def find_region(headers: Sequence[Header]) -> bool:
    """Whether there is a header that an earlier one of its name must not come before."""
    return any(name == b"region" for name, _ in headers)


def find_subject(kind: str, record: Record) -> str | None:
    to = fill(record, [b"dest", b"region"] if kind == "subject" else [b"dest"])
    return None if to is None else f"s.{to.decode()}"


def find_value(kind: str, record: Record) -> bytes | None:
    match kind:
        case "header":
            return find_header(record, b"region")
        case "template":
            return fill(record, [b"region", b"tier"])
    return (find_subject(kind, record) or "").encode()


def sift(stream: StreamConfig, found: Sequence[Record], wanted: Sequence[Wanted]) -> Sifted:
    addressing = Addressing(stream.subject.rule, stream.patterns)
    values = [choose_values(FilterConfig(values=tuple(v), match_unfiltered=u), stream) for _, v, u, _ in wanted]
    masks = Masks([filter for *_, filter in wanted], stream.properties, values)
    patterns = [tuple(map(Pattern, texts)) for texts, *_ in wanted]
    audience = Audience(addressing.dictionary("t", 3), patterns, values)
    data = np.frombuffer(build([replace(record, offset=at) for at, record in enumerate(found)], codec=3), np.uint8)
    piece = next(addressing.read("t", 3, data, 0, more=masks.fields))
    assert isinstance(piece, Addressed)
    selection = audience.select(piece.codes)
    return masks.sift(piece, {i: selection.of(i) for i in selection.wanting()}, 0)


consumers = st.tuples(
    st.lists(st.sampled_from([">", "s.a.>", "s.*.eu", "s.b.us", "s.a", "s.*"]), min_size=1, max_size=2, unique=True),
    st.lists(st.sampled_from(VALUES), max_size=3),
    st.booleans(),
    st.sampled_from([None, LATE]),
)


@pytest.mark.parametrize("kind", STREAMS)
@settings(max_examples=120, deadline=None)
@given(found=records(), wanted=st.lists(consumers, min_size=1, max_size=6))
def test_each_consumer_gets_the_values_it_wants(kind: str, found: list[Record], wanted: list[Wanted]) -> None:
    sifted = sift(STREAMS[kind], found, wanted)
    for i, (patterns, values, match_unfiltered, filter) in enumerate(wanted):
        rows, asked = [], 0
        for row, record in enumerate(found):
            subject = find_subject(kind, record)
            if subject is None or not wants(patterns, subject):
                continue
            if not wants_value(values, match_unfiltered, find_value(kind, record)):
                continue
            asked += 1
            if filter is None or find_header(record, b"delay") == b"9":
                rows.append(row)
        assert sifted.rows.get(i, np.empty(0)).tolist() == rows
        tally = sifted.tallies.get(i, Tally(0, 0, 0, {}))
        assert tally.true + tally.false + tally.unknown == (asked if filter else 0), "no filter is asked of others"


def test_values_of_later_slices_are_learnt() -> None:
    """A template's values get their codes as they come up, from slice to slice."""
    stream = STREAMS["template"]
    addressing = Addressing(stream.subject.rule, stream.patterns)
    values = choose_values(FilterConfig(values=("r7.gold", "r40.gold")), stream)
    masks = Masks([None], stream.properties, [values])
    for first in (0, 30):
        found = [
            Record(i, 1, None, b"", [(b"dest", b"a"), (b"region", b"r%d" % (first + i)), (b"tier", b"gold")])
            for i in range(30)
        ]
        piece = next(addressing.read("t", 0, np.frombuffer(build(found), np.uint8), 0, more=masks.fields))
        assert isinstance(piece, Addressed)
        assert masks.sift(piece, {0: np.arange(30)}, 0).rows[0].tolist() == [7 if not first else 10]


def test_consumers_that_want_the_same_share_an_answer() -> None:
    stream = STREAMS["header"]
    records = [Record(i, 1, None, b"", [(b"dest", b"a"), (b"region", b"eu" if i % 2 else b"us")]) for i in range(8)]
    sifted = sift(stream, records, [([">"], ["eu"], False, None)] * 3 + [([">"], ["us"], False, None)])
    assert sifted.rows[0] is sifted.rows[1] is sifted.rows[2]
    assert sifted.rows[3].tolist() == [0, 2, 4, 6]


def test_values_without_a_value() -> None:
    stream = STREAMS["header"]
    assert choose_values(FilterConfig(), stream) is None
    assert choose_values(FilterConfig(match_unfiltered=True), stream) is None
    only = choose_values(FilterConfig(values=("",)), stream)
    assert only is not None and (only.wanted, only.unfiltered) == (frozenset(), True)


def test_values_that_are_subjects_narrow_patterns() -> None:
    values = choose_values(FilterConfig(values=("s.b", "s.a", "x", "", "s.*", "no subject")), STREAMS["subject"])
    assert narrow([Pattern("s.>")], values) == (Pattern("s.a"), Pattern("s.b"))
    assert narrow([Pattern("t.>")], values) == ()
    assert narrow([Pattern("t.>")], None) == (Pattern("t.>"),)


def test_the_twin_escapes() -> None:
    assert escape("a b.é".encode() + b"\xff%") == "a%20b%2Eé%FF%25"
