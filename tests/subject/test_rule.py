from __future__ import annotations

import json
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.errors import SubjectError
from overlay.field import Field, FieldKind
from overlay.subject import Pattern, SubjectRule, Unaddressed, is_subject
from tests.oracle import subjects as oracle
from tests.subject.strategies import near_subjects, values

MISSING, ILLEGAL, OUTSIDE = Unaddressed.MISSING, Unaddressed.ILLEGAL, Unaddressed.OUTSIDE

ORIGIN, DEST = Field(FieldKind.HEADER, "origin"), Field(FieldKind.VALUE, "leg.dest")
Values = list[bytes | None]


def build(template: str, *found: bytes | None, topic: str = "flights", partition: int = 0) -> str | Unaddressed:
    return SubjectRule.from_template(template).build(found, topic, partition)


def test_fields_are_distinct_in_order_and_without_constants() -> None:
    rule = SubjectRule.from_template("{topic}.{header:origin}-{key}.{value:leg.dest}.{header:origin}.{partition}")
    assert rule.fields == (ORIGIN, Field(FieldKind.KEY), DEST)
    assert rule.build([b"JFK", b"k", b'"LAX"'], "f", 2) == "f.JFK-k.LAX.JFK.2"


@pytest.mark.parametrize(
    ("template", "found", "subject"),
    [
        ("flights.{header:origin}", [b"JFK"], "flights.JFK"),
        ("flights.{header:origin}", [b"J.K*>% "], "flights.J%2EK%2A%3E%25%20"),
        ("flights.{header:origin}", ["Zürich".encode()], "flights.Zürich"),
        ("flights.{header:origin}", [b"\xff"], "flights.%FF"),
        ("x-{key}-y.z", [b"*"], "x-%2A-y.z"),
        ("*{key}.a>b", [b"k"], "*k.a>b"),
        ("100%.{{{key}}}", [b"50%"], "100%.{50%25}"),
        ("{header:a}{header:b}", [b"1", b"2"], "12"),
        ("{timestamp}", [b"1700000000000"], "1700000000000"),
        ("flüge.{key}", [b"k"], "flüge.k"),
        ("all", [], "all"),
        ("{value:n}.{value:b}", [b"1.5", b"true"], "1%2E5.true"),
        ("{value:s}", [b'"a\\u002eb"'], "a%2Eb"),
        ("{value:s}", [b'"\\ud800"'], "%ED%A0%80"),
        ("{value:s}.{key}", [b'"*"', b"*"], "%2A.%2A"),
    ],
)
def test_template(template: str, found: Values, subject: str) -> None:
    assert build(template, *found) == subject
    assert is_subject(subject)


@pytest.mark.parametrize(
    ("template", "found", "answer"),
    [
        ("a.{key}", [None], MISSING),
        ("a.{key}", [b""], MISSING),
        ("a-{key}", [b""], MISSING),
        ("{key}.{header:h}", [b"k", None], MISSING),
        ("{value:v}", [None], MISSING),
        ("{value:v}", [b"null"], MISSING),
        ("{value:v}", [b'""'], MISSING),
        ("{value:v}", [b"{}"], ILLEGAL),
        ("{value:v}", [b"[1]"], ILLEGAL),
        ("{value:v}", [b"tru"], ILLEGAL),
        ("{key}.{value:v}", [None, b"{}"], ILLEGAL),
        ("{timestamp}", [b"-1"], MISSING),
        ("{header:a}.{header:b}", [b"$JS", b"API"], OUTSIDE),
        ("{header:a}.{header:b}", [b"$JS", b"EVENT"], OUTSIDE),
        ("{header:a}.x.EVENT", [b"$NRG"], OUTSIDE),
        ("${header:a}.x", [b"JSC"], OUTSIDE),
    ],
)
def test_records_without_a_subject(template: str, found: Values, answer: Unaddressed) -> None:
    assert build(template, *found) is answer


def test_events_of_jetstream_are_not_kept_from_a_stream() -> None:
    assert build("{header:a}.EVENT.x", b"$JS") == "$JS.EVENT.x"
    assert build("$JS.EVENT.{key}", b"x") == "$JS.EVENT.x"


def test_topic_and_partition_are_values_too() -> None:
    rule = SubjectRule.from_template("{topic}.{partition}.{key}")
    assert rule.build([b"a"], "orders.eu%", 0) == "orders%2Eeu%25.0.a"
    assert rule.build([b"b"], "orders.eu%", 11) == "orders%2Eeu%25.11.b"
    assert rule.build([b"c"], "returns", 0) == "returns.0.c"
    assert SubjectRule.from_template("{topic}").build([], "orders", 0) == "orders"


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("", "template '' is empty"),
        ("a..{key}", "column 3 of template 'a..{key}': empty token"),
        ("{header:my header}..a", "column 20 of template '{header:my header}..a': empty token"),
        ("{key}.", "column 7 of template '{key}.': empty token"),
        (".{key}", "column 1 of template '.{key}': empty token"),
        ("a.*.{key}", "column 3 of template 'a.*.{key}': '*' is a wildcard"),
        ("{key}.>", "column 7 of template '{key}.>': '>' is a wildcard"),
        ("a b.{key}", "column 2 of template 'a b.{key}': a space"),
        ("{{ }}.{key}", "column 3 of template '{{ }}.{key}': a space"),
        ("{key", "column 1 of template '{key'"),
        ("{colour}", "unknown field {colour}"),
        ("$JS.{key}", "stream subject '$JS.{key}' overlaps"),
        ("$NRG.x", "stream subject '$NRG.x' overlaps"),
    ],
)
def test_refuses_a_template_that_makes_no_legal_subject(template: str, error: str) -> None:
    with pytest.raises(SubjectError, match=re.escape(error)):
        SubjectRule.from_template(template)


@pytest.mark.parametrize(
    ("raw", "answer"),
    [
        (b"flights.JFK.LAX", "flights.JFK.LAX"),
        (b"a%2E*b.c>", "a%2E*b.c>"),
        ("flüge.大阪".encode(), "flüge.大阪"),
        (b"$JS.EVENT.x", "$JS.EVENT.x"),
        (None, MISSING),
        (b"", MISSING),
        (b"a..b", ILLEGAL),
        (b".", ILLEGAL),
        (b"a.*", ILLEGAL),
        (b">", ILLEGAL),
        (b"a b", ILLEGAL),
        (b"a\xff", ILLEGAL),
        (b"$JS.API.INFO", OUTSIDE),
    ],
)
@pytest.mark.parametrize("rule", [SubjectRule.from_header("subject"), SubjectRule.from_key()])
def test_a_field_that_holds_the_whole_subject(rule: SubjectRule, raw: bytes | None, answer: str | Unaddressed) -> None:
    assert rule.build([raw], "t", 0) == answer


def test_whole_subjects_name_their_field() -> None:
    assert SubjectRule.from_header("subject").fields == (Field(FieldKind.HEADER, "subject"),)
    assert SubjectRule.from_key().fields == (Field(FieldKind.KEY),)
    assert SubjectRule.from_topic().fields == ()
    with pytest.raises(SubjectError, match="the header's name is empty"):
        SubjectRule.from_header("")


@pytest.mark.parametrize(
    ("topic", "answer"), [("orders", "orders"), ("orders.eu", "orders.eu"), ("a..b", ILLEGAL), (".a", ILLEGAL)]
)
def test_the_topic_as_subject(topic: str, answer: str | Unaddressed) -> None:
    assert SubjectRule.from_topic().build([], topic, 0) == answer


@pytest.mark.parametrize(
    ("template", "pattern"),
    [
        ("flights.{header:origin}.{key}", "flights.*.*"),
        ("x-{key}.{key}-y.{topic}", "*.*.*"),
        ("a.{partition}.b", "a.*.b"),
        ("*{key}.{{a}}", "*.{a}"),
        ("all", "all"),
    ],
)
def test_patterns_of_a_template(template: str, pattern: str) -> None:
    assert SubjectRule.from_template(template).patterns() == (Pattern(pattern),)


def test_patterns_of_whole_subjects() -> None:
    for rule in (SubjectRule.from_key(), SubjectRule.from_header("h"), SubjectRule.from_topic()):
        assert rule.patterns() == (Pattern(">"),)


def test_a_rule_is_a_value_and_can_be_sent_elsewhere() -> None:
    rule = SubjectRule.from_template("{topic}.{value:leg.dest}")
    assert rule == SubjectRule.from_template("{topic}.{value:leg.dest}") != SubjectRule.from_template("{topic}.{key}")
    assert SubjectRule.from_template("{key}") != SubjectRule.from_key()
    rule.build([b"1"], "t", 0)
    assert len({rule, SubjectRule.from_template("{topic}.{value:leg.dest}")}) == 1
    copy = pickle.loads(pickle.dumps(rule))
    assert copy == rule
    assert copy.build([b'"LAX"'], "t", 0) == "t.LAX"


literals = st.sampled_from(["", "a", "x-", "%", "é"])
fields = st.sampled_from(["{key}", "{header:h}", "{value:v}", "{header:g}"])
json_values = st.one_of(values.map(lambda raw: raw.decode("utf-8", "replace")), st.integers(), st.booleans(), st.none())


@given(
    st.lists(st.tuples(literals, fields), min_size=1, max_size=4),
    st.dictionaries(st.sampled_from(["{key}", "{header:h}", "{header:g}"]), st.one_of(values, st.none())),
    json_values,
    st.booleans(),
)
def test_build_as_the_slow_way(
    parts: list[tuple[str, str]], raw: dict[str, bytes | None], value: object, ascii_only: bool
) -> None:
    text = "t." + ".".join(literal + name for literal, name in parts)
    known = {"{key}": None, "{header:h}": None, "{header:g}": None} | raw
    known["{value:v}"] = json.dumps(value, ensure_ascii=ascii_only).encode()
    rule = SubjectRule.from_template(text)
    subject = rule.build([known[str(field)] for field in rule.fields], "topic", 0)
    wanted = oracle.build(text, known)
    assert subject == (MISSING if wanted is None else wanted)
    if isinstance(subject, str):
        assert is_subject(subject) and rule.patterns()[0].matches(subject)


@given(near_subjects)
def test_whole_subjects_are_legal_or_refused(text: str) -> None:
    answer = SubjectRule.from_key().build([text.encode()], "t", 0)
    assert answer == (text if oracle.is_subject(text) else ILLEGAL if text else MISSING)
