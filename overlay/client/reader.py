"""The reading itself: fetches, the sieve in a thread, and batches in the order in which they come.

Nothing is read ahead of whoever takes the batches, but for what the feed holds: it stops fetching at a bound of bytes.
So a slow reader costs no memory, and one that goes away leaves nothing behind once the generator is closed.

The last N records that pass are found by reading backwards in growing spans, each forwards: what a span holds cannot be
known without reading it. A partition is done with once it has given N, or has no more; what is kept meanwhile is N
records a partition. Partitions are merged by timestamp from their ends, each in its own order.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from aiokafka.client import AIOKafkaClient

from overlay.admin import Admin
from overlay.clock import now_ms
from overlay.config.stream import OnCorrupt
from overlay.connection import Properties, open_client
from overlay.errors import CorruptBatch, SourceChanged, SourceUnavailable
from overlay.logs import get_logger
from overlay.scan.columns import Ints
from overlay.scan.decode import NO_STOP
from overlay.source.feed import Denied, Feed, Fetched, Lane, Lost
from overlay.source.mark import Source
from overlay.source.span import PATIENCE_S
from overlay.source.start import WINDOW

from .bounds import Bounds, find_bounds
from .growth import Growth
from .question import Request
from .sieve import Part, Sieve, Stretch

log = get_logger(__name__)

Batches = AsyncGenerator[pa.RecordBatch, None]


@dataclass(slots=True)
class Progress:
    """How far a reading is; it changes while the reading goes on."""

    scanned: int = 0
    """Records looked at."""
    matched: int = 0
    """Records handed out."""
    done: int = 0
    """Offsets that are read, of `total`."""
    total: int | None = None
    """None before Kafka has said how many there are, and where what is followed has no end."""
    unaddressed: Counter[str] = field(default_factory=Counter)
    """Records without a subject in the stream, by reason; they are left out."""
    unknown: int = 0
    """Records for which the filter is neither true nor false; they are left out."""
    nulls: Counter[str] = field(default_factory=Counter)
    """Values that the filter names and that could not be read, by reason; to the filter they are null."""
    skipped: int = 0
    """Batches that cannot be read, passed over as the stream's `on_corrupt` says."""
    lost: int = 0
    """Offsets that retention removed before they were read."""


async def read_batches(kafka: Properties, request: Request, progress: Progress) -> Batches:
    """The batches that answer a request, none of them empty.

    Raises what `find_bounds` raises, CorruptBatch unless the stream's file says to skip, SourceChanged, SourceUnavailable.
    """
    bounds = await find_bounds(kafka, request)
    client = await open_client(kafka)
    try:
        sieve = Sieve(request, sequenced=bounds.sources.is_sequenced)
        scan = Scan(client, Admin(kafka), sieve, request, bounds, progress)
        left = request.limit
        async with aclosing(scan.read()) as batches:
            while left != 0 and (batch := await anext(batches, None)) is not None:
                if left is not None:
                    batch = batch.slice(0, left)
                    left -= batch.num_rows
                progress.matched += batch.num_rows
                yield batch
    finally:
        await client.close()


@dataclass(slots=True)
class Scan:
    """Reads stretches of partitions through a sieve."""

    client: AIOKafkaClient
    admin: Admin
    sieve: Sieve
    request: Request
    bounds: Bounds
    progress: Progress

    async def read(self) -> Batches:
        """Batches in the order of each partition, those of several interleaved as they come."""
        stretches: Sequence[Stretch] = self.bounds.stretches
        if self.request.last is not None:
            for batch in await self._find_last(stretches, self.request.last):
                yield batch
            stretches = self.bounds.further if self.request.follow else ()
        elif self.request.follow:
            stretches = [replace(each, stop=NO_STOP) for each in stretches]
        async with aclosing(self._read_parts(stretches)) as parts:
            async for _, part in parts:
                for batch in part.batches:
                    yield batch

    async def _find_last(self, stretches: Sequence[Stretch], count: int) -> list[pa.RecordBatch]:
        """The last `count` records that pass, of all stretches together."""
        kept: dict[Source, deque[Part]] = {each.source: deque() for each in stretches}
        window, left = max(WINDOW, count), list(stretches)
        while left := [each for each in left if each.start < each.stop and _count(kept[each.source]) < count]:
            spans = [replace(each, start=max(each.start, each.stop - window)) for each in left]
            found: dict[Source, deque[Part]] = {each.source: deque() for each in left}
            async with aclosing(self._read_parts(spans)) as parts:
                async for source, part in parts:
                    if part.batches:
                        found[source].append(part)
                        _drop_first(found[source], count - _count(kept[source]))
            for source, earlier in found.items():
                kept[source].extendleft(reversed(earlier))
            left = [replace(each, stop=span.start) for each, span in zip(left, spans, strict=True)]
            window *= 2
        return await asyncio.to_thread(merge_last, self.sieve.schema, list(kept.values()), count)

    async def _read_parts(self, stretches: Sequence[Stretch]) -> AsyncGenerator[tuple[Source, Part], None]:
        stretches = [each for each in stretches if each.start < each.stop]
        endless = any(each.stop == NO_STOP for each in stretches)
        more = sum(each.stop - each.start for each in stretches)
        self.progress.total = None if endless else (self.progress.total or 0) + more
        feed = Feed(self.client)
        growth = self._watch_growth(feed.changed) if endless else None
        try:
            lanes = {await feed.open(*each.source, each.start, each.stop): each for each in stretches}
            while lanes:
                feed.changed.clear()
                for each in growth.take() if growth else ():
                    lanes[await feed.open(*each.source, each.start)] = each
                    self.sieve.sequenced = False  # there is no order over several partitions
                ready = [lane for lane in lanes if lane.ready is not None]
                for lane in ready:
                    async with aclosing(self._take(lane, lanes[lane])) as parts:
                        async for part in parts:
                            yield lanes[lane].source, part
                lanes = {lane: each for lane, each in lanes.items() if lane.ready or lane.position < each.stop}
                if lanes and not ready:
                    await _wait(feed, None if endless else PATIENCE_S)
        finally:
            if growth is not None:
                await growth.close()
            await feed.close()

    def _watch_growth(self, changed: asyncio.Event) -> Growth:
        return Growth(self.client, self.admin, self.request.stream, self.bounds.sources, changed)

    async def _take(self, lane: Lane, stretch: Stretch) -> AsyncGenerator[Part, None]:
        """What a lane has ready, through the sieve; afterwards the lane stands where to go on."""
        match lane.take():
            case Fetched() as fetched:
                position, parts = fetched.position, self.sieve.sift(stretch, fetched, now_ms())
                while (part := await asyncio.to_thread(next, parts, None)) is not None:
                    self._note(part, part.position - position)
                    position = part.position
                    yield part
                    self._check(part, stretch.source)
                reached = min(max(position, fetched.next_offset), stretch.stop)
                self.progress.done += reached - position
                if position > lane.position:
                    lane.seek(position)
            case Lost():
                await self._recover(lane, stretch)
            case Denied(reason):
                raise SourceChanged(reason)

    def _note(self, part: Part, offsets: int) -> None:
        self.progress.done += offsets
        self.progress.scanned += part.scanned
        self.progress.unaddressed.update(part.unaddressed)
        self.progress.unknown += part.unknown
        self.progress.nulls.update(part.nulls)

    def _check(self, part: Part, source: Source) -> None:
        """Stop at what cannot be read, once the records before it are handed out; or pass over it."""
        if part.broken is None:
            return
        error = CorruptBatch(*source, part.broken.base_offset, part.broken.fault.text)
        if self.request.stream.on_corrupt is OnCorrupt.STOP:
            raise error
        self.progress.skipped += 1
        log.error("batch skipped", topic=source[0], partition=source[1], offset=error.offset, why=error.reason)

    async def _recover(self, lane: Lane, stretch: Stretch) -> None:
        """The log does not have the lane's position: go on at its start, unless it is another log."""
        topic, partition = stretch.source
        first, end = (await self.admin.find_bounds([stretch.source]))[stretch.source]
        if lane.position > end:
            raise SourceChanged(
                f"{topic}-{partition}: the log ends at {end}, below the position {lane.position}: it was truncated or"
                " created again. Read it anew"
            )
        lost = max(0, min(first, stretch.stop) - lane.position)
        if lost:
            self.progress.lost += lost
            self.progress.done += lost
            log.warning("retention passed the position", topic=topic, partition=partition, lost=lost)
        lane.seek(max(first, lane.position))


async def _wait(feed: Feed, patience_s: float | None) -> None:
    try:
        await asyncio.wait_for(feed.changed.wait(), patience_s)
    except TimeoutError:
        raise SourceUnavailable(f"Kafka has answered nothing for {patience_s:.0f} s. Try again") from None


def _count(parts: Iterable[Part]) -> int:
    return sum(part.rows for part in parts)


def _drop_first(parts: deque[Part], count: int) -> None:
    """Drop what is not among the last `count` rows, whole parts only."""
    rows = _count(parts)
    while parts and rows - parts[0].rows >= count:
        rows -= parts.popleft().rows


def merge_last(schema: pa.Schema, partitions: Iterable[Iterable[Part]], count: int) -> list[pa.RecordBatch]:
    """The last `count` rows of some partitions, in the order of each.

    Of the partitions' last rows the one with the latest timestamp comes last, and so on backwards. That is a sort by
    the smallest timestamp from a row on to the partition's end.
    """
    batches: list[pa.RecordBatch] = []
    keys: list[Ints] = []
    for parts in partitions:
        batches += [batch for part in parts for batch in part.batches]
        times = [times for part in parts for times in part.times]
        if times:
            keys.append(np.minimum.accumulate(np.concatenate(times)[::-1])[::-1])
    if not keys or not count:
        return []
    order = np.argsort(np.concatenate(keys), kind="stable")[-count:]
    if not schema.names:
        return [pa.RecordBatch.from_struct_array(pa.nulls(order.size, pa.struct([])))]
    found: list[pa.RecordBatch] = pa.Table.from_batches(batches, schema).take(pa.array(order)).to_batches()
    return found
