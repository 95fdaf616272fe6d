"""A batch with a column of every kind, and how tests ask it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from overlay.filter.arrow import evaluate
from overlay.filter.nodes import Section
from overlay.filter.parse import parse

NOW = 1_700_000_000_000
APPLICATION = Section.APPLICATION
TOP = 2**63 - 1

COLUMNS: dict[str, pa.Array] = {
    "i": pa.array([5, -7, TOP, None], pa.int64()),
    "j": pa.array([2, -5, 2**53 + 1, 3], pa.int64()),
    "small": pa.array([5, -7, 127, None], pa.int8()),
    "u": pa.array([5, 2**64 - 1, 2**63, None], pa.uint64()),
    "d": pa.array([5.0, -0.0, 2.0**53, None], pa.float64()),
    "f": pa.array([1.2e6, float("nan"), float("-inf"), 0.5], pa.float32()),
    "s": pa.array(["Hello", "", "é\n", None], pa.string()),
    "r": pa.array(["A%B", "Hello", "5", "a"], pa.large_string()),
    "b": pa.array([b"Hello", b"\xff", b"a\xc3", None], pa.binary()),
    "t": pa.array([True, False, None, True], pa.bool_()),
    "time": pa.array([NOW, NOW - 1, -1, None], pa.timestamp("ms", "UTC")),
    "code": pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 2], pa.int8()), pa.array(["Hello", "", None])),
    "none": pa.nulls(4),
    "list": pa.array([[1], [2], [], None], pa.list_(pa.int64())),
}
ROWS = 4


def make_batch(columns: dict[str, pa.Array], **sections: dict[str, pa.Array]) -> pa.RecordBatch:
    every = {"application_properties": columns, **sections}
    structs = {name: pa.StructArray.from_arrays(list(of.values()), list(of)) for name, of in every.items() if of}
    return pa.RecordBatch.from_pydict(structs)


def take_row(columns: dict[str, pa.Array], row: int) -> dict[str, dict[str, Any]]:
    """A row as the message it stands for."""
    return {"application_properties": {name: array[row].as_py() for name, array in columns.items()}}


def ask(text: str, columns: dict[str, pa.Array] = COLUMNS) -> list[bool | None]:
    """The answers of a batch with these application properties."""
    answers: list[bool | None] = evaluate(parse(text), make_batch(columns), NOW).to_pylist()
    return answers


def check(cases: dict[str, list[bool | None]]) -> None:
    assert {text: ask(text) for text in cases} == cases
