"""The value of every kind of node: the facts of section 6, one case for each rule marked [T] or [R]."""

from __future__ import annotations

from typing import Any

from overlay.filter.message import Value
from overlay.filter.parse import parse
from overlay.filter.properties import parse_properties
from overlay.filter.rows import evaluate, to_truth, trace
from tests.filter import strategies as some
from tests.filter.messages import MESSAGE, ask, check

ANSWERS = {True: "TRUE", False: "FALSE", None: "(absent = 1)"}


def test_kleenes_tables() -> None:
    for a, left in ANSWERS.items():
        assert ask(f"NOT {left}") is (None if a is None else not a)
        for b, right in ANSWERS.items():
            both = False if False in (a, b) else None if None in (a, b) else True
            either = True if True in (a, b) else None if None in (a, b) else False
            assert ask(f"{left} AND {right}") is both
            assert ask(f"{left} OR {right}") is either
            assert ask(f"{left} AND {right} AND TRUE") is both
            assert ask(f"{left} OR {right} OR FALSE") is either


def test_an_operand_that_is_no_condition_is_unknown() -> None:
    check(
        {
            "5 OR TRUE": True,
            "NOT (5 AND FALSE)": True,
            "NOT 5": None,
            "NOT s": None,
            "i AND TRUE": None,
            "'TRUE' OR FALSE": None,
            "NOT flag": False,
            "flag AND flag": True,
        }
    )


def test_null_compares_as_unknown() -> None:
    for operator in ("=", "<>", "<", "<=", ">", ">="):
        check(dict.fromkeys([f"absent {operator} 1", f"1 {operator} absent", f"absent {operator} absent"]))
        check(
            dict.fromkeys([f"nothing {operator} 1", f"(absent = 1) {operator} TRUE", f"TRUE {operator} (absent = 1)"])
        )


def test_what_reads_as_null() -> None:
    for name in ("absent", "nothing", "[nan]", "[inf]", "list", "p.to", "p.reply_to", "a.x"):
        check({f"{name} IS NULL": True, f"{name} IS NOT NULL": False, f"NOT {name} IS NULL": False})
    check({"i IS NULL": False, "i IS NOT NULL": True, "[p.to] IS NULL": False, "[] IS NULL": True})


def test_equality_of_like_types() -> None:
    check(
        {
            "i = 5": True,
            "i = 5.0": True,
            "5.0 = i": True,
            "i = 6": False,
            "i <> 5.0": False,
            "s = 'London'": True,
            "s = 'london'": False,
            "s <> 'london'": True,
            "flag = TRUE": True,
            "flag <> FALSE": True,
            "(i = 5) = TRUE": True,
            "-0.0 = 0": True,
            "0.0 = -0.0": True,
            "f = 1200000": True,
        }
    )


def test_unlike_types_are_unequal_and_without_order() -> None:
    check(
        {
            "s = 5": False,
            "s <> 5": True,
            "TRUE <> 1": True,
            "TRUE = 1": False,
            "FALSE = 0": False,
            "1 = '1'": False,
            "number = 2": False,
            "0x05 = 5": False,
            "0x01 = TRUE": False,
            "NOT (TRUE > FALSE)": True,
            "TRUE >= TRUE": False,
            "FALSE < TRUE": False,
            "1 < '2'": False,
            "NOT (1 < '2')": True,
            "'a' > 1": False,
            "flag <= flag": False,
        }
    )


def test_strings_and_binary_constants_are_one_type() -> None:
    check(
        {
            "'Hello' = 0x48656C6C6F": True,
            "0x4142 LIKE 'A%'": True,
            "bytes = 0x00FF": True,
            "bytes > 0x00FE": True,
            "p.message_id = '0123456789abcdef'": True,
            "p.message_id LIKE '0123%'": True,
        }
    )


def test_byte_strings_have_the_order_of_their_bytes() -> None:
    check(
        {
            "'B' < 'a'": True,
            "'a' < 'é'": True,
            "'Z' < 'a'": True,
            "'ab' < 'abc'": True,
            "'' < 'a'": True,
            "'10' < '9'": True,
            "0x7F < 0x80": True,
            "'a' <= 'a'": True,
            "'a' >= 'b'": False,
        }
    )


def test_in() -> None:
    check(
        {
            "i IN (1, 5)": True,
            "i IN (5.0)": True,
            "i IN (1, 2)": False,
            "i NOT IN (1, 2)": True,
            "i NOT IN (5)": False,
            "1 + 4 IN (i)": True,
            "10.0 IN (TRUE, p.group_sequence)": True,
            "s IN ('Paris', 'London')": True,
            "s IN ('london')": False,
            "flag IN (1)": False,
            "flag IN (TRUE)": True,
            "i IN (absent, 5)": True,
            "i IN (absent)": False,
            "i NOT IN (absent)": True,
            "i NOT IN ('x', absent)": True,
            "absent IN (1)": None,
            "absent NOT IN (1)": None,
            "absent IN (absent)": None,
            "i IN (4 + 1, (i = 5))": True,
            "TRUE IN ((i = 5))": True,
            "UTC() IN (p.creation_time)": True,
        }
    )


def test_like() -> None:
    check(
        {
            "s LIKE 'Lon%'": True,
            "s LIKE '_ondon'": True,
            "s NOT LIKE 'Paris'": True,
            "s LIKE 'LONDON'": False,
            "i LIKE '5'": None,
            "i NOT LIKE '5'": None,
            "flag LIKE '%'": None,
            "absent LIKE '%'": None,
            "absent NOT LIKE '%'": None,
            "bytes LIKE '%'": None,
            "bytes NOT LIKE '%a'": None,
            "bytes = 0x00FF AND s LIKE '%n'": True,
            "'a%b' LIKE 'a!%b' ESCAPE '!'": True,
            "'a\nb' LIKE 'a_b'": True,
            "'abc\n' LIKE 'a_c'": False,
        }
    )


def test_the_priority_of_a_message_without_one_is_four() -> None:
    check({"h.priority": 7, "header.priority > 4": True})
    empty: list[Any] = [
        {},
        {"header": {}},
        {"header": {"priority": None}},
        {"header": None},
        {"header": {"priority": [1]}},
    ]
    for message in empty:
        assert ask("h.priority", message) == 4
        assert ask("h.priority IS NULL", message) is False


def test_utc_is_the_time_of_the_evaluation_in_milliseconds() -> None:
    check(
        {
            "UTC()": some.NOW,
            "p.creation_time = UTC()": True,
            "time = 1700000000000": True,
            "time + 1 > UTC()": True,
            "UTC() - time < 1000": True,
        }
    )
    assert ask("UTC()", now=5) == 5


def test_names() -> None:
    check(
        {
            "a.and": 1,
            "[and]": 1,
            "application_properties.i": 5,
            "[p.to]": b"x",
            "properties.subject": b"flights.JFK",
            "p.group_sequence": 10,
            "I IS NULL": True,
        }
    )


def test_what_is_no_condition_is_unknown_at_the_top() -> None:
    assert [to_truth(ask(text)) for text in ("+i", "s", "1", "flag", "i = 5", "absent")] == [
        None,
        None,
        None,
        True,
        True,
        None,
    ]


def test_property_filters() -> None:
    def pass_(mapping: dict[str, Any]) -> Value:
        return evaluate(parse_properties(mapping), MESSAGE, 0)

    props, apps = "properties", "application_properties"
    assert pass_({props: {"subject": "flights.JFK", "group-sequence": 10}, apps: {"s": "London"}}) is True
    assert pass_({apps: {"i": 5.0}}) is True
    assert pass_({props: {"group-sequence": 10}, apps: {"i": 10.1}}) is False
    assert pass_({apps: {"time": some.NOW}}) is True
    assert pass_({apps: {"flag": 1}}) is False
    assert pass_({apps: {"flag": True}}) is True
    assert pass_({apps: {"s": b"London"}}) is True
    assert pass_({apps: {"s": "london"}}) is False
    assert pass_({props: {"subject": "&p:flights."}}) is True
    assert pass_({props: {"subject": "&s:.JFK"}}) is True
    assert pass_({props: {"subject": "&p:Flights."}}) is False
    assert pass_({props: {"subject": "&s:longer than flights.JFK"}}) is False
    assert pass_({apps: {"bytes": "&p:"}}) is True
    assert pass_({apps: {"i": "&p:"}}) is False
    assert pass_({apps: {"absent": "&p:"}}) is None
    assert pass_({apps: {"absent": "x"}}) is None
    assert pass_({apps: {"s": None, "nothing": None, "list": None}}) is True
    assert pass_({apps: {"absent": None}}) is False
    assert evaluate(parse_properties({apps: {"x": None}}), {}, 0) is False


def test_trace_tells_the_value_of_every_part() -> None:
    text = "i = 5 AND (absent > 1 OR s LIKE 'L%')"
    steps = list(trace(parse(text), MESSAGE, 0))
    assert [(step.depth, text[slice(*step.at)], step.text, step.value) for step in steps] == [
        (0, text, text, True),
        (1, "i = 5", "i = 5", True),
        (2, "i", "i", 5),
        (2, "5", "5", 5),
        (1, "(absent > 1 OR s LIKE 'L%')", "absent > 1 OR s LIKE 'L%'", True),
        (2, "absent > 1", "absent > 1", None),
        (3, "absent", "absent", None),
        (3, "1", "1", 1),
        (2, "s LIKE 'L%'", "s LIKE 'L%'", True),
        (3, "s", "s", b"London"),
    ]
