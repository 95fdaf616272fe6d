"""Which records pass the filters of their consumers, found for all consumers of a scan at once.

Subjects come first (audience.py): they say which records each consumer may want. Filter values come
next (values.py), and a filter is not evaluated for a record whose value its consumer does not want.
Columns are then read for the records that some consumer with a filter may want. Every distinct
filter is evaluated on them once, sharing equal parts with other filters. Each consumer keeps those
of its records for which the result is true. A filter whose consumers want nothing of a slice costs
nothing.

Only true passes; unknown (SQL's null) does not. The results of each filter are counted per
consumer, and so are the nulls of values that could not be read. Such a value is NULL but present,
which a property filter can test (docs/filters.md#property-filters).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from overlay.arrays import Flags, Ints
from overlay.config.stream import Property
from overlay.field import Field
from overlay.filter import Filter
from overlay.filter.nodes import Column as NamedColumn
from overlay.filter.nodes import Node, Present, walk
from overlay.scan.columns import Column
from overlay.scan.states import BAD, GOOD, NOT_UTF8

from .addressing import Addressed
from .properties import find_sources, list_columns
from .reading import Reading
from .values import ValueMasks, Values

if TYPE_CHECKING:
    from overlay.filter.arrow import Evaluation, Program

_THERE = (GOOD, BAD, NOT_UTF8)
"""States of values that are present. If a document cannot be read, it is unknown what it has."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of one consumer in one slice: how many records its filter was true, false and unknown
    for, of those that passed its subjects and filter values; and how many values of the filter's
    columns could not be read in these records, by reason.
    """

    true: int
    false: int
    unknown: int
    nulls: Mapping[str, int]


@dataclass(slots=True)
class Sifted:
    """The result of Masks.sift, by consumer number. `rows`: the rows that pass, ascending; a
    consumer for which no row passes is left out. `tallies`: the counts of each consumer that has a
    filter; a consumer is left out if none of its rows has a filter value that it wants.
    """

    rows: dict[int, Ints] = field(default_factory=dict)
    tallies: dict[int, Tally] = field(default_factory=dict)


class Masks:
    """The filters and the filter values of a scan's consumers. A consumer's number is its index in
    `filters`; a filter that is None lets everything pass.

    `properties`: those of the stream. `values`: the filter values that each consumer wants, by the
    same number; may be empty if none wants any. The attribute `fields`: the fields that slices must
    be decoded with.
    """

    def __init__(
        self,
        filters: Sequence[Filter | None],
        properties: Mapping[str, Property],
        values: Sequence[Values | None] = (),
    ) -> None:
        distinct = {one.bound: one for one in filters if one is not None}
        numbers = {tree: number for number, tree in enumerate(distinct)}
        self._numbers = [-1 if one is None else numbers[one.bound] for one in filters]
        self._programs = _compile_all(distinct)
        self._columns = [list_columns(one) for one in distinct.values()]
        self._asked = {node.operand for tree in distinct for node in walk(tree) if isinstance(node, Present)}
        self._sources = find_sources((column for columns in self._columns for column in columns), properties)
        self._values = ValueMasks(values)
        fields = {field for source in self._sources.values() for field in source.fields} | set(self._values.fields)
        self.fields: tuple[Field, ...] = tuple(sorted(fields, key=str))

    def sift(self, piece: Addressed, wanted: Mapping[int, Ints], now: int) -> Sifted:
        """Return the rows that pass each consumer's filter values and its filter, of those that it
        may want. `wanted`: by consumer number, the rows of `piece` that the consumer's subjects let
        through, ascending.

        `now`: ms since 1970, for UTC() in a filter. Consumers with the same array of rows, equal
        values and equal filters share one result.
        """
        wanted = self._values.sift(piece, wanted)
        asked = {i: self._numbers[i] for i in wanted if self._numbers[i] >= 0}
        if not asked:
            return Sifted(dict(wanted))
        candidates = _Candidates([wanted[i] for i in asked], len(piece.records))
        columns = self._read(Reading(piece, candidates.rows), set(asked.values()))
        evaluation = self._open_evaluation(columns, candidates.count, now)
        known: dict[tuple[int, int], tuple[Ints, Tally]] = {}
        sifted = Sifted()
        for i, rows in wanted.items():
            kept = rows
            if i in asked:
                key = (asked[i], id(rows))
                if key not in known:
                    answer = evaluation.answer(self._programs[asked[i]])
                    known[key] = _keep(answer, rows, candidates, [columns[c] for c in self._columns[asked[i]]])
                kept, sifted.tallies[i] = known[key]
            if kept.size:
                sifted.rows[i] = kept
        return sifted

    def _open_evaluation(self, columns: Mapping[NamedColumn, Column], count: int, now: int) -> Evaluation:
        """Return the evaluation of filters on `count` rows of these columns. `now`: ms since 1970."""
        # _compile_all has loaded it
        from overlay.filter.arrow import Evaluation, key_of

        return Evaluation(
            {key_of(column): read.array for column, read in columns.items()},
            count,
            now,
            {key_of(c): pa.array(np.isin(read.states, _THERE)) for c, read in columns.items() if c in self._asked},
        )

    def _read(self, reading: Reading, numbers: set[int]) -> dict[NamedColumn, Column]:
        """Return the columns that these filters name, each read once. `numbers`: indexes of
        distinct filters (in `_programs`), not consumer numbers.
        """
        needed = dict.fromkeys(column for number in sorted(numbers) for column in self._columns[number])
        return {column: reading.read(self._sources[column], column.type) for column in needed}


def _compile_all(trees: Iterable[Node]) -> list[Program]:
    """Return the programs of these filters, in their order."""
    trees = list(trees)
    if not trees:
        return []
    # it imports Arrow's functions, which takes longer than a reading of some records without a filter
    from overlay.filter.arrow import compile

    return [compile(tree) for tree in trees]


class _Candidates:
    """The records of a slice for which filters are evaluated: those in any of `lists` (arrays of row
    numbers, ascending; at least one). `slice_size`: records of the slice.
    """

    def __init__(self, lists: Sequence[Ints], slice_size: int) -> None:
        distinct = list({id(rows): rows for rows in lists}.values())
        self.rows: Ints | None = None
        """None means all records of the slice."""
        if max(rows.size for rows in distinct) < slice_size:
            self.rows = distinct[0] if len(distinct) == 1 else _unite(distinct, slice_size)
        self.count = slice_size if self.rows is None else self.rows.size
        self._slice_size = slice_size
        self._index: Ints | None = None

    def find(self, rows: Ints) -> Ints | None:
        """Return the index of each of these rows (row numbers of the slice) among the candidates;
        None if the rows are all candidates. Each row has to be one of them.
        """
        if rows.size == self.count:
            return None
        if self.rows is None:
            return rows
        if self._index is None:
            self._index = np.empty(self._slice_size, np.int64)
            self._index[self.rows] = np.arange(self.count)
        return self._index[rows]


def _unite(lists: Sequence[Ints], slice_size: int) -> Ints:
    marks = np.zeros(slice_size, np.bool_)
    for rows in lists:
        marks[rows] = True
    return np.flatnonzero(marks)


def _keep(
    answer: pa.BooleanArray, rows: Ints, candidates: _Candidates, columns: Sequence[Column]
) -> tuple[Ints, Tally]:
    """Return those of `rows` for which the answer is true, and the tally of all of `rows`. `rows`:
    row numbers of the slice, each a candidate. `answer`, `columns`: one value per candidate.
    """
    places = candidates.find(rows)
    true, unknown = _unpack(answer)
    kept = rows[true if places is None else true[places]]
    unknowns = answer.null_count if places is None else int(np.count_nonzero(unknown[places]))
    nulls: Counter[str] = Counter()
    for column in columns:
        nulls.update(column.count_nulls(places))
    return kept, Tally(kept.size, rows.size - kept.size - unknowns, unknowns, nulls)


def _unpack(answer: pa.BooleanArray) -> tuple[Flags, Flags]:
    """Return two arrays of flags, one per answer: whether it is true, and whether it is unknown (null)."""
    validity, values = answer.buffers()
    true = _unpack_bits(values, answer)
    if not answer.null_count:
        return true, np.zeros(true.size, np.bool_)
    valid = _unpack_bits(validity, answer)
    return true & valid, ~valid


def _unpack_bits(bits: pa.Buffer, answer: pa.BooleanArray) -> Flags:
    packed = np.frombuffer(bits, np.uint8)
    return np.unpackbits(packed, count=answer.offset + len(answer), bitorder="little")[answer.offset :].view(np.bool_)
