"""Filters over batches: the rules of the facts' section 6, by hand and type against type.

That batches answer as messages do is tests/filter/test_agreement.py's affair.
"""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest

from overlay.filter import rows
from overlay.filter.arrow import Evaluation, compile, evaluate, read_columns
from overlay.filter.arrow.comparing import fit
from overlay.filter.arrow.vectors import Kind
from overlay.filter.nodes import Affix, Compare, Comparison, Literal, Name, Node, Not, Present
from overlay.filter.parse import parse
from overlay.filter.rows import to_truth
from tests.filter.batches import APPLICATION, COLUMNS, NOW, ROWS, TOP, ask, check, make_batch, take_row

T, F, N = True, False, None


def test_comparisons() -> None:
    check(
        {
            "i = 5": [T, F, F, N],
            "5.0 = i": [T, F, F, N],
            "i <> 5": [F, T, T, N],
            "i < 5.5": [T, T, F, N],
            "i > -7.5": [T, T, T, N],
            "i <= 1.0E300": [T, T, T, N],
            "i = j": [F, F, F, N],
            "small >= 5": [T, F, T, N],
            "d = 0": [F, T, F, N],
            "s = 'Hello'": [T, F, F, N],
            "s = 0x48656C6C6F": [T, F, F, N],
            "s < r": [F, T, F, N],
            "s = b": [T, F, F, N],
            "s < 0xFF": [T, T, T, N],
            "r = code": [F, F, N, N],
            "t = TRUE": [T, F, N, T],
            "t <> (i = 5)": [F, F, N, N],
            "time = 1700000000000": [T, F, F, N],
            "time < UTC()": [F, T, T, N],
            "missing = 1": [N, N, N, N],
            "missing <> missing": [N, N, N, N],
            "none = 1": [N, N, N, N],
            "list = 1": [N, N, N, N],
        }
    )


def test_unlike_types() -> None:
    check(
        {
            "s = 5": [F, F, F, N],
            "s <> 5": [T, T, T, N],
            "s < 5": [F, F, F, N],
            "NOT (s < 5)": [T, T, T, N],
            "i >= s": [F, F, F, N],
            "i <> s": [T, T, T, N],
            "t > FALSE": [F, F, N, F],
            "NOT t > FALSE": [T, T, N, T],
            "t = 1": [F, F, N, F],
            "t <> 1": [T, T, N, T],
            "b < TRUE": [F, F, F, N],
        }
    )


def test_every_type_against_every_type() -> None:
    """All pairs of columns and constants, all operators, against the row evaluator."""
    operands: list[Node] = [Name(APPLICATION, name) for name in (*COLUMNS, "missing")]
    constants: tuple[bool | int | float | bytes, ...] = (
        5,
        -7,
        2**53,
        TOP,
        2**63,
        -(2**63),
        -(2**63) - 1,
        2**64 - 1,
        10**400,
    )
    constants += (-(10**400), 5.0, -0.0, 4.5, 2.0**53, 2.0**63, -(2.0**63), 1e300, b"", b"Hello", b"\xff", True, False)
    operands += [Literal(constant) for constant in constants]
    messages = [take_row(COLUMNS, row) for row in range(ROWS)]
    batch = make_batch(COLUMNS)
    columns = read_columns(batch, frozenset((APPLICATION, name) for name in COLUMNS))
    evaluation = Evaluation(columns, ROWS, NOW)
    wrong = []
    for (left, right), operator in itertools.product(itertools.product(operands, repeat=2), Compare):
        node = Comparison(operator, left, right)
        want = [rows.evaluate(node, message, NOW) for message in messages]
        if evaluation.answer(compile(node)).to_pylist() != want:
            wrong.append(node)
    assert not wrong


def test_integers_do_not_overflow() -> None:
    check(
        {
            "i + 1 > 9223372036854775807": [F, F, T, N],
            "i + 1 = 9223372036854775808": [F, F, T, N],
            "i * i = 25": [T, F, F, N],
            "i * i = 85070591730234615847396907784232501249": [F, F, T, N],
            "(i + 1) % 2 = 0": [T, T, T, N],
            "-i - 2 = -9223372036854775809": [F, F, T, N],
            "i + 1 IN (6, 9223372036854775808)": [T, F, T, N],
            "i + 100000000000000000000 > 100000000000000000000": [T, F, T, N],
            "u = 18446744073709551615": [F, T, F, N],
            "u - 1 = 9223372036854775807": [F, F, T, N],
            "u > i": [F, T, T, N],
            "u IS NULL": [F, F, F, T],
            "(i + 1 > i) = TRUE": [T, T, T, N],
        }
    )


def test_arithmetic() -> None:
    check(
        {
            "i / j = 2.5": [T, F, F, N],
            "i / 0 = 1": [N, N, N, N],
            "j / (j - 2) > 0": [N, T, T, T],
            "i % j = -2": [F, T, F, N],
            "7 % j = 2": [F, T, F, F],
            "i % 0 = 0": [N, N, N, N],
            "i % (j - 2) = 0": [N, T, F, N],
            "i % -9223372036854775808 = i": [T, T, T, N],
            "(i - i - 9223372036854775807 - 1) % -1 = 0": [T, T, T, N],
            "d % 2 = 1": [N, N, N, N],
            "i % 2.0 = 1": [N, N, N, N],
            "d * 1.0E308 * 10.0 > 0": [N, F, N, N],
            "-d < 0": [T, F, T, N],
            "+s = 'Hello'": [N, N, N, N],
            "-t = 1": [N, N, N, N],
            "s + 1 = 1": [N, N, N, N],
            "f = 1200000": [T, N, N, F],
            "f IS NULL": [F, T, T, F],
            "missing * (1.0E308 * 10.0) = 1": [N, N, N, N],
            "UTC() - time = 1": [F, T, F, N],
        }
    )


def test_the_remainder_of_the_least_integer() -> None:
    columns = {"i": pa.array([-TOP - 1, -TOP - 1, 7, -7]), "j": pa.array([-1, -TOP - 1, -TOP - 1, TOP])}
    assert ask("i % j = 0", columns) == [T, T, F, F]
    assert ask("i % j = i", columns) == [F, F, T, T]


def test_mixed_comparison_is_exact() -> None:
    columns = {
        "i": pa.array([2**53, 2**53 + 1, 2**53 + 1, TOP, TOP, -TOP - 1]),
        "d": pa.array([2.0**53, 2.0**53, 2.0**53 + 2, 2.0**63, 2.0**62, -(2.0**63)]),
    }
    assert ask("i = d", columns) == [T, F, F, F, F, T]
    assert ask("i < d", columns) == [F, F, T, T, F, F]
    assert ask("i <= d", columns) == [T, F, T, T, F, T]
    assert ask("d <> i", columns) == [F, T, T, T, T, F]


@pytest.mark.parametrize("operator", Compare)
def test_constants_fit_either_kind_of_number(operator: Compare) -> None:
    """Against Python, whose int and float compare exactly."""
    edges = [
        2**53 + 1,
        2**53,
        TOP,
        2**63,
        -(2**63),
        -(2**63) - 1,
        10**400,
        -(10**400),
        0.5,
        -0.5,
        2.0**63,
        -(2.0**63),
        1e300,
    ]
    values: dict[Kind, tuple[list[Any], pa.DataType]] = {
        Kind.LONG: ([0, 1, -1, 2**53, 2**53 + 1, 2**53 + 2, TOP, -TOP - 1], pa.int64()),
        Kind.DOUBLE: ([0.0, 0.5, -0.5, 2.0**53, 2.0**53 + 2, 2.0**63, -(2.0**63), 1e300, -1e300], pa.float64()),
    }
    for constant, (kind, (own, type)) in itertools.product(edges, values.items()):
        fitted = fit(operator, constant, kind)
        want = [rows.evaluate(Comparison(operator, Literal(value), Literal(constant)), {}, 0) for value in own]
        found = (
            [fitted] * len(own) if isinstance(fitted, bool) else fitted[0](pa.array(own, type), fitted[1]).to_pylist()
        )
        assert found == want, (constant, kind)


def test_in() -> None:
    check(
        {
            "i IN (5, -7.0, 'x', TRUE)": [T, T, F, N],
            "i NOT IN (5, -7.0)": [F, F, T, N],
            "i IN (missing)": [F, F, F, N],
            "i NOT IN (missing)": [T, T, T, N],
            "i NOT IN ('x', missing)": [T, T, T, N],
            "i IN (j, j + 3)": [T, F, F, N],
            "missing IN (1)": [N, N, N, N],
            "5 IN (i)": [T, F, F, F],
            "5 IN (missing)": [F, F, F, F],
            "5 IN (missing, 5)": [T, T, T, T],
            "d IN (0, 1, 2)": [F, T, F, N],
            "s IN ('Hello', 'x', 0xC3A90A)": [T, F, T, N],
            "r IN ('A%B', 'x', '5')": [T, F, T, F],
            "code IN ('Hello', 'x')": [T, F, N, N],
            "b IN (0xFF, 0x61)": [F, T, F, N],
            "t IN (1, 0)": [F, F, N, F],
            "t IN (TRUE, 1, FALSE)": [T, T, N, T],
            "time IN (UTC(), 5)": [T, F, F, N],
            "i IN (1.5, 2.5)": [F, F, F, N],
            "i IN (9223372036854775808)": [F, F, F, N],
            "u IN (18446744073709551615)": [F, T, F, N],
            "i IN (5, 1/0)": [T, F, F, N],
        }
    )


def test_like() -> None:
    check(
        {
            "s LIKE 'Hello'": [T, F, F, N],
            "s LIKE '%'": [T, T, T, N],
            "s LIKE ''": [F, T, F, N],
            "s LIKE 'H%'": [T, F, F, N],
            "s LIKE '%o'": [T, F, F, N],
            "s LIKE '%ll%'": [T, F, F, N],
            "s LIKE 'H%o'": [T, F, F, N],
            "s LIKE 'Hello%Hello'": [F, F, F, N],
            "s LIKE '__'": [F, F, T, N],
            "s LIKE '_%'": [T, F, T, N],
            "s LIKE '%_____%'": [T, F, F, N],
            "s LIKE '%__________%'": [F, F, F, N],
            "s LIKE '_________e%__________%'": [F, F, F, N],
            "s NOT LIKE 'H%'": [F, T, T, N],
            "r LIKE 'A!%B' ESCAPE '!'": [T, F, F, F],
            "r LIKE 'A_B'": [T, F, F, F],
            "b LIKE '%'": [T, N, N, N],
            "b NOT LIKE 'H%'": [F, N, N, N],
            "b LIKE '_ello'": [T, N, N, N],
            "code LIKE 'H%'": [T, F, N, N],
            "i LIKE '%'": [N, N, N, N],
            "t NOT LIKE '%'": [N, N, N, N],
            "missing NOT LIKE '%'": [N, N, N, N],
            "'Hello' LIKE 'H%' AND t": [T, F, N, T],
        }
    )


def test_wide_patterns_are_answered_by_the_linear_engine() -> None:
    """RE2 follows as many states as the run has characters."""
    value = "a" * 500
    pattern = "%b" + "_" * 400 + "%"
    assert ask(f"s LIKE '{pattern}'", {"s": pa.array([value, "b" + value, None])}) == [F, T, N]


def test_logic() -> None:
    check(
        {
            "t AND i = 5": [T, F, F, N],
            "t OR i = 5": [T, F, N, T],
            "t AND missing = 1": [N, F, N, N],
            "t OR missing = 1": [T, N, N, T],
            "missing = 1 OR missing = 2": [N, N, N, N],
            "NOT t": [F, T, N, F],
            "NOT missing = 1": [N, N, N, N],
            "5 OR t": [T, N, N, T],
            "i AND t": [N, F, N, N],
            "NOT i": [N, N, N, N],
            "i": [N, N, N, N],
            "t": [T, F, N, T],
            "TRUE": [T, T, T, T],
            "FALSE AND i": [F, F, F, F],
            "TRUE OR i": [T, T, T, T],
            "NOT (i = 5 AND t)": [F, T, T, N],
        }
    )


def test_is_null_and_property_filters() -> None:
    check(
        {
            "i IS NULL": [F, F, F, T],
            "i IS NOT NULL": [T, T, T, F],
            "missing IS NULL": [T, T, T, T],
            "none IS NOT NULL": [F, F, F, F],
            "list IS NULL": [T, T, T, T],
            "code IS NULL": [F, F, T, T],
        }
    )
    batch = make_batch(COLUMNS)

    def run(node: Node) -> list[bool | None]:
        answers: list[bool | None] = evaluate(node, batch, NOW).to_pylist()
        return answers

    s, i, b = (Name(APPLICATION, name) for name in "sib")
    assert run(Affix(s, b"He", is_suffix=False)) == [T, F, F, N]
    assert run(Affix(s, b"\n", is_suffix=True)) == [F, F, T, N]
    assert run(Affix(b, b"\xff", is_suffix=False)) == [F, T, F, N]
    assert run(Affix(i, b"5", is_suffix=False)) == [F, F, F, N]
    assert run(Affix(Name(APPLICATION, "missing"), b"", is_suffix=False)) == [N, N, N, N]
    assert run(Present(s)) == [T, T, T, F]
    assert run(Present(Name(APPLICATION, "code"))) == [T, T, F, F]
    assert run(Present(Name(APPLICATION, "f"))) == [T, T, T, T]
    assert run(Present(Name(APPLICATION, "missing"))) == [F, F, F, F]
    assert run(Not(Present(s))) == [F, F, F, T]


PRIORITIES = (
    pa.array([7, None, 4], pa.uint8()),
    pa.array([7, None, 4], pa.int64()).dictionary_encode(),
    pa.array([7.0, None, float("nan")], pa.float64()),
    pa.array(["7", None, ""], pa.string()),
    pa.array([True, None, False], pa.bool_()),
    pa.nulls(3),
)


@pytest.mark.parametrize("priority", PRIORITIES, ids=lambda array: str(array.type))
@pytest.mark.parametrize(
    "text", ["h.priority = 4", "h.priority % 3 = 1", "h.priority IS NULL", "NOT h.priority", "h.priority IN (4, '7')",
             "h.priority LIKE '%'", "h.priority <> '7' AND h.priority < 100", "-h.priority = -4"]
)  # fmt: skip
def test_priority_is_4_where_it_is_missing(priority: pa.Array, text: str) -> None:
    node = parse(text)
    messages = [{"header": {"priority": value}} for value in priority.to_pylist()]
    want = [to_truth(rows.evaluate(node, message, NOW)) for message in messages]
    assert evaluate(node, make_batch({}, header={"priority": priority}), NOW).to_pylist() == want


def test_priority_without_a_header() -> None:
    batch = make_batch({"x": pa.array([1, 2])})
    assert evaluate(parse("h.priority = 4"), batch, NOW).to_pylist() == [True, True]
    assert evaluate(parse("h.priority + x = 6"), batch, NOW).to_pylist() == [False, True]
