"""Conditions that are true of no record: what is found is so for every message."""

from __future__ import annotations

import pytest
from hypothesis import given

from overlay.errors import FilterSyntaxError
from overlay.filter import compile_sql
from overlay.filter.bind import bind
from overlay.filter.nodes import Node
from overlay.filter.rewrite import rewrite
from overlay.filter.rows import evaluate, to_truth
from overlay.view.never import find_never
from tests.filter import strategies as some

TYPES = {"total": "double", "n": "long", "ok": "boolean", "at": "timestamp"}


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("a = 'x' AND b = 'y' AND a = 'z'", "a = 'x' AND a = 'z' is true of no record: one excludes the other"),
        ("total > 5 AND 3 > total", "total > 5 AND total < 3 is true of no record: one excludes the other"),
        ("total = 'x' OR n = 1", "total = 'x' is true of no record: total is a number, the other side a text"),
        ("ok = 'true'", "ok = 'true' is true of no record: ok is true or false, the other side a text"),
        ("n = 2.5", "n = 2.5 is true of no record: no value of type long is so"),
        ("n > 9223372036854775807", "n > 9223372036854775807 is true of no record: no value of type long is so"),
        ("total IN (1, 'b')", "total = 'b' is true of no record: total is a number, the other side a text"),
        ("NOT (a >= '')", "a < '' is true of no record: no value of type string is so"),
    ],
)  # fmt: skip
def test_what_is_found(sql: str, found: str) -> None:
    assert [str(never) for never in find_never(compile_sql(sql, TYPES).bound)] == [found]


@pytest.mark.parametrize(
    "sql",
    [
        "total <> 'x'",
        "a = 'x' OR a = 'y'",
        "n = 2.0",
        "a >= 'x' AND a <= 'x'",
        "NOT (total = 'x')",
        "at > 5",
        "ok = TRUE",
        "total > 5 AND n < 3",
        "a LIKE 'x%' AND a <> 'x'",
    ],
)
def test_what_may_be_true_is_not_found(sql: str) -> None:
    assert find_never(compile_sql(sql, TYPES).bound) == []


@given(some.cases(undeclared=True))
def test_it_is_so_for_every_message(case: tuple[some.Schema, Node, list[dict[str, dict[str, object]]]]) -> None:
    schema, node, messages = case
    try:
        bound = rewrite(bind(node, schema.types, ""))
    except FilterSyntaxError:
        return
    for never in find_never(bound):
        for message in messages:
            assert to_truth(evaluate(never.node, message, some.NOW)) is not True
