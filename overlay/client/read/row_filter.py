"""The row filter of one reading: fetched bytes in, the records that pass as Arrow batches out.

No I/O; runs in a thread.

A slice of the scan has a few thousand records, of which a filter may leave three. Returning three
at a time would cost more than finding them. So the batches of neighbouring slices are joined, up to
a limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from overlay.arrays import Ints
from overlay.index.ledger.ledger import Ledger
from overlay.index.skip.probes import NO_PART
from overlay.index.skip.probes import Part as Test
from overlay.kafka.fetched import Fetched
from overlay.match import Addressed, Addressing, Audience, Masks, make_addressing
from overlay.match.values import ValueMasks
from overlay.scan import Malformed
from overlay.scan.columns import NO_TIMESTAMP, wrap
from overlay.subject.dictionary import Dictionary

from .columns import Form
from .offset_ranges import OffsetRange
from .question import CheckedQuestion
from .sequences import find_places

PART_BYTES = 4 << 20
PART_SLICES = 8
"""Most bytes and slices that are joined; a slice is about two megabytes of records."""


@dataclass(slots=True)
class FilteredRows:
    """The rows that passed the filter, of some neighbouring slices of one fetch, and counts of these slices' records."""

    position: int
    """The offset at which the range continues."""
    batches: list[pa.RecordBatch] = field(default_factory=list)
    times: list[Ints] = field(default_factory=list)
    """The timestamps of the batches' rows, ms since 1970."""
    places: list[Ints] = field(default_factory=list)
    """In a stream with a ledger, the places (sequences) of the batches' rows in the order of all
    partitions.
    """
    heads: list[tuple[str, int]] = field(default_factory=list)
    """Subject and offset of the batches' rows, if the last record of each subject is asked for; empty otherwise."""
    scanned: int = 0
    unaddressed: Counter[str] = field(default_factory=Counter)
    """Records without a subject in the stream, by reason."""
    unknown: int = 0
    """Records for which the filter is neither true nor false."""
    nulls: Counter[str] = field(default_factory=Counter)
    """Values in the filter that could not be read, by reason."""
    broken: Malformed | None = None
    """A batch that could not be read, right after the records of this part."""
    is_last: bool = False
    """Whether the fetch has no more."""

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)


class FetchFilter(Protocol):
    """The filter that a scan passes its fetches through, such as a RowFilter.

    `schema`: of the batches. `sequenced`: the stream has one partition, so that offsets give
    sequences; the scan sets it to False when the stream gets another partition.
    """

    schema: pa.Schema
    sequenced: bool

    def sift(
        self, offset_range: OffsetRange, fetched: Fetched, now: int, stop: int | None = None
    ) -> Iterator[FilteredRows]:
        """Yield the records of a fetch that pass, in parts by rising offsets. `now`: ms since 1970, for
        filters that use the current time. `stop`: the offset before which to end, None for that of
        `offset_range`.
        """


class RowFilter:
    """The filter of one reading. Not thread-safe.

    `sequenced`: the stream has one partition, so that offsets give sequences; it may be set to
    False later. `addressing`: the stream's decoder, None to make one; no other reading may use it
    at the same time. `form`: builds the batches, None for the request's columns. `ledger`: of a
    stream of several partitions, None without one.
    """

    def __init__(
        self,
        request: CheckedQuestion,
        *,
        sequenced: bool,
        addressing: Addressing | None = None,
        form: Form | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self._request, self.sequenced, self._ledger = request, sequenced, ledger
        stream = request.stream
        self._form = form or request.make_form()
        self.schema = self._form.schema
        self._addressing = addressing or make_addressing(stream)
        self._masks, self._values = Masks([request.filter], stream.properties), ValueMasks([request.values])
        self._fields = tuple(dict.fromkeys((*self._masks.fields, *self._values.fields, *self._form.fields)))
        self._by_subject = Test.SUBJECT
        if request.values is not None and request.values.are_subjects:
            self._by_subject |= Test.VALUES
        self._audiences: dict[Dictionary, Audience] = {}

    def sift(
        self, offset_range: OffsetRange, fetched: Fetched, now: int, stop: int | None = None
    ) -> Iterator[FilteredRows]:
        """Yield the records of a fetch that pass, in parts by rising offsets. A part may have no rows.

        `now`: ms since 1970, for filters that use the current time. Only records with offset_range.floor
        <= offset < `stop` are returned; None stands for offset_range.stop. A part with `broken` ends
        before a batch that cannot be read, and the next part has the records after that batch.
        """
        position = max(fetched.position, offset_range.floor)
        part, slices, size = FilteredRows(fetched.position), 0, 0
        pieces = self._addressing.read(
            *offset_range.source,
            fetched.data,
            position,
            more=self._fields,
            stop=offset_range.stop if stop is None else stop,
            aborted=fetched.aborted,
        )
        for piece in pieces:
            if part.broken or slices >= PART_SLICES or size >= PART_BYTES:
                yield self._join(part)
                part, slices, size = FilteredRows(part.position), 0, 0
            slices += 1
            if isinstance(piece, Malformed):
                part.broken, part.position = piece, piece.next_offset
            else:
                size += self._add(part, piece, self._find_tests(offset_range, piece), now)
        if slices:
            part.is_last = True
            yield self._join(part)

    def _find_tests(self, offset_range: OffsetRange, piece: Addressed) -> Test:
        """Return the parts of the question that the records of a slice have to be tested for, as the route of the range
        says: all that any of the route's spans in the slice asks for. NO_PART, no test, for an empty slice.
        """
        offsets = piece.records.offset
        return offset_range.find_residual(int(offsets[0]), int(offsets[-1]) + 1) if offsets.size else NO_PART

    def _add(self, part: FilteredRows, piece: Addressed, tests: Test, now: int) -> int:
        """Add to `part` a batch of the rows of a slice that pass these tests (with `last_per_subject`, only the last of
        each subject), and the slice's counts. Return the bytes of the batch, 0 if no row passes.
        """
        part.position = piece.records.next_offset
        if not len(piece.records):
            return 0
        part.scanned += len(piece.records)
        part.unaddressed.update(piece.count_unaddressed())
        rows = self._choose(part, piece, tests, now)
        if not rows.size:
            return 0
        if self._request.last_per_subject:
            rows = _keep_lasts(part, piece, rows)
        batch = self._form.build(piece, rows, sequenced=self.sequenced)
        if self._ledger is not None:
            sequences, places = find_places(self._ledger, (piece.topic, piece.partition), piece.records.offset[rows])
            part.places.append(places)
            if (at := batch.schema.get_field_index("sequence")) >= 0:
                column = wrap(sequences, sequences == 0)
                batch = batch.set_column(at, batch.schema.field(at), column)
        part.batches.append(batch)
        part.times.append(piece.records.timestamp[rows])
        return int(batch.nbytes)

    def _choose(self, part: FilteredRows, piece: Addressed, tests: Test, now: int) -> Ints:
        """Return the numbers of the rows of a slice that have a subject in the stream and pass these
        tests, rising. Adds to `part.unknown` and `part.nulls` what the filter could not decide or read.
        """
        if tests & self._by_subject:
            if piece.dictionary not in self._audiences:
                patterns, values = [self._request.patterns], [self._request.values]
                self._audiences[piece.dictionary] = Audience(piece.dictionary, patterns, values)
            rows = self._audiences[piece.dictionary].select(piece.codes).of(0)
        else:
            rows = np.flatnonzero(piece.codes >= 0)
        if Test.WINDOW in tests:
            rows = self._within_time(piece, rows)
        if Test.VALUES in tests:
            rows = self._values.sift(piece, {0: rows}).get(0, rows[:0])
        if not rows.size or Test.FILTER not in tests:
            return rows
        sifted = self._masks.sift(piece, {0: rows}, now)
        for tally in sifted.tallies.values():
            part.unknown += tally.unknown
            part.nulls.update(tally.nulls)
        return sifted.rows.get(0, rows[:0])

    def _within_time(self, piece: Addressed, rows: Ints) -> Ints:
        since, until = self._request.since, self._request.until
        if since is None and until is None:
            return rows
        times = piece.records.timestamp[rows]
        passes = times != NO_TIMESTAMP
        if since is not None:
            passes &= times >= since
        if until is not None:
            passes &= times < until
        kept: Ints = rows[passes]
        return kept

    def _join(self, part: FilteredRows) -> FilteredRows:
        if len(part.batches) > 1:
            part.batches = join_batches(self.schema, part.batches)
            part.times = [np.concatenate(part.times)]
            part.places = [np.concatenate(part.places)] if part.places else []
        return part


def _keep_lasts(part: FilteredRows, piece: Addressed, rows: Ints) -> Ints:
    """Return, of some rows (row numbers of a slice, rising), the last of each subject, rising. Adds the
    subjects and offsets of those returned to `part.heads`.
    """
    _, at = np.unique(piece.codes[rows][::-1], return_index=True)
    kept: Ints = np.sort(rows[::-1][at])
    subjects = piece.dictionary.subjects
    part.heads += zip(
        (subjects[code] for code in piece.codes[kept].tolist()), piece.records.offset[kept].tolist(), strict=True
    )
    return kept


def join_batches(schema: pa.Schema, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the rows of `batches`, which have this schema, in one batch, or in several if a column has more than 2 GiB."""
    found: list[pa.RecordBatch] = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return found
