"""The block filter of a scan task: fetched bytes in, blocks for all consumers of the job out.

No I/O; runs in a thread. The records are decoded once, matched once, and each distinct filter is
evaluated once, as in the service's pipeline (overlay/worker/round/pipeline.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from overlay.arrays import Ints
from overlay.client.read.offset_ranges import OffsetRange
from overlay.client.read.row_filter import FilteredRows
from overlay.errors import OverlayError
from overlay.index.ledger.ledger import Ledger
from overlay.kafka.fetched import Fetched
from overlay.kafka.log_position import TopicPartition
from overlay.match import Addressed, Addressing, Audience, Masks
from overlay.match.record_slice import RecordSlice, join, keep
from overlay.output.partition import place
from overlay.output.undeliverable import explain_refusal, find_refused
from overlay.scan import Malformed
from overlay.subject.dictionary import Dictionary

from .ahead import Passed, TaskGaps
from .blocks import SCHEMA, make_runs, make_tally, pack
from .following import NotNumbered
from .order import find_places
from .readers import JobReader, JobScan
from .runs import Runs

BLOCK_BYTES = 1 << 20
"""Bytes from which on a block is handed on."""

NO_OFFSETS: Ints = np.empty(0, np.int64)

NO_GAPS: Mapping[int, TaskGaps] = MappingProxyType({})

_Part = tuple[RecordSlice, Ints, Ints, int]
"""Records, their ranks, what is passed with each, and the place of the first one."""


class RecordRefused(OverlayError):
    """A record that an output can never take, of a consumer without a dead-letter topic. The author of the consumer's
    file acts, or the operator of the topic.
    """


class BlockFilter:
    """The filter of one scan task, with the interface of a RowFilter. Not thread-safe.

    `consumers`: the numbers of those that the task reads for. `sequenced`: the stream has one partition, so that
    offsets give sequences. `ledger`: gives them in others; they are 0 without one, and for records below its end that it
    does not have. One that it has not come to raises NotNumbered. `only`: the offsets to deliver, by partition (int64,
    ascending); None for all. `gaps`: those of the task, by number of range.
    """

    schema = SCHEMA

    def __init__(
        self,
        scan: JobScan,
        task: int,
        consumers: tuple[int, ...],
        *,
        sequenced: bool,
        ledger: Ledger | None,
        addressing: Addressing,
        only: Mapping[TopicPartition, Ints] | None = None,
        gaps: Mapping[int, TaskGaps] = NO_GAPS,
    ) -> None:
        self.sequenced = sequenced
        self._task, self._ledger, self._addressing, self._now = task, ledger, addressing, scan.now
        self._stream = scan.stream.name
        self._only = only
        self._consumers, self._readers = consumers, [scan.readers[consumer] for consumer in consumers]
        readers = self._readers
        values = [reader.values for reader in readers]
        self._masks = Masks([reader.filter for reader in readers], scan.stream.properties, values)
        self._patterns, self._values = [reader.patterns for reader in readers], values
        self._audiences: dict[Dictionary, Audience] = {}
        self._found = [0] * len(readers)
        self._passed = [Passed(at, gaps) for at in range(len(readers))]
        self._is_ordered = not sequenced and ledger is not None
        """Whether the ledger says how the partitions follow each other."""
        self._runs, self._place = [Runs() for _ in readers], 0
        self._open: dict[tuple[int, int, bool], list[_Part]] = {}
        """What is kept and not in a block yet, by writer, consumer, and whether it is dead letters."""
        self._number = 0

    def begin(self, at: int) -> None:
        """Go on with range `at` of the task, and count the gaps of the ranges before it as passed. The
        numbers rise from call to call.
        """
        for passed, runs in zip(self._passed, self._runs, strict=True):
            passed.begin(at)
            runs.begin()
        self._place = 0

    def tally(self) -> Iterator[pa.RecordBatch]:
        """Yield a tally for each consumer: how many records the task has read that have a subject which the consumer
        wants, from its floors on and, with `only`, among these offsets; and in a stream with a ledger the runs of these. None
        for a consumer without such records.
        """
        for consumer, passed, runs in zip(self._consumers, self._passed, self._runs, strict=True):
            if passed.scanned:
                yield make_tally(self._task, consumer, passed.scanned)
                if self._is_ordered:
                    yield make_runs(self._task, consumer, runs.to_bytes())

    def sift(
        self, offset_range: OffsetRange, fetched: Fetched, now: int, stop: int | None = None
    ) -> Iterator[FilteredRows]:
        """Yield what passes of a fetch, with blocks as the batches of each part, before the offset `stop`, by default
        the end of the range. A part ends at bytes that cannot be read, which it has in `broken`, or with the fetch.
        `now` is not used: the batch has a time of its own.
        """
        part = FilteredRows(fetched.position)
        pieces = self._addressing.read(
            *offset_range.source,
            fetched.data,
            fetched.position,
            more=self._masks.fields,
            stop=offset_range.stop if stop is None else stop,
            aborted=fetched.aborted,
        )
        for piece in pieces:
            if isinstance(piece, Malformed):
                part.broken, part.position = piece, piece.next_offset
                yield self._finish(part)
                part = FilteredRows(part.position)
            else:
                part.position = piece.records.next_offset
                self._add(part, piece)
        part.is_last = True
        yield self._finish(part)

    def _add(self, part: FilteredRows, piece: Addressed) -> None:
        """Match a slice, and keep what the consumers want of it."""
        if not len(piece.records):
            return
        part.scanned += len(piece.records)
        part.unaddressed.update(piece.count_unaddressed())
        wanted = self._find_wanted(piece)
        sifted = self._masks.sift(piece, {i: rows for i, rows in wanted.items() if rows.size}, self._now)
        for tally in sifted.tallies.values():
            part.unknown += tally.unknown
            part.nulls.update(tally.nulls)
        every, places = self._find_places(piece, wanted)
        delivered = dict[int, Ints]()
        for i, rows in sifted.rows.items():
            sequences = every[rows]
            passed = self._passed[i].number(wanted[i], rows, piece.records.offset[rows])
            if (refused := self._find_refused(self._readers[i], piece, rows)).size:
                nowhere = np.zeros(refused.size, np.int64)
                self._keep(i, piece, rows[refused], sequences[refused], nowhere, nowhere, places, dead=True)
                rows, sequences, passed = (np.delete(each, refused) for each in (rows, sequences, passed))
            if rows.size:
                ranks = np.arange(self._found[i], self._found[i] + rows.size)
                self._found[i] += rows.size
                self._keep(i, piece, rows, sequences, ranks, passed, places, dead=False)
            delivered[i] = rows
        for i, rows in wanted.items():
            self._passed[i].pass_by(rows.size)
            if self._is_ordered:
                hits = np.searchsorted(rows, delivered.get(i, NO_OFFSETS))
                self._runs[i].add(places[rows], piece.records.offset[rows], hits)

    def _find_wanted(self, piece: Addressed) -> dict[int, Ints]:
        """Return the rows of a slice that have a subject which a consumer wants, from its floors on and, with `only`, among
        these offsets; by the consumer's place among the task's."""
        if piece.dictionary not in self._audiences:
            self._audiences[piece.dictionary] = Audience(piece.dictionary, self._patterns, self._values)
        selection = self._audiences[piece.dictionary].select(piece.codes)
        source = piece.topic, piece.partition
        wanted = {i: selection.of(i) for i in selection.wanting()}
        if self._only is not None:
            only = self._only.get(source, NO_OFFSETS)
            wanted = {i: rows[np.isin(piece.records.offset[rows], only)] for i, rows in wanted.items()}
        for i, rows in wanted.items():
            if (floor := self._readers[i].floors.get(source, 0)) > int(piece.records.offset[0]):
                wanted[i] = rows[piece.records.offset[rows] >= floor]
        return wanted

    def _find_places(self, piece: Addressed, wanted: Mapping[int, Ints]) -> tuple[Ints, Ints]:
        """Return the sequences of a slice's records, and their places in the order of the stream (int64, one per record of the
        slice). Those of records that no consumer wants have no meaning. Raises NotNumbered."""
        sequences: Ints = np.zeros(len(piece.records), np.int64)
        needed = np.unique(np.concatenate([NO_OFFSETS, *wanted.values()]))
        sequences[needed] = self._find_sequences(piece, needed)
        if not self._is_ordered:
            return sequences, np.zeros(sequences.size, np.int64)
        places = find_places(sequences, self._place)
        self._place = int(places[-1])
        return sequences, places

    def _find_refused(self, reader: JobReader, piece: Addressed, rows: Ints) -> Ints:
        """Return the rising indices into `rows` of the records that become dead letters.

        Raises RecordRefused for one that the output can never take, if the consumer has no dead-letter topic. In the
        first run of a batch that is before its plan is written, so the operator may still change the file.
        """
        topic = reader.output_topic
        if reader.dead_letter_topic is not None:
            return find_refused(topic, piece, rows, self._now)
        refused = find_refused(topic, piece, rows, self._now, slack=0)
        if refused.size:
            row = int(rows[refused[0]])
            raise RecordRefused(
                f"{piece.topic}-{piece.partition}@{piece.records.offset[row]}: output topic {topic.topic} of consumer"
                f" {reader.id[1]!r} of stream {reader.id[0]!r} can never take this record:"
                f" {explain_refusal(topic, piece, row, self._now)}. Change the topic's settings, or write"
                " `on_undeliverable: dead_letter` with a `dead_letter` topic"
            )
        return refused

    def _find_sequences(self, piece: Addressed, rows: Ints) -> Ints:
        offsets = piece.records.offset[rows]
        if self.sequenced:
            return offsets + 1
        if self._ledger is None:
            return np.zeros(rows.size, np.int64)
        source = piece.topic, piece.partition
        if rows.size and offsets[-1] >= self._ledger.end_of(source) and self._ledger.next_sequence > 1:
            raise NotNumbered(
                f"{source[0]}-{source[1]}@{offsets[-1]}: the ledger of stream {self._stream} has not come to this record. Start"
                " the job again: the batch then has its sequences"
            )
        return self._ledger.sequence_of(source, offsets)

    def _keep(
        self,
        consumer: int,
        piece: Addressed,
        rows: Ints,
        sequences: Ints,
        ranks: Ints,
        passed: Ints,
        places: Ints,
        *,
        dead: bool,
    ) -> None:
        """Keep the rows of a consumer, by output partition. `places`: of all records of the piece. `dead`: whether they are
        dead letters."""
        reader = self._readers[consumer]
        topic = reader.output_topic
        if topic.partitions == 1:
            self._put((reader.first_writer, consumer, dead), piece, rows, sequences, ranks, passed, places)
            return
        texts = piece.texts
        targets = place(topic.partition_by, topic.partitions, piece.partition, piece.records, rows, piece.codes, texts)
        for target in np.unique(targets).tolist():
            mine = targets == target
            key = reader.first_writer + target, consumer, dead
            self._put(key, piece, rows[mine], sequences[mine], ranks[mine], passed[mine], places)

    def _put(
        self,
        key: tuple[int, int, bool],
        piece: Addressed,
        rows: Ints,
        sequences: Ints,
        ranks: Ints,
        passed: Ints,
        places: Ints,
    ) -> None:
        part = keep(piece, rows, sequences), ranks, passed, int(places[rows[0]])
        self._open.setdefault(key, []).append(part)

    def _finish(self, part: FilteredRows) -> FilteredRows:
        """Make blocks of what is kept, and add them to the part."""
        columns: list[tuple[int, int, int, int, int, bool, int, int, bytes]] = []
        for (writer, consumer, dead), parts in self._open.items():
            for records, ranks, passed, first in _unite(parts):
                data = pack(records, ranks, passed)
                number, size = self._consumers[consumer], int(records.measure(np.arange(len(records))).sum())
                columns.append((writer, self._task, self._number, number, len(records), dead, size, first, data))
                self._number += 1
        self._open.clear()
        if columns:
            arrays = [
                pa.array(values, field.type) for values, field in zip(zip(*columns, strict=True), SCHEMA, strict=True)
            ]
            part.batches = [pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)]
        return part


def _unite(parts: list[_Part]) -> Iterator[_Part]:
    """Yield neighbouring parts of one source partition as one, until BLOCK_BYTES are reached."""
    records, *numbers, first = parts[0]
    for more, *further, start in parts[1:]:
        if records.size >= BLOCK_BYTES or more.partition != records.partition:
            yield records, numbers[0], numbers[1], first
            records, numbers, first = more, further, start
        else:
            records = join(records, more)
            numbers = [np.concatenate(pair) for pair in zip(numbers, further, strict=True)]
    yield records, numbers[0], numbers[1], first
