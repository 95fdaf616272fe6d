"""Filter values: one value per record, compared with those that a consumer wants.

They are the first stage of filtering in RabbitMQ's streams. There a chunk passes as a whole, and
clients filter again. Here the same values skip chunks (overlay/index/skip/derive.py), and each
record is compared as well, so that results never depend on where chunks end. The stream's
`filter_value` defines a record's value:

- subject: a value is then a subject without wildcards, so the values narrow a consumer's patterns
  (`narrow`), and cost nothing per record
- header: its bytes, compared in place
- template: a text made of several fields, once for each distinct tuple of them (Templated)

A record whose value is missing, empty or cannot be made is unfiltered. It passes if a consumer sets
`match_unfiltered` or lists the empty value. `match_unfiltered` without values asks for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from overlay.arrays import Flags, Ints
from overlay.config.consumer import FilterConfig
from overlay.config.stream import FilterValue, StreamConfig
from overlay.field import Field, FieldKind
from overlay.scan.columns import gather
from overlay.subject import Pattern, SubjectRule, is_subject
from overlay.subject.dictionary import Codes, Dictionary

from .addressing import Addressed


@dataclass(frozen=True, slots=True)
class Values:
    """The filter values that a consumer wants. A record passes if its value is in `wanted`, and, if
    `unfiltered`, also if it has no value. `source` says where a record's value is read.
    """

    source: FilterValue
    wanted: frozenset[str]
    """Never contains the empty value."""
    unfiltered: bool

    @property
    def are_subjects(self) -> bool:
        return self.source.subject is True

    @property
    def encoded(self) -> list[bytes]:
        """Return `wanted` as bytes, as headers hold them, ascending."""
        return sorted(value.encode("utf-8", "surrogatepass") for value in self.wanted)


def choose_values(config: FilterConfig, stream: StreamConfig) -> Values | None:
    """Return the filter values of `config`, to be compared with records of `stream`; None if it
    lists none, so that all records pass. The empty value in the list lets records without a value
    pass, as `match_unfiltered` does.
    """
    if not config.values:
        return None
    wanted = frozenset(filter(None, config.values))
    return Values(stream.filter_value, wanted, config.match_unfiltered or len(wanted) < len(set(config.values)))


def narrow(patterns: Sequence[Pattern], values: Values | None) -> tuple[Pattern, ...]:
    """Return patterns that match exactly the subjects that pass both `patterns` and `values`: () if
    no subject can. If `values` is None or its source is not the subject, return `patterns`.
    """
    if values is None or not values.are_subjects:
        return tuple(patterns)
    # Every record of a stream has a subject, so none is unfiltered. A value that cannot be a
    # subject matches no record.
    wanted = (Pattern(value) for value in sorted(values.wanted) if is_subject(value))
    return tuple(one for one in wanted if any(pattern.matches(one.text) for pattern in patterns))


class Templated:
    """A reader of filter values that a template makes from fields of a record. Not for two threads
    at once.
    """

    def __init__(self, template: str) -> None:
        self._rule = SubjectRule.from_template(template)
        self._dictionaries: dict[tuple[str, int], Dictionary] = {}

    @property
    def fields(self) -> tuple[Field, ...]:
        return self._rule.fields

    def encode(self, piece: Addressed, rows: Ints) -> tuple[Dictionary, Codes]:
        """Return the dictionary of the filter values in the slice's partition, and for each of `rows`
        (row numbers) the code of its value there, negative if it has none. `piece` must have been
        decoded with `fields`. Codes are valid until the next call.
        """
        key = (piece.topic, piece.partition)
        if key not in self._dictionaries:
            self._dictionaries[key] = Dictionary(self._rule, *key, lambda value: True)
        dictionary, records = self._dictionaries[key], piece.records
        slots = [records.plan.slot(field) for field in self._rule.fields]
        return dictionary, dictionary.encode(records.buf, records.at[slots][:, rows], records.size[slots][:, rows])


class ValueMasks:
    """The filter values that a scan's consumers want. A consumer's number is its index in `values`.
    The attribute `fields`: the fields that slices must be decoded with.

    For a consumer with None every record passes, and also for one whose values are subjects: the
    caller narrows its patterns by them instead (`narrow`).
    """

    def __init__(self, values: Sequence[Values | None]) -> None:
        self._values = {i: each for i, each in enumerate(values) if each is not None and not each.are_subjects}
        sources = {each.source for each in self._values.values()}
        self._readers = {source: _make_reader(source) for source in sources}
        self.fields: tuple[Field, ...] = tuple(dict.fromkeys(f for each in self._readers.values() for f in each.fields))

    def sift(self, piece: Addressed, wanted: Mapping[int, Ints]) -> dict[int, Ints]:
        """Return, by consumer number, those of the consumer's rows that pass its filter values.
        `wanted`: by consumer number, the row numbers of `piece` to test. A consumer for which no
        row passes is left out.

        Consumers with the same array of rows and the same values get the same array back.
        """
        known: dict[tuple[Values, int], Ints] = {}
        kept: dict[int, Ints] = {}
        for i, rows in wanted.items():
            if values := self._values.get(i):
                key = (values, id(rows))
                if key not in known:
                    known[key] = rows[self._readers[values.source].find(piece, rows, values)]
                rows = known[key]
            if rows.size:
                kept[i] = rows
        return kept


class _HeaderReader:
    """A test of filter values that are in a header."""

    def __init__(self, name: str) -> None:
        self._field = Field(FieldKind.HEADER, name)
        self.fields: tuple[Field, ...] = (self._field,)
        self._sets: dict[Values, pa.Array] = {}

    def find(self, piece: Addressed, rows: Ints, values: Values) -> Flags:
        """Return for each of `rows` (row numbers of the slice) whether its header's value is in
        `values`. For a row whose header is missing, null or empty, return `values.unfiltered`.
        """
        # it takes long to import, and most readers call none of its functions
        import pyarrow.compute as pc

        slot = piece.records.plan.slot(self._field)
        at, size = piece.records.at[slot, rows], piece.records.size[slot, rows]
        if values not in self._sets:
            self._sets[values] = pa.array(values.encoded, pa.binary())
        found = pc.is_in(gather(piece.records.buf, at, size, "binary").array, value_set=self._sets[values])
        passes: Flags = found.to_numpy(zero_copy_only=False)
        return passes | (size <= 0) if values.unfiltered else passes


class _TemplateReader:
    """A test of filter values that a template makes from fields of a record. `fields`: what slices
    must be decoded with.

    Each distinct filter value has a code in a dictionary of its partition, and is tested once for
    the same `Values`, when it is new.
    """

    def __init__(self, template: str) -> None:
        self._made = Templated(template)
        self.fields = self._made.fields
        self._known: dict[tuple[Values, Dictionary], tuple[int, Flags]] = {}

    def find(self, piece: Addressed, rows: Ints, values: Values) -> Flags:
        dictionary, codes = self._made.encode(piece, rows)
        passes: Flags = self._learn(values, dictionary)[np.maximum(codes, -1)]
        return passes

    def _learn(self, values: Values, dictionary: Dictionary) -> Flags:
        """Return a flag for each code of `dictionary`: whether its value is in `values`. One more
        flag at the end, which index -1 finds, says whether a row without a value passes.
        """
        generation, flags = self._known.get((values, dictionary), (-1, np.empty(0, np.bool_)))
        known = flags.size - 1 if generation == dictionary.generation else 0
        if known < len(dictionary.subjects) or generation != dictionary.generation:
            fresh = [subject in values.wanted for subject in dictionary.subjects[known:]]
            flags = np.concatenate((flags[:known], np.array([*fresh, values.unfiltered], np.bool_)))
            self._known[values, dictionary] = dictionary.generation, flags
        return flags


def _make_reader(source: FilterValue) -> _HeaderReader | _TemplateReader:
    if source.header is not None:
        return _HeaderReader(source.header)
    assert source.template is not None
    return _TemplateReader(source.template)
