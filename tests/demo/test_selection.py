"""The demo's own answers, against the row evaluator."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from overlay.config import load
from overlay.demo.home import DemoError
from overlay.demo.selection import SELECTIONS, select
from overlay.examples import find_example
from overlay.filter import compile_sql
from overlay.local.flights import read_flights


def test_the_example_has_the_filters_that_the_demo_knows() -> None:
    loaded = load(find_example("flights"))
    assert {c.filter.sql for c in loaded.consumers.values()} == {None, *SELECTIONS}


@pytest.mark.parametrize("sql", SELECTIONS)
def test_pandas_and_the_row_evaluator_select_the_same(sql: str) -> None:
    flights = read_flights().slice(0, 10_000)
    filter = compile_sql(sql)
    said = [filter.matches({"application_properties": row}) for row in flights.to_pylist()]
    assert select(flights, sql).tolist() == [answer is True for answer in said]
    assert {True, False, None} <= set(said), "the data has no example of one of the answers"


def test_no_filter_selects_all_and_a_strange_one_is_refused() -> None:
    table = pa.table({"a": [1, 2]})
    assert select(table, "").tolist() == np.ones(2, np.bool_).tolist()
    with pytest.raises(DemoError, match="cannot check the filter 'a > 1'"):
        select(table, "a > 1")
