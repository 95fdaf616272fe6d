"""Columns of a slice for filters: the value of each name in each record that some consumer may
want.

Only what a filter names is read, only for the records that its consumers' subjects let through, and
once for all filters. A column that is the same for all records, or is known as codes, becomes a
dictionary: then a condition is evaluated only on its few distinct values.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from overlay.arrays import Ints
from overlay.field import Field, FieldKind
from overlay.scan.columns import Column, Origin, coalesce, gather, read_times
from overlay.scan.states import MISSING

from .addressing import Addressed
from .properties import Given, Source


class Reading:
    """A reader of columns of a slice, for the records `rows` (row numbers), or for all records if
    None. Each column has one value per such record.
    """

    def __init__(self, piece: Addressed, rows: Ints | None = None) -> None:
        self._piece, self._rows = piece, rows
        self.count = len(piece.records) if rows is None else rows.size

    def read(self, source: Source, type: str) -> Column:
        """Return the values of a source as `type`, one of TYPES (scan/columns.py), one per record.
        A value is null if the record does not have it or if it does not spell the type.

        Raises ValueError if the slice was decoded without a field that has to be looked at: the
        first one of the source, or a further one that some record needs.
        """
        found: Column | None = None
        if source.fields:
            at, size = self._find(source.fields)
            if source.given is None or (size != MISSING).any():
                origin = Origin.JSON if source.fields[0].kind is FieldKind.VALUE else Origin.TEXT
                found = gather(self._piece.records.buf, at, size, type, origin)
            if found is not None and (source.given is None or (size != MISSING).all()):
                return found
        assert source.given is not None
        given = _GIVEN[source.given](self, type)
        return given if found is None else coalesce(found, given)

    def _find(self, fields: tuple[Field, ...]) -> tuple[Ints, Ints]:
        """Return position and size, in the slice's buffer, of the first of `fields` that each
        record has and that is not null: two arrays, one item per record. The size is MISSING for a
        record without one.
        """
        at, size = self._locate(fields[0])
        for field in fields[1:]:
            missing = size == MISSING
            if not missing.any():
                break
            other_at, other_size = self._locate(field)
            at, size = np.where(missing, other_at, at), np.where(missing, other_size, size)
        return at, size

    def _locate(self, field: Field) -> tuple[Ints, Ints]:
        records = self._piece.records
        if field not in records.plan.fields:
            raise ValueError(f"{field}: the slice was decoded without it; name it when the slices are read")
        slot = records.plan.slot(field)
        return self._pick(records.at[slot]), self._pick(records.size[slot])

    def _pick(self, values: Ints) -> Ints:
        return values if self._rows is None else values[self._rows]

    def read_subjects(self, type: str) -> Column:
        """Return each record's subject, read as `type`; null for a record without a subject in the stream."""
        texts, codes = self._piece.dictionary.texts, self._piece.codes
        codes = codes if self._rows is None else codes[self._rows]
        at, size = texts.bounds[:-1], np.diff(texts.bounds)
        if at.size < codes.size and codes.min() >= 0:
            return _deal(gather(texts.text, at, size, type), codes)
        bounds = np.append(texts.bounds[:-1], 0), np.append(size, MISSING)
        places = np.where(codes < 0, at.size, codes)
        return gather(texts.text, bounds[0][places], bounds[1][places], type)

    def read_topic(self, type: str) -> Column:
        """Return the topic's name, read as `type`, for every record."""
        return self._repeat(self._piece.topic, type)

    def read_partition(self, type: str) -> Column:
        """Return the partition's number, read as `type`, for every record."""
        return self._repeat(str(self._piece.partition), type)

    def read_timestamps(self, type: str) -> Column:
        """Return the records' timestamps as `type`; null for a record without one."""
        return read_times(self._pick(self._piece.records.timestamp), type)

    def _repeat(self, text: str, type: str) -> Column:
        raw = np.frombuffer(text.encode(), np.uint8)
        one = gather(raw, np.zeros(1, np.int64), np.array([raw.size]), type)
        return _deal(one, np.zeros(self.count, np.int32))


def _deal(distinct: Column, codes: np.ndarray[tuple[int], np.dtype[np.int32]]) -> Column:
    """Return a dictionary column: value and state of record i are those of `distinct` at codes[i]."""
    return Column(pa.DictionaryArray.from_arrays(pa.array(codes), distinct.array), distinct.states[codes])


_GIVEN: dict[Given, Callable[[Reading, str], Column]] = {
    Given.SUBJECT: Reading.read_subjects,
    Given.TOPIC: Reading.read_topic,
    Given.PARTITION: Reading.read_partition,
    Given.TIMESTAMP: Reading.read_timestamps,
}
