"""Example filters from samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from overlay.filter import compile_sql
from overlay.inspect.example_filter import ExampleFilter, make_example
from overlay.inspect.proposal import propose
from tests.inspect.samples import make_record, make_sample


def find_example(make: Callable[[int], dict[str, Any]], count: int = 40) -> ExampleFilter:
    """Return the example for the consumer of the subject's first value "a", of records with the values of `make`.

    The filter itself says of how many of the consumer's records it is true.
    """
    sample = make_sample(make_record(at, headers={"kind": "ab"[at % 2]}, value=make(at)) for at in range(count))
    proposal = propose(sample)
    assert [str(column.field) for column in proposal.subject.columns] == ["{header:kind}"]
    found = make_example(proposal, "a")
    assert found is not None
    compiled = compile_sql(found.sql, dict(proposal.properties))
    messages = [{"application_properties": {"kind": "a", **make(at)}} for at in range(0, count, 2)]
    assert (found.passed, found.rows) == (sum(compiled.matches(each) is True for each in messages), len(messages))
    assert found.passed
    return found


@pytest.mark.parametrize(
    ("make", "sql", "passed"),
    [
        # the commonest of the consumer's records, whatever others have
        (lambda at: {"country": "SE" if at % 2 else ("NO", "DK", "NO", "NO")[at // 2 % 4]}, "country = 'NO'", 15),
        (lambda at: {"who": ("O'Neil", "Poe")[at // 2 % 2], "late": at > 9}, "who = 'O''Neil'", 10),
        (lambda at: {"total": at / 2}, "total >= 10.0", 10),
        (lambda at: {"total": -at / 2}, "total >= -9.0", 10),
        (lambda at: {"count": at // 10}, "count >= 2", 10),
        (lambda at: {"late": at > 9}, "late = TRUE", 15),
        # a text before a number before a boolean
        (lambda at: {"late": at > 9, "total": at / 2, "country": "NO" if at % 4 else "SE"}, "country = 'SE'", 10),
        (lambda at: {"late": at > 9, "total": at / 2}, "total >= 10.0", 10),
    ],
)
def test_a_field_of_the_data_with_a_value_of_it(make: Callable[[int], dict[str, Any]], sql: str, passed: int) -> None:
    found = find_example(make)
    assert (found.sql, found.passed) == (sql, passed)


@pytest.mark.parametrize(
    "make",
    [
        lambda at: {"id": at, "name": f"private-{at}", "same": "always"},
        lambda at: {"id": 10**17 + at},
        lambda at: {"code": str(at % 3)},  # text that looks like numbers
        lambda at: {"letter": ("x" * 90, "y")[at // 2 % 2]},
    ],
)
def test_ids_and_odd_values_are_not_shown(make: Callable[[int], dict[str, Any]]) -> None:
    """The subject's own field is left."""
    assert find_example(make).sql == "kind = 'a'"


def test_without_a_field_worth_a_condition_it_asks_whether_one_is_there() -> None:
    records = [make_record(at, headers={"n": str(at % 3), "x": ("\x00", "\x01")[at % 2]}) for at in range(40)]
    proposal = propose(make_sample(records))
    assert str(proposal.subject.columns[0].field) == "{header:n}"
    assert make_example(proposal, "1") == ExampleFilter("n >= 1", 13, 13)
