"""The evaluation of one batch: its columns as vectors, and the cached values of its nodes.

Nodes are shared. A hundred filters with `carrier = 'AA'` use the same Program for it (programs.py).
An Evaluation caches each program's value, so 99 of them find it there. The key of the cache is the
program object itself: its identity is cheap to hash, while hashing a tree would cost as much as a
kernel.

A part of a filter that reads one dictionary-encoded column is evaluated on the values of the
dictionary, if these are fewer than the rows. The answers are then mapped to the rows by their
codes. The dictionary is simply a batch of its own.

Rows in doubt (vectors.py) are decided here by the row evaluator. That takes some microseconds a
row, as a loop in Python would. Rows with the same values are evaluated once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from overlay.filter import rows as by_row
from overlay.filter.fields import DEFAULT_PRIORITY
from overlay.filter.nodes import Column, Name, Node, Section, walk

from .vectors import Kind, Value, Vector, either, fill, load

Key = tuple[Section, str]
"""A column: the section of the field and its name, spelled with underscores."""

PRIORITY: Key = (Section.HEADER, "priority")

Answer: TypeAlias = pa.BooleanArray | bool | None
"""An operand of AND, OR and NOT; see to_truth."""


def key_of(node: Name | Column) -> Key:
    return node.section, node.name


def find_columns(node: Node) -> frozenset[Key]:
    """Return the columns that a tree reads."""
    return frozenset(key_of(each) for each in walk(node) if isinstance(each, Name | Column))


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Program:
    """A node compiled for batches. Equal nodes share one program while it is alive."""

    node: Node
    columns: frozenset[Key]
    run: Callable[[Evaluation], Value]

    def __call__(self, columns: Mapping[Key, pa.Array], rows: int, now: int) -> pa.BooleanArray:
        """Return the filter's answer for each row of a batch; null is unknown. `columns`: arrays of
        `rows` values each; missing fields are left out. `now`: ms since 1970.

        To run several filters on one batch, use Evaluation.
        """
        return Evaluation(columns, rows, now).answer(self)


class Evaluation:
    """The evaluation of one batch. Not thread-safe.

    `columns`: arrays of `rows` values each; missing fields are left out. `now`: ms since 1970.
    `present`: which rows have a field, as booleans without nulls, for columns whose nulls do not
    tell.
    """

    def __init__(
        self, columns: Mapping[Key, pa.Array], rows: int, now: int, present: Mapping[Key, pa.BooleanArray] | None = None
    ) -> None:
        self.columns, self.rows, self.now, self.present = columns, rows, now, present or {}
        self._values: dict[Program, Value] = {}
        self._loaded: dict[Key, Vector | None] = {}
        self._distinct: dict[Key, tuple[Evaluation, pa.Array] | None] = {}

    def answer(self, program: Program) -> pa.BooleanArray:
        """Return the program's answer for each row.

        Null is unknown, also for values that are no boolean.
        """
        found = to_truth(self.value(program))
        if found is None:
            return pa.nulls(self.rows, pa.bool_())
        return pa.repeat(found, self.rows) if isinstance(found, bool) else found

    def value(self, program: Program) -> Value:
        """Return the value of the program's node, condition or not. Values are cached."""
        if program in self._values:
            return self._values[program]
        shared = self._find_distinct(*program.columns) if len(program.columns) == 1 else None
        found = program.run(self) if shared is None else _deal(shared[0].value(program), shared[1])
        self._values[program] = found
        return found

    def find(self, key: Key) -> pa.Array | None:
        """Return a column as it was passed in; None if it is missing.

        Raises ValueError if it has a wrong number of values.
        """
        array = self.columns.get(key)
        if array is not None and len(array) != self.rows:
            raise ValueError(f"column {key[0].value}.{key[1]} has {len(array)} values in a batch of {self.rows} rows")
        return array

    def load(self, key: Key) -> Vector | None:
        """Return a column as a vector; None if it is missing, or of an Arrow type that filters read
        as NULL. `header.priority` is never None: rows without one have its default value, or are in
        doubt if the column is not of integers.
        """
        if key in self._loaded:
            return self._loaded[key]
        array = self.find(key)
        found = None if array is None else load(array)
        self._loaded[key] = found = self._fill_priority(found) if key == PRIORITY else found
        return found

    def settle(self, node: Node, value: Value) -> Value:
        """Return `value`, the value of the predicate `node`, without rows in doubt (see Vector): for
        each such row, the row evaluator computes the exact answer. A value without rows in doubt is
        returned as it is.
        """
        if not isinstance(value, Vector) or value.doubt is None:
            return value
        found = value.array
        if value.doubt.true_count:
            exact = self._ask_rows(node, pc.indices_nonzero(value.doubt))
            found = pc.replace_with_mask(found, value.doubt, pa.array(exact, pa.bool_()))
        return Vector(Kind.BOOLEAN, found)

    def _ask_rows(self, node: Node, rows: pa.Array) -> list[Any]:
        """Return the row evaluator's answer for each of the given rows, in their order. `rows`:
        indexes.
        """
        keys = find_columns(node)
        answers: dict[tuple[Any, ...], Any] = {}
        cells = list(zip(*(self._take_values(key, rows) for key in keys), strict=True))
        for values in cells:
            if values not in answers:
                answers[values] = by_row.evaluate(node, _make_message(keys, values), self.now)
        return [answers[values] for values in cells]

    def _take_values(self, key: Key, rows: pa.Array) -> list[Any]:
        vector = self.load(key)
        if vector is None:
            return [None] * len(rows)
        # only uint64 columns have integers that a vector cannot hold
        is_wide = vector.kind is Kind.LONG and vector.doubt is not None
        values: list[Any] = (self.columns[key] if is_wide else vector.array).take(rows).to_pylist()
        return values

    def _fill_priority(self, found: Vector | None) -> Vector:
        if found is None:
            return Vector(Kind.LONG, pa.repeat(pa.scalar(DEFAULT_PRIORITY, pa.int64()), self.rows))
        if not found.array.null_count:
            return found
        if found.kind is Kind.LONG:
            return Vector(Kind.LONG, found.array.fill_null(DEFAULT_PRIORITY), found.doubt)
        # a column of another type cannot hold the integer default, so these rows are in doubt
        return Vector(found.kind, found.array, either(found.doubt, found.array.is_null()), found.is_utf8)

    def _find_distinct(self, key: Key) -> tuple[Evaluation, pa.Array] | None:
        """Return the distinct values of a dictionary-encoded column as a batch of their own, and
        each row's index in it.

        Returns None for any other column, for a dictionary that is not smaller than the batch, and
        for a column with an entry in `present`.
        """
        if key in self._distinct:
            return self._distinct[key]
        array, found = self.find(key), None
        if isinstance(array, pa.DictionaryArray) and len(array.dictionary) < self.rows and key not in self.present:
            values, codes = array.dictionary, array.indices
            if codes.null_count:
                codes = codes.cast(pa.int64()).fill_null(len(values))
                values = pa.concat_arrays([values, pa.nulls(1, values.type)])
            found = Evaluation({key: values}, len(values), self.now), codes
        self._distinct[key] = found
        return found


def _make_message(keys: Iterable[Key], values: Iterable[Any]) -> dict[str, dict[str, Any]]:
    message: dict[str, dict[str, Any]] = {section.value: {} for section in Section}
    for (section, name), value in zip(keys, values, strict=True):
        message[section.value][name] = value
    return message


def to_truth(value: Value) -> Answer:
    """Return a value as an operand of AND, OR and NOT: an array with an answer for each row, or the
    answer for all rows. None (unknown) if it is not a boolean.
    """
    if isinstance(value, Vector):
        return value.array if value.kind is Kind.BOOLEAN else None
    return value if isinstance(value, bool) else None


def _deal(value: Value, codes: pa.Array) -> Value:
    """Return the value for each row, from a value for each entry of a dictionary and the rows'
    codes.
    """
    if not isinstance(value, Vector):
        return value
    if value.kind is Kind.BOOLEAN and value.doubt is None:
        same = collapse(value.array)
        if isinstance(same, bool):
            return same
    doubt = None if value.doubt is None else fill(_take(value.doubt, codes))
    return Vector(value.kind, _take(value.array, codes), doubt, value.is_utf8)


def _take(array: pa.Array, codes: pa.Array) -> pa.Array:
    return pc.take(array, codes, boundscheck=False)


def collapse(answer: pa.BooleanArray) -> pa.BooleanArray | bool:
    """Return True or False if there are rows and all have that answer; else the array itself."""
    if len(answer) and answer.true_count == len(answer):
        return True
    return False if len(answer) and answer.false_count == len(answer) else answer
