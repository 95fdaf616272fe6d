"""What of a record goes into the header of its chunk: its subject's terms, its filter value, its indexed properties.

Subjects are codes, so their terms are hashed once for each code and found by it afterwards (Vocabulary); the same holds for
filter values that a template makes. A filter value that stands in a header, and the values of properties, are hashed where they
lie, one after the other: with a kernel that takes less time than finding out which are distinct.
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
from overlay.match.values import Templated
from overlay.subject.dictionary import Codes, Dictionary, Texts

from .bloom import limit_terms
from .ragged import Ragged
from .scope import find_scope
from .terms import (
    UNFILTERED,
    WHOLE,
    canonical_doubles,
    hash_subjects,
    hash_texts,
    null_term,
    property_term,
    seed_of,
)
from .termset import TermNumbers, TermSet

Ints = npt.NDArray[np.int64]


class Vocabulary:
    """The terms of a dictionary's codes, for as long as the codes mean the same subjects."""

    def __init__(self, dictionary: Dictionary, *, whole: bool = False) -> None:
        self.generation = dictionary.generation
        self.subjects = dictionary.subjects
        self._hash = hash_texts if whole else hash_subjects
        self._terms = TermNumbers()
        self._numbers = Ragged(np.int32)

    def learn(self, texts: Texts) -> None:
        """Hash what has come to the dictionary since the last time."""
        known = self._numbers.rows
        if known < texts.bounds.size - 1:
            hashes, counts = self._hash(texts, known)
            self._numbers.extend(counts)[:] = self._terms.number(hashes)

    def put(self, codes: npt.NDArray[np.int32], terms: TermSet) -> None:
        """Put the terms of some codes into a set."""
        terms.add_hashes(self._terms.pick(codes, self._numbers.starts, self._numbers.data))


@dataclass(frozen=True, slots=True)
class Indexed:
    """A property that headers have terms or a zone of; a fingerprint of 0 for neither."""

    name: str
    type: str
    source: Source
    terms: int
    zone: int


class Contents:
    """What the headers of one stream hold. Shared by the sealers of its partitions, on one thread."""

    def __init__(self, stream: StreamConfig) -> None:
        self.scope = find_scope(stream)
        self.index = stream.index
        self.limit = limit_terms(stream.index.bloom_bytes)
        self.indexed = tuple(_find_indexed(stream))
        chosen = stream.filter_value
        self._made = None if chosen.template is None else Templated(chosen.template)
        self._header = None if chosen.header is None else Field(FieldKind.HEADER, chosen.header)
        self.fields: tuple[Field, ...] = self._list_fields()
        """What slices must be decoded with, beside the fields of the subject."""
        self._vocabularies: dict[Dictionary, Vocabulary] = {}

    def _list_fields(self) -> tuple[Field, ...]:
        fields = {field for each in self.indexed for field in each.source.fields}
        fields |= set(self._made.fields if self._made else ()) | ({self._header} if self._header else set())
        return tuple(sorted(fields, key=str))

    def vocabulary(self, dictionary: Dictionary, *, whole: bool = False) -> Vocabulary:
        """The terms of all codes that a dictionary has given out; another object once it gives them out anew.

        `whole`: its texts are filter values, terms as a whole only.
        """
        known = self._vocabularies.get(dictionary)
        if known is None or known.generation != dictionary.generation:
            known = self._vocabularies[dictionary] = Vocabulary(dictionary, whole=whole)
        known.learn(dictionary.texts)
        return known

    def add_values(self, piece: Addressed, rows: Ints, terms: TermSet) -> None:
        """Put in the filter values of some records, where they are not the subjects."""
        records = piece.records
        if self._header is not None:
            slot = records.plan.slot(self._header)
            at, size = records.at[slot, rows], records.size[slot, rows]
            terms.add_slices(records.buf, at, np.where(size > 0, size, -1), WHOLE)
            if (size <= 0).any():
                terms.add(UNFILTERED)
        elif self._made is not None:
            dictionary, codes = self._made.encode(piece, rows)
            self.vocabulary(dictionary, whole=True).put(_find_distinct(codes), terms)
            if codes.size and codes.min() < 0:
                terms.add(UNFILTERED)


def read_columns(contents: Contents, piece: Addressed, rows: Ints | None) -> list[pa.Array]:
    """The indexed properties of some records of a slice, or of all."""
    reading = Reading(piece, rows)
    return [reading.read(each.source, each.type).array for each in contents.indexed]


def distinct(column: pa.Array) -> pa.Array:
    """The values of a dictionary column once each, with a NULL where it has one; other columns as they are."""
    if not pa.types.is_dictionary(column.type):
        return column
    return column.dictionary.take(pc.unique(column.indices))


def add_property(property: Indexed, column: pa.Array, terms: TermSet) -> None:
    """Put in the values of a property. `column`: no dictionary."""
    if column.null_count:
        terms.add(null_term(property.name))
        column = column.drop_null()
    seed = seed_of("value", property.name)
    if pa.types.is_boolean(column.type):
        terms.add(*(property_term(property.name, value) for value in column.unique().to_pylist()))
    elif pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        _, offsets, data = column.buffers()
        bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
        terms.add_slices(np.frombuffer(data or b"", np.uint8), bounds[:-1], np.diff(bounds), seed)
    else:
        numbers = column.to_numpy() if pa.types.is_floating(column.type) else column.cast(pa.int64()).to_numpy()
        words = canonical_doubles(numbers) if numbers.dtype == np.float64 else np.ascontiguousarray(numbers)
        at = np.arange(words.size) * 8
        terms.add_slices(words.view(np.uint8), at, np.full(words.size, 8), seed)


def _find_indexed(stream: StreamConfig) -> Iterator[Indexed]:
    scope = find_scope(stream)
    for name in dict.fromkeys((*stream.index.terms, *stream.index.zones)):
        column = Column(*place_property(name), scope.types[name])
        source = find_sources([column], stream.properties)[column]
        yield Indexed(name, column.type, source, scope.terms.get(name, 0), scope.zones.get(name, 0))


def _find_distinct(codes: Codes) -> Codes:
    """The codes that occur, those of no value aside."""
    return np.flatnonzero(np.bincount(codes[codes >= 0])).astype(np.int32) if codes.size else codes
