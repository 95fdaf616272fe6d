"""Filters over slices, for several consumers at once, against the row evaluator on one record after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overlay.config import StreamConfig
from overlay.config.stream import Property
from overlay.filter import Filter, compile_properties, compile_sql
from overlay.match import Addressed, Addressing, Audience, Masks, Sifted, Tally
from overlay.subject import Pattern
from tests.oracle.batches import Record
from tests.oracle.properties import answer
from tests.oracle.push import wants
from tests.support.batches import build

DECLARED = {
    "delay": ("double", "{header:delay}"),
    "count": ("long", "{value:n}"),
    "tail": ("string", "{value:leg.tail}"),
    "late": ("boolean", "{header:late}"),
    "at": ("timestamp", "{header:at}"),
    "raw": ("binary", "{key}"),
    "where": ("string", "{topic}"),
    "part": ("long", "{partition}"),
    "when": ("timestamp", "{timestamp}"),
    "p.message_id": ("long", ""),
    "properties.reply_to": ("string", "{value:n}"),
}
STREAM = StreamConfig.model_validate(
    {
        "name": "S",
        "topics": ("t",),
        "subject": {"template": "s.{header:dest}"},
        "properties": {
            name: {"type": type, **({"from": source} if source else {})} for name, (type, source) in DECLARED.items()
        },
    }
)
SQL = [
    "delay > 60",
    "delay > 60 AND carrier IN ('AA', 'UA')",
    "NOT (delay > 60 AND carrier IN ('AA', 'UA'))",
    "carrier = 'AA' OR count >= 7",
    "count % 2 = 1",
    "count = delay",
    "tail LIKE 'N%' AND late",
    "tail IS NULL",
    "tail IS NOT NULL AND delay / count > 2",
    "at >= 1000 OR when < 5",
    "raw = 0x6B",
    "where = 't' AND part = 3",
    "part = 4",
    "p.subject LIKE 's.%a'",
    "p.subject = 's.a' AND p.to = 't' AND delay > 1",
    "p.group_id = 'k' OR p.creation_time > 3",
    "p.message_id > 1",
    "p.message_id IS NULL",
    "p.reply_to = 'x'",
    "p.user_id = 'u'",
    "h.priority = 4",
    "header.priority > 5 OR carrier <> 'AA'",
    "UTC() >= p.creation_time",
    "TRUE",
    "1 = 2",
    "carrier",
]
FILTERS: list[Filter | None] = [
    None,
    *(compile_sql(text, STREAM.properties) for text in SQL),
    compile_properties({"application_properties": {"carrier": "&p:A", "count": 7}}, STREAM.properties),
    compile_properties(
        {"properties": {"subject": "&s:.a"}, "application_properties": {"tail": None}}, STREAM.properties
    ),
    compile_properties({"application_properties": {"carrier": None, "delay": None}}, STREAM.properties),
]
PATTERNS = ["s.>", "s.a", "s.*", "s.b", "x.>"]

numbers = st.sampled_from([b"0", b"7", b"61.5", b"60", b"1e3", b"-1", b"late", b"", b"9007199254740993", b"\xff"])
texts = st.sampled_from([b"AA", b"UA", b"", b"N7", b"\xff", b"x", "é".encode()])
HEADERS = {
    b"dest": st.sampled_from([b"a", b"b", b"aa"]),
    b"delay": numbers,
    b"carrier": texts,
    b"late": st.sampled_from([b"true", b"FALSE", b"1"]),
    b"at": st.sampled_from([b"1000", b"1970-01-01T00:00:02Z", b"soon"]),
    b"priority": st.sampled_from([b"4", b"9", b"high"]),
    b"message_id": numbers,
    b"message-id": numbers,
    b"user-id": st.sampled_from([b"u", b"v"]),
    b"subject": texts,
    b"group_id": texts,
    b"creation-time": st.sampled_from([b"4", b"never"]),
}
VALUES = st.sampled_from(
    [
        None,
        b"",
        b"oops",
        b'{"n": ',
        b"[7]",
        b"null",
        b'{"n": 7}',
        b'{"n": 7.5, "leg": {"tail": "N1"}}',
        b'{"n": "x", "leg": {"tail": 5}}',
        b'{"n": 8, "leg": {"tail": "N\\u00e9"}}',
        b'{"leg": {"tail": null}}',
        b'{"leg": {"tail": "\\ud800"}}',
        b"\0\0\0\0\7\2\6abc",
        b"Obj\1\4",
        b"\xff\xfe",
    ]
)


@st.composite
def records(draw: st.DrawFn) -> list[Record]:
    count = draw(st.integers(1, 12))
    return [
        Record(
            offset,
            draw(st.sampled_from([-1, 2, 1_700_000_000_000])),
            draw(st.sampled_from([None, b"k", b"\xff"])),
            draw(VALUES),
            [(name, draw(st.none() | values)) for name, values in HEADERS.items() if draw(st.booleans())],
        )
        for offset in range(count)
    ]


def read_slice(found: list[Record], masks: Masks, addressing: Addressing) -> Addressed:
    data = np.frombuffer(build([replace(record, offset=at) for at, record in enumerate(found)], codec=3), np.uint8)
    piece = next(addressing.read("t", 3, data, 0, more=masks.fields))
    assert isinstance(piece, Addressed)
    return piece


def sift(found: list[Record], readers: Sequence[tuple[Sequence[str], Filter | None]]) -> Sifted:
    addressing = Addressing(STREAM.subject.rule, STREAM.patterns)
    masks = Masks([filter for _, filter in readers], STREAM.properties)
    audience = Audience(addressing.dictionary("t", 3), [tuple(map(Pattern.parse, patterns)) for patterns, _ in readers])
    piece = read_slice(found, masks, addressing)
    selection = audience.select(piece.codes)
    return masks.sift(piece, {i: selection.of(i) for i in selection.wanting()}, 0)


readers = st.tuples(st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=2, unique=True), st.sampled_from(FILTERS))


def check(found: list[Record], wanted: Sequence[tuple[Sequence[str], Filter | None]]) -> Sifted:
    sifted = sift(found, wanted)
    for i, (patterns, filter) in enumerate(wanted):
        rows, results, nulls = [], Counter[bool | None](), Counter[str]()
        for row, record in enumerate(found):
            to = dict(record.headers).get(b"dest")
            if not to or not wants(patterns, f"s.{to.decode()}"):
                continue
            said, reasons = True, list[str]()
            if filter is not None:
                said, reasons = answer(filter, record, f"s.{to.decode()}", "t", 3, DECLARED)  # type: ignore[assignment]
                results[said] += 1
                nulls.update(reasons)
            if said:
                rows.append(row)
        assert sifted.rows.get(i, np.empty(0)).tolist() == rows
        tally = sifted.tallies.get(i, Tally(0, 0, 0, {}))
        assert (tally.true, tally.false, tally.unknown) == (results[True], results[False], results[None])
        assert tally.nulls == nulls
    return sifted


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(records(), st.lists(readers, min_size=1, max_size=6))
def test_each_consumer_gets_what_its_filter_accepts(
    found: list[Record], wanted: list[tuple[list[str], Filter | None]]
) -> None:
    check(found, wanted)


def test_every_filter_on_many_records() -> None:
    """Each header and value comes with and without each other; every filter accepts some and rejects some."""
    chance = Random(4)
    pools: dict[bytes, list[bytes | None]] = {
        b"dest": [b"a", b"b"], b"delay": [b"61", b"7", b"2.5", b"late", None], b"carrier": [b"AA", b"UA", b"\xff"],
        b"late": [b"true", b"no"], b"at": [b"1000", b"soon"], b"priority": [b"4", b"9"], b"message_id": [b"7", b"x"],
        b"message-id": [b"1"], b"user-id": [b"u", b"v"], b"subject": [b"x.a"], b"group_id": [b"k", b"l"],
    }  # fmt: skip
    values = [b'{"n": %d, "leg": {"tail": "N%d"}}' % (i, i) for i in range(9)] + [
        b'{"n": "x"}',
        b"oops",
        b"\0\0\0\0\7x",
    ]
    found = [
        Record(
            i,
            chance.choice([-1, 2, 1_700_000_000_000]),
            chance.choice([None, b"k"]),
            chance.choice(values),
            [(name, chance.choice(pool)) for name, pool in pools.items() if name == b"dest" or chance.random() < 0.6],
        )
        for i in range(300)
    ]
    wanted = [(patterns, filter) for filter in FILTERS for patterns in (["s.>"], ["s.a"])]
    sifted = check(found, wanted)
    texts = [filter.text if filter else "" for _, filter in wanted]
    one_sided = {texts[i] for i, tally in sifted.tallies.items() if not tally.true or not tally.false + tally.unknown}
    constant = {"TRUE", "1 = 2", "carrier", "where = 't' AND part = 3", "part = 4", "UTC() >= p.creation_time"}
    assert one_sided == constant


PLAIN = [
    Record(i, 5, b"k", b'{"n": %d}' % i, [(b"dest", b"ab"[i % 2 : i % 2 + 1]), (b"delay", b"%d" % i)])
    for i in range(100)
]


def test_equal_filters_of_consumers_with_equal_subjects_share_their_answer() -> None:
    one, other = (compile_sql(text, STREAM.properties) for text in ("delay > 60", "(delay   > 60)"))
    sifted = sift(PLAIN, [(["s.>"], one), (["s.>"], other), (["s.a"], one)])
    assert sifted.rows[0] is sifted.rows[1]
    assert sifted.rows[0].tolist() == list(range(61, 100))
    assert sifted.rows[2].tolist() == list(range(62, 100, 2))


def test_what_no_consumer_may_want_is_not_looked_at() -> None:
    """Neither records beyond the subjects of filtered consumers, nor filters whose consumers may want nothing."""
    malformed = [Record(i, 5, None, b"oops", [(b"dest", b"b")]) for i in range(5)]
    sifted = sift([*malformed, PLAIN[2]], [(["s.a"], compile_sql("count = 2", STREAM.properties)), (["s.>"], None)])
    assert sifted.rows[0].tolist() == [5]
    assert sifted.rows[1].tolist() == list(range(6))
    assert sifted.tallies == {0: Tally(1, 0, 0, {})}
    assert sift(malformed, [(["s.a"], compile_sql("count = 2", STREAM.properties))]) == Sifted()


def test_the_fields_are_those_that_the_filters_name() -> None:
    def fields(*texts: str) -> list[str]:
        return [
            str(field) for field in Masks([compile_sql(t, STREAM.properties) for t in texts], STREAM.properties).fields
        ]

    assert fields() == []
    assert fields("delay > 60", "delay > 70 AND carrier = 'AA'") == ["{header:carrier}", "{header:delay}"]
    assert fields("where = 't' AND part = 1 AND when > 5") == []
    assert fields("p.message_id = 1 AND p.group_id = 'k'") == [
        "{header:group-id}",
        "{header:group_id}",
        "{header:message-id}",
        "{header:message_id}",
        "{key}",
    ]
    assert fields("p.reply_to = 'x' AND tail = 'N'") == ["{value:leg.tail}", "{value:n}"]


def test_a_filter_without_types_is_refused() -> None:
    with pytest.raises(ValueError, match="compiled without the stream's properties"):
        Masks([compile_sql("a = 1")], {})


def test_what_cannot_be_read_is_there_all_the_same() -> None:
    """A property filter's null asks for the key, with any value; IS NOT NULL asks for a value."""
    headers: list[list[tuple[bytes, bytes | None]]] = [[(b"delay", b"7")], [(b"delay", b"late")], []]
    values = [b'{"leg": {"tail": "N1"}}', b'{"leg": {"tail": 5}}', b"oops"]
    found = [
        Record(i, 5, None, value, [(b"dest", b"a"), *pairs])
        for i, (value, pairs) in enumerate(zip(values, headers, strict=True))
    ]
    # the topic is no number: one value for all records, which is there in each
    types = {**STREAM.properties, "where": Property.model_validate({"type": "long", "from": "{topic}"})}

    def ask(wanted: dict[str, None]) -> list[int]:
        masks = Masks([compile_properties({"application_properties": wanted}, types)], types)
        piece = read_slice(found, masks, Addressing(STREAM.subject.rule, STREAM.patterns))
        kept = masks.sift(piece, {0: np.arange(3)}, 0).rows
        return [] if 0 not in kept else kept[0].tolist()

    assert ask({"delay": None}) == [0, 1]
    assert ask({"tail": None}) == [0, 1]
    assert ask({"where": None}) == [0, 1, 2]
    assert ask({"delay": None, "nothing": None}) == []


def test_more_subjects_than_records() -> None:
    """Also where the dictionary is larger than the slice, so that its subjects are read row by row."""
    addressing = Addressing(STREAM.subject.rule, STREAM.patterns)
    masks = Masks([compile_sql("p.subject LIKE '%7'", STREAM.properties)], STREAM.properties)
    for start in (0, 30, 60):
        found = [Record(i, 5, None, None, [(b"dest", b"%d" % i)]) for i in range(start, start + 30)]
        piece = read_slice(found, masks, addressing)
        kept = masks.sift(piece, {0: np.arange(30)}, 0).rows[0]
        assert (kept + start).tolist() == [start + 7, start + 17, start + 27]
