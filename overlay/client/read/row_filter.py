"""Steps 2, 3 and 5 for one reading: fetched bytes in, the records that pass as Arrow batches out. No IO; runs in a thread.

A slice of the scan is a few thousand records, of which a filter may leave three. Handing on three at a time would cost
more than finding them, so the batches of neighbouring slices are joined, up to a bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from overlay.index.ledger.ledger import Ledger
from overlay.index.skip.probes import NO_PART
from overlay.index.skip.probes import Part as Test
from overlay.kafka.fetcher import Fetched
from overlay.match import Addressed, Addressing, Audience, Masks
from overlay.match.values import ValueMasks
from overlay.scan import Malformed
from overlay.scan.columns import NO_TIMESTAMP, Ints
from overlay.subject.dictionary import Dictionary

from .columns import Envelope, Form
from .offset_ranges import Stretch
from .question import Request
from .sequences import find_places

PART_BYTES = 4 << 20
PART_SLICES = 8
"""At most so much is joined: a slice is about two megabytes of records."""


@dataclass(slots=True)
class Part:
    """What came of some neighbouring slices."""

    position: int
    """Where the stretch goes on."""
    batches: list[pa.RecordBatch] = field(default_factory=list)
    times: list[Ints] = field(default_factory=list)
    """The timestamps of the batches' rows, ms."""
    places: list[Ints] = field(default_factory=list)
    """In a stream with a ledger, the places of the batches' rows in the order of all partitions."""
    heads: list[tuple[str, int]] = field(default_factory=list)
    """Where the last record of each subject is asked for: subject and offset of the batches' rows."""
    scanned: int = 0
    unaddressed: Counter[str] = field(default_factory=Counter)
    """Records without a subject in the stream, by reason."""
    unknown: int = 0
    """Records for which the filter is neither true nor false."""
    nulls: Counter[str] = field(default_factory=Counter)
    """Values that the filter names and that could not be read, by reason."""
    broken: Malformed | None = None
    """What could not be read, right after the records of this part."""
    is_last: bool = False
    """Whether the fetch has no more."""

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)


class RowFilter:
    """Not for two threads at once. `sequenced`: the stream has one partition, so offsets give sequences; it may grow.

    `addressing`: of the stream, where there is one at hand that nobody else uses at the same time. `form`: of the batches;
    the request's columns where there is none. `ledger`: of a stream of several partitions, if it has one.
    """

    def __init__(
        self,
        request: Request,
        *,
        sequenced: bool,
        addressing: Addressing | None = None,
        form: Form | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self._request, self.sequenced, self._ledger = request, sequenced, ledger
        stream = request.stream
        self._form = form or Envelope(request.columns, stream.name if request.is_named else None)
        self.schema = self._form.schema
        self._addressing = addressing or Addressing(stream.subject.rule, stream.patterns)
        self._masks, self._values = Masks([request.filter], stream.properties), ValueMasks([request.values])
        self._fields = tuple(dict.fromkeys((*self._masks.fields, *self._values.fields, *self._form.fields)))
        self._by_subject = Test.SUBJECT
        if request.values is not None and request.values.are_subjects:
            self._by_subject |= Test.VALUES
        self._audiences: dict[Dictionary, Audience] = {}

    def sift(self, stretch: Stretch, fetched: Fetched, now: int, stop: int | None = None) -> Iterator[Part]:
        """The records of a fetch that pass, in parts. `now`: ms since 1970, for filters that ask.

        Those of the stretch, and below `stop` where the leg that is read ends before.
        A part that is `broken` is followed by what comes after the batch that cannot be read.
        """
        position = max(fetched.position, stretch.floor)
        part, slices, size = Part(fetched.position), 0, 0
        pieces = self._addressing.read(
            *stretch.source,
            fetched.data,
            position,
            more=self._fields,
            stop=stretch.stop if stop is None else stop,
            aborted=fetched.aborted,
        )
        for piece in pieces:
            if part.broken or slices >= PART_SLICES or size >= PART_BYTES:
                yield self._join(part)
                part, slices, size = Part(part.position), 0, 0
            slices += 1
            if isinstance(piece, Malformed):
                part.broken, part.position = piece, piece.next_offset
            else:
                size += self._add(part, piece, self._find_tests(stretch, piece), now)
        if slices:
            part.is_last = True
            yield self._join(part)

    def _find_tests(self, stretch: Stretch, piece: Addressed) -> Test:
        """What the records of a slice have to be tested for; a slice may lie across several chunks."""
        offsets = piece.records.offset
        return stretch.find_residual(int(offsets[0]), int(offsets[-1]) + 1) if offsets.size else NO_PART

    def _add(self, part: Part, piece: Addressed, tests: Test, now: int) -> int:
        """Put what passes of a slice into the part; returns its bytes."""
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
                column = pa.array(sequences, mask=sequences == 0)
                batch = batch.set_column(at, batch.schema.field(at), column)
        part.batches.append(batch)
        part.times.append(piece.records.timestamp[rows])
        return int(batch.nbytes)

    def _choose(self, part: Part, piece: Addressed, tests: Test, now: int) -> Ints:
        """The rows that pass, ascending."""
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

    def _join(self, part: Part) -> Part:
        if len(part.batches) > 1:
            part.batches = join_batches(self.schema, part.batches)
            part.times = [np.concatenate(part.times)]
            part.places = [np.concatenate(part.places)] if part.places else []
        return part


def _keep_lasts(part: Part, piece: Addressed, rows: Ints) -> Ints:
    """Of some rows of a slice, ascending, the last one of each subject."""
    _, at = np.unique(piece.codes[rows][::-1], return_index=True)
    kept: Ints = np.sort(rows[::-1][at])
    subjects = piece.dictionary.subjects
    part.heads += zip(
        (subjects[code] for code in piece.codes[kept].tolist()), piece.records.offset[kept].tolist(), strict=True
    )
    return kept


def join_batches(schema: pa.Schema, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The same rows in one batch (in some more when a column holds more than 2 GiB)."""
    found: list[pa.RecordBatch] = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return found
