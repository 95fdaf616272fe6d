"""The reader: fetches, the row filter in a thread, and batches in the order in which they come.

Nothing is read ahead of the caller except what the fetcher holds, and the fetcher stops at a limit
of bytes. So a slow caller costs no memory, and once the generator is closed nothing is left behind.

If a chunk index allows gaps, a partition is read in fetch ranges (offset_ranges.py), each by a partition
fetch of its own. Later fetch ranges are fetched while one is processed (range_reading.py), but their records
are returned in order.

The last N records that pass are found by reading backwards in growing spans, each span forwards,
because only reading a span shows what passes. A partition is finished once it has given N records
or has no more, and N records per partition are kept meanwhile. Partitions are merged from their
ends, by timestamp and each in its own order. With a ledger they are merged by sequence.

For the last record of each subject, overlay/index/pending/last_per_subject.py says what has to be
read, newest first.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from aiokafka.client import AIOKafkaClient

from overlay.arrays import Ints
from overlay.client.connection import Connection, Connections
from overlay.clock import now_ms
from overlay.config.stream import OnCorrupt
from overlay.errors import CorruptBatch, SourceUnavailable
from overlay.index.pending.by_subject import SubjectTally
from overlay.index.pending.last_per_subject import LastPerSubject
from overlay.index.skip.chunks import Chunks
from overlay.index.skip.config_fingerprint import find_config_fingerprint
from overlay.index.start_positions import WINDOW
from overlay.kafka.admin import Admin
from overlay.kafka.fetched import Changed, Denied, Fetched, Lost
from overlay.kafka.fetcher import Fetcher
from overlay.kafka.log_cut import NO_EPOCH
from overlay.kafka.log_position import TopicPartition
from overlay.kafka.lost_position import find_start, refuse
from overlay.kafka.partition_fetch import PartitionFetch
from overlay.kafka.range_reader import PATIENCE_S
from overlay.logs import get_logger
from overlay.scan.decode import NO_STOP
from overlay.schemas.gate import SchemaGate, open_gate
from overlay.subject import Pattern
from overlay.waits import finish_in_thread, is_set_within

from .bounds import ReadBounds, begin_at, begin_in_order, find_bounds
from .columns import make_empty_rows
from .growth import Growth
from .indexes import Indexes, KeptIndex, ReadPlan, derive_conditions
from .last_rows import count_newer, merge_last
from .merging import Merge
from .newest import Newest, merge_newest
from .offset_ranges import OffsetRange, cut_out
from .question import CheckedQuestion
from .range_reading import RangeReading, go_on
from .row_filter import FetchFilter, FilteredRows, RowFilter

log = get_logger(__name__)

Batches = AsyncGenerator[pa.RecordBatch, None]
REQUESTS = 8
"""Requests in flight to a broker: one whose answer is being processed, and a few that hide the
round trip.
"""
ADVICE = "Read it anew"
"""What a user can do about a log that has changed."""
SMALL_BYTES = 256 << 10
"""Bytes of a fetch that is processed in the loop: handing it to a thread would take longer."""
COUNT_ROWS = 1 << 20
"""Rows in a batch of records that are only counted."""


@dataclass(slots=True)
class Progress:
    """The progress of a reading, updated while it runs."""

    scanned: int = 0
    """Records tested."""
    matched: int = 0
    """Records returned."""
    done: int = 0
    """Offsets processed, of `total`."""
    total: int | None = None
    """None until Kafka has reported it, and for a reading that follows."""
    unaddressed: Counter[str] = field(default_factory=Counter)
    """Records without a subject in the stream, by reason; they are left out."""
    unknown: int = 0
    """Records for which the filter is neither true nor false; they are left out."""
    nulls: Counter[str] = field(default_factory=Counter)
    """Values in the filter that could not be read, by reason; the filter treats them as null."""
    skipped: int = 0
    """Batches that cannot be read, skipped as the stream's `on_corrupt` says."""
    lost: int = 0
    """Offsets that retention removed before they were read."""
    unread: int = 0
    """Offsets skipped by the stream's chunk index. They count as done; the other numbers do not
    include them. If records are only counted, also the records that the index has counted, which
    are in `matched` and not in `done`.
    """
    newer: int = 0
    """With `last` in a stream with a ledger: records that are newer than some of the answer, and that its order, by sequence,
    leaves out (`count_newer`)."""


async def read_alone(lines: Connections, indexes: Indexes, request: CheckedQuestion, progress: Progress) -> Batches:
    """Yield what `read_batches` yields, with a new connection, in the caller's loop. The connection is
    closed at the end, or when the generator is closed.
    """
    async with lines.open() as line, aclosing(read_batches(line, indexes, request, progress)) as batches:
        async for batch in batches:
            yield batch


async def read_batches(line: Connection, indexes: Indexes, request: CheckedQuestion, progress: Progress) -> Batches:
    """Yield the batches that answer a request, at most `request.limit` rows together, and count in
    `progress`. No batch is empty. `indexes`: the caller's, which keeps what is read of chunk indexes.

    Raises what `make_read_plan` raises, CorruptBatch unless the stream's file says to skip such
    batches, SourceChanged, SourceUnavailable, CredentialsRefused.
    """
    bounds, read_plan = await make_read_plan(line, indexes, request)
    addressing = line.find_addressing(request.stream) if request.is_named else None
    row_filter = RowFilter(request, sequenced=bounds.sources.is_sequenced, addressing=addressing, ledger=bounds.ledger)
    scan = Scan(await line.open(), line.admin, row_filter, request, bounds, read_plan, progress)
    left = request.limit
    async with aclosing(scan.read()) as batches:
        while left != 0 and (batch := await anext(batches, None)) is not None:
            if left is not None:
                batch = batch.slice(0, left)
                left -= batch.num_rows
            progress.matched += batch.num_rows
            yield batch


async def make_read_plan(
    line: Connection,
    indexes: Indexes,
    request: CheckedQuestion,
    narrow: Callable[[ReadBounds], ReadBounds] | None = None,
) -> tuple[ReadBounds, ReadPlan]:
    """Return the bounds of the logs of a request's stream, and the plan of what to read in them.

    The plan leaves out what the stream's index rules out, if it has one. `narrow`: a function that
    gets the bounds before the plan is made, and returns them or smaller ones.

    Raises what `find_bounds` and `narrow` raise, and NoSequence.
    """
    conditions = derive_conditions(request, now_ms())
    index = indexes.find(request, conditions)
    bounds = await _find_bounds(line, indexes, index, request)
    if narrow is not None:
        bounds = narrow(bounds)
    read_plan = await index.find_read_plan(line, request, conditions, bounds) if index else None
    return bounds, await _begin(line, request, read_plan or ReadPlan(bounds.offset_ranges))


async def count_by_index(
    line: Connection, indexes: Indexes, request: CheckedQuestion, narrow: Callable[[ReadBounds], ReadBounds]
) -> dict[TopicPartition, SubjectTally]:
    """Return, by partition, how many records of each subject pass a request, as far as the stream's
    index tells, and which offsets have to be read for the rest. Without an index these are all
    offsets, and partitions with an empty range are left out.

    `narrow`: a function that gets the bounds of the stream's logs and returns them or smaller ones,
    with at most one range for each partition. Raises what `find_bounds` and `narrow` raise, and
    NoSequence.
    """
    conditions = derive_conditions(request, now_ms())
    index = indexes.keep(request) if request.index else None
    bounds = narrow(await _find_bounds(line, indexes, index, request))
    found = await index.count_by_subject(line, request, conditions, bounds) if index else None
    if found is not None:
        return found
    ranges = {each.source: (each.start, each.stop) for each in bounds.offset_ranges if each.start < each.stop}
    return {source: SubjectTally({}, ((start, stop),), 0, 0, stop - start) for source, (start, stop) in ranges.items()}


async def count_spans(
    line: Connection,
    indexes: Indexes,
    request: CheckedQuestion,
    wanted: Sequence[tuple[Pattern, ...]],
    spans: Sequence[tuple[TopicPartition, int, int]],
) -> Ints:
    """Return how many records that match each list of patterns in `wanted` the stream's index counts in each of
    `spans` (partition, first and next offset), int64 [lists, spans]: -1 where it does not tell exactly, 0 for a list
    without patterns; -1 everywhere if there is no index that can be read. Raises what `find_bounds` raises."""
    index = indexes.keep(request) if request.index else None
    found = None
    if index is not None:
        found = await index.count_spans(line, await _find_bounds(line, indexes, index, request), wanted, spans)
    return np.full((len(wanted), len(spans)), -1, np.int64) if found is None else found


async def _find_bounds(
    line: Connection, indexes: Indexes, index: KeptIndex | None, request: CheckedQuestion
) -> ReadBounds:
    """Return the bounds of the logs of a request's stream. If the stream has several partitions and the request has
    columns or `from_seq`, they have the order of its ledger, if there is one that can be read. `index`: the index
    that the reading uses, None for none. Raises what `find_bounds` raises, and NoSequence.
    """
    kept = index or (indexes.keep(request) if line.is_divided(request.stream) else None)
    bounds = await find_bounds(line, request, kept.offsets if kept else {})
    if not bounds.sources.is_sequenced and (request.columns or request.from_seq is not None):
        kept, gives = indexes.keep(request), "sequence" in request.columns or request.from_seq is not None
        order = await kept.find_order(line, bounds, gives_sequences=gives) if kept else None
        bounds = begin_in_order(bounds, request, order)
    return bounds


async def _begin(line: Connection, request: CheckedQuestion, read_plan: ReadPlan) -> ReadPlan:
    """Return `read_plan`, or, if the request has `since`, a copy in which the ranges without a route of
    the index begin at the offset that Kafka finds for this time.
    """
    blind = [each for each in read_plan.offset_ranges if each.sized_route is None]
    if request.since is None or not blind:
        return read_plan
    begun = iter(await begin_at(line, blind, request.since))
    ranges = (next(begun) if each.sized_route is None else each for each in read_plan.offset_ranges)
    return replace(read_plan, offset_ranges=tuple(ranges))


@dataclass(slots=True)
class Scan:
    """One scan of the ranges of `read_plan` through a row filter. `read`, which is called once, yields what passes and
    counts in `progress`. With `follow` in the request it continues after `bounds`.
    """

    client: AIOKafkaClient
    admin: Admin
    row_filter: FetchFilter
    request: CheckedQuestion
    bounds: ReadBounds
    read_plan: ReadPlan
    progress: Progress

    async def read(self) -> Batches:
        """Yield batches of the records that pass, without regard to the request's `limit`. It does not end if the request
        follows the stream.

        The order within a partition is that of offsets. Several partitions are merged by sequence if `bounds` have an
        order, that of the stream's ledger; otherwise they are interleaved as they come. Records that are only counted
        come first, as batches without columns. With `last` or `last_per_subject`, of the records that are there
        already only the last are returned, oldest first.
        """
        offset_ranges, further = self.read_plan.offset_ranges, self.bounds.further if self.request.follow else ()
        for batch in self._count(self.read_plan.counted):
            yield batch
        # the last records, the last of each subject, or a range that is followed from its start
        if self.request.last is not None:
            for batch in await self._find_last(offset_ranges, self.request.last):
                yield batch
            offset_ranges = ()
        elif self.request.last_per_subject:
            for batch in await self._find_lasts(offset_ranges):
                yield batch
            offset_ranges = ()
        elif (
            self.request.follow
            and self.bounds.order is None
            and all(each.sized_route is None for each in offset_ranges)
        ):
            further = tuple(replace(each, stop=NO_STOP) for each in offset_ranges)
            offset_ranges = ()
        for some in (offset_ranges, further):
            merge = self._make_merge(some)
            async with aclosing(self._read_parts(some, merge)) as parts:
                async for source, part in parts:
                    if merge is None:
                        found: Iterable[pa.RecordBatch] = part.batches
                    else:
                        merge.add(source, part)
                        found = merge.take()
                    for batch in found:
                        yield batch
            for batch in merge.finish() if merge else ():
                yield batch

    def _make_merge(self, offset_ranges: Sequence[OffsetRange]) -> Merge | None:
        """Return a merge of these ranges, one for each partition, by the order of the bounds; None if the bounds have
        none, or if there are no ranges.
        """
        order = self.bounds.order
        return Merge(order, self.row_filter.schema, offset_ranges) if order and offset_ranges else None

    def _count(self, records: int) -> Iterator[pa.RecordBatch]:
        """Yield batches without columns, of COUNT_ROWS rows at most, which have `records` rows together. Adds this number to
        `progress.unread`, when the first batch is asked for.
        """
        self.progress.unread += records
        while records > 0:
            yield make_empty_rows(min(records, COUNT_ROWS))
            records -= COUNT_ROWS

    async def _find_last(self, offset_ranges: Sequence[OffsetRange], count: int) -> list[pa.RecordBatch]:
        """Return batches of the last `count` records that pass, over all ranges, in the order of
        `merge_last`; fewer if there are no more. Reads backwards in growing spans.
        """
        kept: dict[TopicPartition, deque[FilteredRows]] = {each.source: deque() for each in offset_ranges}
        window, left = max(WINDOW, count), list(offset_ranges)
        while left := [each for each in left if each.start < each.stop and _count(kept[each.source]) < count]:
            spans = [each.begin_at(each.enough) if each.enough else each.keep_last(window) for each in left]
            found: dict[TopicPartition, deque[FilteredRows]] = {each.source: deque() for each in left}
            async with aclosing(self._read_parts(spans)) as parts:
                async for source, part in parts:
                    if part.batches:
                        found[source].append(part)
                        _drop_first(found[source], count - _count(kept[source]))
            for source, earlier in found.items():
                kept[source].extendleft(reversed(earlier))
            left = [replace(each, stop=span.start, enough=0) for each, span in zip(left, spans, strict=True)]
            window *= 2
        partitions = list(kept.values())
        self.progress.newer = await finish_in_thread(count_newer, partitions, count)
        return await finish_in_thread(merge_last, self.row_filter.schema, partitions, count)

    async def _find_lasts(self, offset_ranges: Sequence[OffsetRange]) -> list[pa.RecordBatch]:
        """Return batches of the last record of each subject, among those that pass, oldest first, in the order of
        `merge_newest`. `offset_ranges`: one for each partition.

        In each partition the newest records are read first, until every subject is found.
        """
        none = Chunks(find_config_fingerprint(self.request.stream))
        searches = {
            each: self.read_plan.searches.get(each.source)
            or LastPerSubject(none, self.request.patterns, each.start, each.stop)
            for each in offset_ranges
        }
        kept = {each.source: Newest() for each in offset_ranges}
        total, read = sum(map(_count_offsets, offset_ranges)), 0
        while rounds := [(each, pieces) for each, search in searches.items() if (pieces := search.next())]:
            read += sum(piece.next_offset - piece.first_offset for _, pieces in rounds for piece in pieces)
            async with aclosing(self._read_parts([cut_out(each, pieces) for each, pieces in rounds])) as parts:
                async for source, part in parts:
                    kept[source].add(part)
            for each, _ in rounds:
                searches[each].take(kept[each.source].heads)
            # what is between the pieces of one round may be read in the next
            self.progress.total, self.progress.done, self.progress.unread = total, read, 0
        self.progress.total, self.progress.done, self.progress.unread = total, total, total - read
        return await finish_in_thread(merge_newest, self.row_filter.schema, list(kept.values()))

    async def _read_parts(
        self, offset_ranges: Sequence[OffsetRange], merge: Merge | None = None
    ) -> AsyncGenerator[tuple[TopicPartition, FilteredRows], None]:
        """Read the ranges through the filter, and yield each part that results, with its partition.
        The caller adds the parts to `merge`, if there is one: then data is only taken from the
        partition that is farthest behind in sequences, otherwise as it comes.

        It does not end if a range has no stop; partitions that are added to the stream are then
        read as well. Raises CorruptBatch, SourceChanged, SourceUnavailable, CredentialsRefused.
        """
        offset_ranges = [each for each in offset_ranges if each.start < each.stop]
        endless = any(each.stop == NO_STOP for each in offset_ranges)
        self.progress.total = None if endless else (self.progress.total or 0) + sum(map(_count_offsets, offset_ranges))
        if not offset_ranges:
            return
        async with AsyncExitStack() as stack:
            fetcher = Fetcher(self.client, requests=1 if endless else REQUESTS)
            stack.push_async_callback(fetcher.close)
            growth = self._watch_growth(fetcher.changed) if endless else None
            if growth is not None:
                stack.push_async_callback(growth.close)
            gate = open_gate(self.request.stream)
            range_readings = [RangeReading(fetcher, each, gate) for each in offset_ranges]
            self._pass_over(range_readings)
            if merge is not None and endless:
                await merge.follow(fetcher)
            while range_readings := [each for each in range_readings if not each.is_over]:
                fetcher.changed.clear()
                for added in growth.take() if growth else ():
                    range_readings.append(RangeReading(fetcher, added, gate))
                    self.row_filter.sequenced = False  # several partitions have no common order
                await go_on(range_readings)
                if merge is not None:
                    merge.keep(range_readings)
                wanted = merge.choose(range_readings) if merge else range_readings
                ready = [range_reading for range_reading in wanted if range_reading.partition_fetch.ready is not None]
                for range_reading in ready:
                    async with aclosing(self._take(range_reading)) as parts:
                        async for part in parts:
                            yield range_reading.offset_range.source, part
                    range_reading.leave()
                if not ready:
                    await _wait(fetcher, None if endless else PATIENCE_S, merge.patience_s if merge else None, gate)

    def _pass_over(self, range_readings: Iterable[RangeReading]) -> None:
        """Add to `progress`, as unread and as done, the offsets of these readings' ranges that their routes skip."""
        for each in range_readings:
            if each.offset_range.sized_route is not None:
                unread = _count_offsets(each.offset_range) - each.offsets
                self.progress.unread += unread
                self.progress.done += unread

    def _watch_growth(self, changed: asyncio.Event) -> Growth:
        return Growth(self.client, self.admin, self.request.stream, self.bounds.sources, changed)

    async def _take(self, range_reading: RangeReading) -> AsyncGenerator[FilteredRows, None]:
        """Take the data that a reading has ready, and yield in parts the rows that pass the filter. If
        retention has removed its position instead, yield nothing and move it to the log's start.

        Does not wait for more data. After the last part, the reading's partition fetch is at the
        next offset to read. It is not if the generator is closed early.

        Raises CorruptBatch, SourceChanged, CredentialsRefused (if this user may not read the partition
        any more), and SourceUnavailable.
        """
        taken, gaps = range_reading.take()
        partition_fetch, offset_range = range_reading.partition_fetch, range_reading.offset_range
        self.progress.done -= gaps
        # fetched data; or the position is gone, the log has changed, or access is denied
        match taken:
            case Fetched() as fetched:
                position, parts = (
                    fetched.position,
                    self.row_filter.sift(offset_range, fetched, now_ms(), partition_fetch.stop),
                )
                part, is_small = None, fetched.data.size <= SMALL_BYTES
                while (part is None or not part.is_last) and (part := await _next(parts, is_small)):
                    self._note(part, part.position - position)
                    position = part.position
                    yield part
                    self._check(part, offset_range.source)
                reached = min(max(position, fetched.next_offset), partition_fetch.stop)
                self.progress.done += reached - position
                if position > partition_fetch.position:
                    partition_fetch.seek(position)
            case Lost():
                await self._recover(partition_fetch, offset_range)
            case Changed() | Denied() as found:
                raise refuse(found, offset_range.source, ADVICE)

    def _note(self, part: FilteredRows, offsets: int) -> None:
        self.progress.done += offsets
        self.progress.scanned += part.scanned
        self.progress.unaddressed.update(part.unaddressed)
        self.progress.unknown += part.unknown
        self.progress.nulls.update(part.nulls)

    def _check(self, part: FilteredRows, source: TopicPartition) -> None:
        """If `part` ends at a batch that cannot be read, raise CorruptBatch, or, if the stream's
        `on_corrupt` says to skip, log it and count it in `progress.skipped`. `source`: the partition.

        Call it after the rows of the part, which are before that batch, were returned.
        """
        if part.broken is None:
            return
        error = CorruptBatch(*source, part.broken.base_offset, part.broken.fault.text)
        if self.request.stream.on_corrupt is OnCorrupt.STOP:
            raise error
        self.progress.skipped += 1
        log.error("batch skipped", topic=source[0], partition=source[1], offset=error.offset, why=error.reason)

    async def _recover(self, partition_fetch: PartitionFetch, offset_range: OffsetRange) -> None:
        """Move a partition fetch whose position Kafka does not have to the log's start, which retention has moved up, and
        count the offsets in between in `progress`, as lost and as done.

        Raises SourceChanged if the log ends before the position, since it is then another log. A
        log that has lost its end may have grown past the position again before it is asked for its
        bounds. So a position that stays where it is keeps its leader epoch, and the fetcher compares
        the log with it.
        """
        topic, partition = offset_range.source
        first = await find_start(self.admin, offset_range.source, partition_fetch.position, ADVICE)
        epoch = partition_fetch.epoch if first == partition_fetch.position else NO_EPOCH
        lost = max(0, min(first, partition_fetch.stop) - partition_fetch.position)
        if lost:
            self.progress.lost += lost
            self.progress.done += lost
            log.warning("retention passed the position", topic=topic, partition=partition, lost=lost)
        partition_fetch.seek(first, epoch)


async def _next(parts: Iterator[FilteredRows], is_small: bool) -> FilteredRows | None:
    return next(parts, None) if is_small else await finish_in_thread(next, parts, None)


async def _wait(
    fetcher: Fetcher, patience_s: float | None, most_s: float | None = None, gate: SchemaGate | None = None
) -> None:
    if not await is_set_within(fetcher.changed, patience_s if most_s is None else most_s) and most_s is None:
        if gate is not None and gate.waits:
            wait = next(iter(gate.waits.values()))
            raise SourceUnavailable(
                f"the schema registry has not told schema {wait.id} for {patience_s:.0f} s: {gate.trouble or 'no answer'}"
            )
        raise SourceUnavailable(f"Kafka has answered nothing for {patience_s:.0f} s. Try again")


def _count_offsets(offset_range: OffsetRange) -> int:
    return offset_range.stop - offset_range.start


def _count(parts: Iterable[FilteredRows]) -> int:
    return sum(part.rows for part in parts)


def _drop_first(parts: deque[FilteredRows], count: int) -> None:
    """Drop parts from the front, as long as the others have at least `count` rows."""
    rows = _count(parts)
    while parts and rows - parts[0].rows >= count:
        rows -= parts.popleft().rows
