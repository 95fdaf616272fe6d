"""The value of every kind of node: the facts of section 6, one case for each rule marked [T] or [R]."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.filter.describe import describe
from overlay.filter.limits import Limits
from overlay.filter.message import Value
from overlay.filter.nodes import And, Node, Not, Or, Present, walk
from overlay.filter.parse import parse
from overlay.filter.properties import parse_properties
from overlay.filter.rows import evaluate, to_truth, trace
from tests.filter import strategies as some

ANSWERS = {True: "TRUE", False: "FALSE", None: "(absent = 1)"}
MESSAGE: dict[str, dict[str, Any]] = {
    "header": {"priority": 7},
    "properties": {
        "message_id": UUID("30313233-3435-3637-3839-616263646566"),
        "subject": "flights.JFK",
        "group-sequence": 10,
        "creation_time": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
    },
    "application_properties": {
        "i": 5,
        "f": 1.2e6,
        "s": "London",
        "number": "2",
        "flag": True,
        "big": 9007199254740993,
        "max": 2**63 - 1,
        "u": 2**64 - 1,
        "nothing": None,
        "nan": float("nan"),
        "inf": float("-inf"),
        "list": [1],
        "bytes": b"\x00\xff",
        "time": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        "and": 1,
        "p.to": "x",
        "huge": 10**400,
    },
}


def ask(text: str, message: dict[str, dict[str, Any]] = MESSAGE, now: int = some.NOW) -> Value:
    return evaluate(parse(text), message, now)


def check(cases: dict[str, Value]) -> None:
    found = {text: ask(text) for text in cases}
    assert {text: (type(value), value) for text, value in found.items()} == {
        text: (type(value), value) for text, value in cases.items()
    }


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


def test_whole_numbers_and_doubles_compare_exactly() -> None:
    check(
        {
            "9007199254740993 = 9007199254740992.0": False,
            "big = 9007199254740992.0": False,
            "big > 9007199254740992.0": True,
            "9007199254740992.0 < big": True,
            "9007199254740992 = 9007199254740992.0": True,
            "max < 9223372036854775808.0": True,
            "u = 18446744073709551615": True,
            "huge > 1.7E308": True,
            "1 < 2.5": True,
        }
    )


def test_whole_numbers_do_not_overflow() -> None:
    check(
        {
            "9223372036854775807 + 1": 9223372036854775808,
            "max + 1": 2**63,
            "max * max": (2**63 - 1) ** 2,
            "-max - 2": -(2**63) - 1,
            "i + 1": 6,
            "i - 7": -2,
            "i * -3": -15,
            "-i": -5,
            "+i": 5,
            "huge + 1": 10**400 + 1,
        }
    )


def test_mixed_arithmetic_is_of_doubles() -> None:
    check({"i + 0.5": 5.5, "2 * 1.5": 3.0, "1.0 - 1": 0.0, "-1.5": -1.5, "big + 0.0": 9007199254740992.0})


def test_division_is_always_real() -> None:
    check(
        {
            "5 / 2": 2.5,
            "100 / 10": 10.0,
            "100 / 10 = 10": True,
            "7 / -2": -3.5,
            "18446744073709551615 / 1 = 18446744073709551615": False,
            "5 / 0": None,
            "5 / 0.0": None,
            "5.0 / 0": None,
            "0 / 0": None,
            "1 / -0.0": None,
        }
    )


def test_the_rest_is_of_whole_numbers_and_has_the_sign_of_the_dividend() -> None:
    check(
        {
            "7 % 5": 2,
            "7 % -5": 2,
            "-7 % 5": -2,
            "-7 % -5": -2,
            "i % 5": 0,
            "5.0 % 2": None,
            "5 % 2.0": None,
            "(4 / 2) % 2": None,
            "5 % 0": None,
            "huge % 7": 10**400 % 7,
        }
    )


def test_arithmetic_of_what_is_no_number_is_unknown() -> None:
    check(
        dict.fromkeys(
            [
                *(
                    "+s",
                    "-flag",
                    "s + 1",
                    "'a' + 'b'",
                    "flag + flag",
                    "absent * 2",
                    "1 - absent",
                    "-absent",
                    "[nan] + 1",
                ),
                *("(i = 5) + 1", "+s = 'London'", "flag + flag = 1", "number * 1 = 2"),
            ]
        )
    )


def test_overflow_of_doubles_is_unknown_and_nothing_raises() -> None:
    check(
        dict.fromkeys(
            [
                *("1.0E308 * 10", "-1.0E308 * 10.0", "1.0E308 + 1.0E308", "absent * (1.0E308 * 10.0)"),
                *("1.7E308 / 1.0E-10", "huge / 2", "huge + 1.0", "1.0 - huge", "huge / huge", "2.0 * huge"),
            ]
        )
    )
    check({"FALSE AND 1.0E308 * 10 > 1": False, "TRUE OR huge / 2 = 1": True, "5.0E-324 / 2 = 0": True})


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


@st.composite
def _loose(draw: st.DrawFn) -> tuple[Node, dict[str, Any]]:
    schema = draw(some.schemas())
    return draw(some.expressions(schema, undeclared=True)), draw(some.loose_messages(schema))


@settings(deadline=None, max_examples=200)
@given(_loose())
def test_nothing_raises_whatever_the_message_holds(case: tuple[Node, dict[str, Any]]) -> None:
    node, message = case
    for part in walk(node):
        value = evaluate(part, message, some.NOW)
        assert value is None or type(value) in (bool, int, float, bytes)
        assert value not in (float("inf"), float("-inf")) and value == value


@settings(deadline=None, max_examples=200)
@given(some.cases(rows=2))
def test_laws_of_three_valued_logic(case: tuple[some.Schema, Node, list[dict[str, dict[str, Any]]]]) -> None:
    _, node, messages = case
    for message in messages:
        plain = to_truth(evaluate(node, message, 0))
        assert evaluate(Not(Not(node)), message, 0) is plain
        assert evaluate(And((node, node)), message, 0) is plain
        assert evaluate(Or((node, node)), message, 0) is plain
        assert evaluate(And((node, Not(node))), message, 0) is (None if plain is None else False)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_a_property_filter_is_an_and_of_its_entries(data: st.DataObject) -> None:
    schema = data.draw(some.schemas())
    mapping = data.draw(some.property_filters(schema))
    message = data.draw(some.messages(schema))
    node = parse_properties(mapping)
    single = [
        parse_properties({section: {name: value}}) for section, part in mapping.items() for name, value in part.items()
    ]
    answers = [evaluate(each, message, 0) for each in single]
    assert (evaluate(node, message, 0) is True) == all(answer is True for answer in answers)
    assert all(answer is not None for answer, each in zip(answers, single, strict=True) if isinstance(each, Present))
    assert describe(node)


def test_deep_trees_are_no_trouble() -> None:
    deep = parse("NOT " * 199 + "a", Limits())
    assert evaluate(deep, {"application_properties": {"a": True}}, 0) is False
    assert len(list(trace(deep, {}, 0))) == 200
    assert hash(deep) == hash(parse("NOT " * 199 + "a"))
    assert describe(deep) == "NOT " * 199 + "a"
    sums = parse("1" + "+1" * 99)
    assert evaluate(sums, {}, 0) == 100
