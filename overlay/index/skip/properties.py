"""Indexed properties: what the values of a chunk's records come to, as terms of its Bloom filter and as a zone.

What is read from one field of the records is read where it lies (value_cache.py). The rest goes by columns, as
filters read them (match/reading.py): properties that are read from several places or from no field at all, and the
records of a slice among which there is a value that is left to Python. Both ways agree; their twin is
tests/oracle/chunks.py.

A filter value that stands in a header is such a value as well: terms of its bytes, and one of its own for records without.

NULL is what filters take for it: missing, or nothing that the type could be read from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from overlay.config.stream import StreamConfig, place_property
from overlay.field import Field, FieldKind
from overlay.filter.nodes import Column
from overlay.match import Addressed
from overlay.match.properties import Source, find_sources
from overlay.match.reading import Reading
from overlay.scan.plan import Plan

from .config_fingerprint import find_scope
from .term_set import TermSet
from .terms import UNFILTERED, WHOLE, Term, canonical_doubles, null_term, seed_of
from .value_cache import HAS_LEFT, HAS_NULL, ValueCache, Wanted
from .zones import Bounds, find_bounds, read_bounds, unite

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Indexed:
    """A value of records that headers say something of."""

    name: str
    source: Source
    null: Term
    """The term of a record without it."""
    wanted: Wanted

    @property
    def field(self) -> Field | None:
        """The field that it is read from, where that is all."""
        fields = self.source.fields
        return fields[0] if len(fields) == 1 and self.source.given is None else None


class Extents:
    """What the records of one chunk have come to in the properties of a stream."""

    def __init__(self, properties: Properties) -> None:
        self.words = properties.value_cache.begin()
        self.told = [False] * len(properties.all)
        """Whether there is a term for NULL."""
        self.others: list[Bounds | None] = [None] * len(properties.all)
        """The bounds of what went by columns."""


class Properties:
    """Reads the properties of a stream for its chunks. Not for two threads at once."""

    def __init__(self, stream: StreamConfig) -> None:
        self.all = tuple(_list_indexed(stream))
        self.fields = frozenset(field for each in self.all for field in each.source.fields)
        """What slices must be decoded with."""
        self.value_cache = ValueCache([each.wanted for each in self.all])
        self._plan: Plan | None = None
        self._slots: Ints = np.empty(0, np.int64)

    def begin(self) -> Extents:
        """For a new chunk."""
        return Extents(self)

    def add(self, piece: Addressed, low: int, high: int, extents: Extents, terms: TermSet) -> None:
        """Take in records low:high of a slice, those that are in the stream. Terms go into `terms`."""
        if not self.all:
            return
        records = piece.records
        if records.plan is not self._plan:
            fields = [each.field for each in self.all]
            self._plan = records.plan
            self._slots = np.array([-1 if field is None else records.plan.slot(field) for field in fields], np.int64)
        codes = piece.codes[low:high]
        self.value_cache.take(records, slice(low, high), codes, self._slots, extents.words, terms)
        if extents.words[:, HAS_NULL:].any():
            for i in np.flatnonzero(extents.words[:, HAS_LEFT]).tolist():
                self._add_columns(i, piece, low + np.flatnonzero(codes >= 0), extents, terms)
            extents.words[:, HAS_LEFT] = 0
            self._add_nulls(extents, terms)

    def _add_nulls(self, extents: Extents, terms: TermSet) -> None:
        for i in np.flatnonzero(extents.words[:, HAS_NULL]).tolist():
            if self.all[i].wanted.has_terms and not extents.told[i]:
                terms.add(self.all[i].null)
                extents.told[i] = True

    def _add_columns(self, i: int, piece: Addressed, rows: Ints, extents: Extents, terms: TermSet) -> None:
        if not rows.size:
            return
        about, wanted = self.all[i], self.all[i].wanted
        column = Reading(piece, rows).read(about.source, wanted.type).array
        if pa.types.is_dictionary(column.type):
            column = column.dictionary.take(pc.unique(column.indices))
        if column.null_count:
            extents.words[i, HAS_NULL] = 1
        if wanted.has_terms:
            _add_terms(column.drop_null(), wanted.seed, terms)
        if wanted.has_zone:
            found, known = find_bounds(column, wanted.type), extents.others[i]
            extents.others[i] = found if known is None else unite(known, found)

    def find_zones(self, extents: Extents) -> dict[str, Bounds]:
        """The zones of a chunk by the names of the properties."""
        zones = {}
        for i, each in enumerate(self.all):
            if each.wanted.has_zone:
                words, other = extents.words[i], extents.others[i]
                zone = read_bounds(words, each.wanted.type, bool(words[HAS_NULL]))
                zones[each.name] = zone if other is None else unite(zone, other)
        return zones


def _list_indexed(stream: StreamConfig) -> Iterator[Indexed]:
    scope = find_scope(stream)
    for name in dict.fromkeys((*stream.index.terms, *stream.index.zones)):
        column = Column(*place_property(name), scope.types[name])
        source = find_sources([column], stream.properties)[column]
        is_json = any(field.kind is FieldKind.VALUE for field in source.fields)
        wanted = Wanted(column.type, is_json, 0, seed_of("value", name), name in scope.terms, name in scope.zones)
        yield Indexed(name, source, null_term(name), wanted)
    if stream.filter_value.header is not None:
        source = Source((Field(FieldKind.HEADER, stream.filter_value.header),))
        yield Indexed("", source, UNFILTERED, Wanted("binary", False, 1, WHOLE, True, False))


def _add_terms(column: pa.Array, seed: int, terms: TermSet) -> None:
    """Put in the values of a column without NULLs and no dictionary."""
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        _, offsets, data = column.buffers()
        bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
        terms.add_slices(np.frombuffer(data or b"", np.uint8), bounds[:-1], np.diff(bounds), seed)
        return
    if pa.types.is_floating(column.type):
        words = canonical_doubles(column.to_numpy())
    else:
        is_truth = pa.types.is_boolean(column.type)
        words = np.ascontiguousarray(column.cast(pa.uint8() if is_truth else pa.int64()).to_numpy())
    size = words.itemsize
    terms.add_slices(words.view(np.uint8), np.arange(words.size) * size, np.full(words.size, size), seed)
