"""Indexed properties: the values of a chunk's records as terms of its Bloom filter and as a zone.

A property that is read from one field of the record is read in place (value_cache.py). The others
are read as columns, as filters read them (match/reading.py): properties with several sources or
without a field, and all records of a slice in which a value is left to Python. Both ways give the
same result; tests/oracle/chunks.py is an independent implementation.

A filter value that is in a header is treated as such a property: its terms are its bytes, and
records without it add a term of their own.

NULL means the same as in filters: missing, or not readable as the type.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from overlay.arrays import Ints
from overlay.config.stream import StreamConfig, place_property
from overlay.field import Field, FieldKind
from overlay.filter.nodes import Column
from overlay.match import Addressed
from overlay.match.properties import Source, find_sources
from overlay.match.reading import Reading
from overlay.scan.plan import Plan

from .config_fingerprint import find_config_fingerprint
from .term_set import TermSet
from .terms import UNFILTERED, WHOLE, Term, canonical_doubles, null_term, seed_of
from .value_cache import HAS_LEFT, HAS_NULL, ValueCache, Wanted
from .zones import Bounds, find_bounds, read_bounds, unite


@dataclass(frozen=True, slots=True)
class Indexed:
    """A property, or a filter value in a header, of which chunk headers have terms or a zone: where
    a record has it, and how it is read. `name`: of the property, "" for the filter value.
    """

    name: str
    source: Source
    null: Term
    """The term that a record without it adds."""
    wanted: Wanted

    @property
    def field(self) -> Field | None:
        """Return the field that it is read from; None if it has several sources, or none in the
        record's bytes.
        """
        fields = self.source.fields
        return fields[0] if len(fields) == 1 and self.source.given is None else None


class Extents:
    """What one chunk's records have had so far, for each property of a stream: bounds, and whether
    there was a NULL.
    """

    def __init__(self, properties: Properties) -> None:
        self.words = properties.value_cache.begin()
        self.told = [False] * len(properties.all)
        """Whether the term for NULL was added, by property."""
        self.others: list[Bounds | None] = [None] * len(properties.all)
        """The bounds of values that were read as columns, by property."""


class Properties:
    """Reads a stream's indexed properties from records for chunk headers. Not for two threads at
    once.
    """

    def __init__(self, stream: StreamConfig) -> None:
        self.all = tuple(_list_indexed(stream))
        self.fields = frozenset(field for each in self.all for field in each.source.fields)
        """The fields that slices must be decoded with."""
        self.value_cache = ValueCache([each.wanted for each in self.all])
        self._plan: Plan | None = None
        self._slots: Ints = np.empty(0, np.int64)

    def begin(self) -> Extents:
        """Return empty extents, for `add` to fill. A new chunk begins with them."""
        return Extents(self)

    def add(self, piece: Addressed, low: int, high: int, extents: Extents, terms: TermSet) -> None:
        """Read the properties of those of the records low:high of a slice that have a subject in
        the stream. Their terms are added to `terms`; their bounds and NULLs to `extents`, those of
        the chunk that the records belong to.
        """
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
        """Return the zones of a chunk by property name, from what `add` has written to its extents.
        Properties without zones are left out.
        """
        zones = {}
        for i, each in enumerate(self.all):
            if each.wanted.has_zone:
                words, other = extents.words[i], extents.others[i]
                zone = read_bounds(words, each.wanted.type, bool(words[HAS_NULL]))
                zones[each.name] = zone if other is None else unite(zone, other)
        return zones


def _list_indexed(stream: StreamConfig) -> Iterator[Indexed]:
    config_fingerprint = find_config_fingerprint(stream)
    for name in dict.fromkeys((*stream.index.terms, *stream.index.zones)):
        column = Column(*place_property(name), config_fingerprint.types[name])
        source = find_sources([column], stream.properties)[column]
        is_json = any(field.kind is FieldKind.VALUE for field in source.fields)
        wanted = Wanted(
            column.type,
            is_json,
            0,
            seed_of("value", name),
            name in config_fingerprint.terms,
            name in config_fingerprint.zones,
        )
        yield Indexed(name, source, null_term(name), wanted)
    if stream.filter_value.header is not None:
        source = Source((Field(FieldKind.HEADER, stream.filter_value.header),))
        yield Indexed("", source, UNFILTERED, Wanted("binary", False, 1, WHOLE, True, False))


def _add_terms(column: pa.Array, seed: int, terms: TermSet) -> None:
    """Hash the values of a column and add them to `terms`. The column has no NULLs and is not a
    dictionary.
    """
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
