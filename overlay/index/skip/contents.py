"""What a record adds to the header of its chunk: terms of its subject, its filter value, its
indexed properties.

Subjects are codes, so their terms are hashed once per code and looked up afterwards (Vocabulary).
The same holds for filter values that a template makes. Properties, and a filter value that is in a
header, are read in place (properties.py).
"""

from __future__ import annotations

import numpy as np

from overlay.arrays import Int32s
from overlay.config.stream import StreamConfig
from overlay.field import Field
from overlay.match import Addressed
from overlay.match.values import Templated
from overlay.ragged import Ragged
from overlay.subject.dictionary import Codes, Dictionary, Texts

from .bloom import limit_terms
from .config_fingerprint import find_config_fingerprint
from .properties import Properties
from .term_set import TermNumbers, TermSet
from .terms import UNFILTERED, hash_subjects, hash_texts


class Vocabulary:
    """The Bloom filter terms of each code of a dictionary. It is valid until the dictionary begins
    to give out its codes anew (its `generation` changes). `whole`: the texts of the dictionary are
    filter values, which give one term each; if False, they are subjects, which give several.
    """

    def __init__(self, dictionary: Dictionary, *, whole: bool = False) -> None:
        self.generation = dictionary.generation
        self.subjects = dictionary.subjects
        self._hash = hash_texts if whole else hash_subjects
        self._terms = TermNumbers()
        self._numbers = Ragged(np.int32)

    def learn(self, texts: Texts) -> None:
        """Hash the texts that are new since the last call. `texts`: all texts of the dictionary, by
        code.
        """
        known = self._numbers.rows
        if known < texts.bounds.size - 1:
            hashes, counts = self._hash(texts, known)
            self._numbers.extend(counts)[:] = self._terms.number(hashes)

    def put(self, codes: Int32s, terms: TermSet) -> None:
        """Add the terms of these codes to the set `terms`. `learn` must have seen the codes."""
        self._terms.put(codes, self._numbers.starts, self._numbers.data, terms)


class Contents:
    """What the sealers of one stream's partitions share, on one thread: the stream's config for
    headers, the reader of its properties, and the terms of its subjects and filter values.
    """

    def __init__(self, stream: StreamConfig) -> None:
        self.config_fingerprint = find_config_fingerprint(stream)
        self.index = stream.index
        self.limit = limit_terms(stream.index.bloom_bytes)
        self.properties = Properties(stream)
        chosen = stream.filter_value
        self._made = None if chosen.template is None else Templated(chosen.template)
        self.fields: tuple[Field, ...] = self._list_fields()
        """The fields that slices must be decoded with, besides those of the subject."""
        self._vocabularies: dict[Dictionary, Vocabulary] = {}

    def _list_fields(self) -> tuple[Field, ...]:
        fields = self.properties.fields | set(self._made.fields if self._made else ())
        return tuple(sorted(fields, key=str))

    def vocabulary(self, dictionary: Dictionary, *, whole: bool = False) -> Vocabulary:
        """Return the terms of all codes that a dictionary has now. It is the same object until the
        dictionary begins to give out its codes anew.

        `whole`: the texts are filter values, which are terms only as a whole.
        """
        known = self._vocabularies.get(dictionary)
        if known is None or known.generation != dictionary.generation:
            known = self._vocabularies[dictionary] = Vocabulary(dictionary, whole=whole)
        known.learn(dictionary.texts)
        return known

    def add_values(self, piece: Addressed, low: int, high: int, terms: TermSet) -> None:
        """Add to `terms` the filter values of those records low:high of a slice that have a subject
        in the stream; UNFILTERED if one has no value. Does nothing unless the stream makes filter
        values by a template.
        """
        if self._made is None:
            return
        rows = low + np.flatnonzero(piece.codes[low:high] >= 0)
        dictionary, codes = self._made.encode(piece, rows)
        self.vocabulary(dictionary, whole=True).put(_find_distinct(codes), terms)
        if codes.size and codes.min() < 0:
            terms.add(UNFILTERED)


def _find_distinct(codes: Codes) -> Codes:
    """Return the distinct codes, without the negative ones."""
    return np.flatnonzero(np.bincount(codes[codes >= 0])).astype(np.int32) if codes.size else codes
