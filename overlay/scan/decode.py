"""From the bytes of a fetch to slices of records: headers, CRC, visibility, decompression and the
walk, in that order.

A slice is about two megabytes of decompressed records. That is small enough to stay in the CPU
cache between the steps that read it, and keeps a kernel call far below the 20 ms that other tasks
of the event loop can wait. The arrays of a slice belong to the decoder and are reused for the next
one: copy what has to be kept.

A batch is decompressed as a whole, but has a slice for every SLICE_ROWS records: a megabyte may
decompress to millions of records of a few bytes, and a record has a row of more than a hundred.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np

from overlay.arrays import Bytes, Flags, Ints

from . import crc
from .codec import Arena
from .commit import NO_ABORTS, Aborted, Sight, judge
from .header import CODEC_MASK, HEADER_SIZE, Batches, Fault, split
from .json.search import extract
from .kernel import walk
from .plan import Plan
from .shrinking import Shrinking
from .values import DeclaredFormat

SLICE_BYTES = 2 << 20
SLICE_ROWS = 1 << 16
"""Most records of a slice, and most rows that a decoder has room for. A row takes 32 bytes, and 16 for
each field.
"""
FIRST_ROWS = 4096
"""Rows that a decoder has room for at first."""
TEXT_BYTES = 32 << 20
"""Most bytes that are kept for the texts of a slice whose values are not JSON, if it has more than
one record.
"""
SMALLEST_RECORD = 7  # a byte each: length, attributes, two deltas, two sizes, header count
NO_STOP = 1 << 62

# numpy compares an array with a plain integer several times as fast as with a member of an enum
_SHOWN = int(Sight.SHOWN)
_UNREADABLE = int(Sight.UNREADABLE)


@dataclass(frozen=True, slots=True)
class Records:
    """The positions of some records in `buf`, one row each; see kernel.py. Valid until the decoder
    makes the next slice.

    `at` and `size` are [fields of the plan, records]: where each field's bytes are. Size -1 means
    missing or null, another negative size that it cannot be read (states.py). `timestamp`: ms since
    1970. `body`, `end`: where a record's key, value and headers begin and end, for `open_bodies`.
    `next_offset`: where reading continues after this slice.
    """

    buf: Bytes
    offset: Ints
    timestamp: Ints  # ms since 1970
    body: Ints  # where the key's size begins
    end: Ints
    at: Ints
    size: Ints
    next_offset: int  # the position after this slice and after hidden batches
    plan: Plan

    def __len__(self) -> int:
        return self.offset.size


@dataclass(frozen=True, slots=True)
class Malformed:
    """A batch that cannot be read. To skip it, continue at `next_offset`."""

    fault: Fault
    base_offset: int
    next_offset: int


class Decoder:
    """A decoder of fetch after fetch for one plan, with its own buffers. Not for two threads at
    once.

    `slice_bytes`: how many bytes of records make a slice, about. `slice_rows`: most records of a
    slice, None for SLICE_ROWS. `most_records`: a batch with more records is Malformed; None for no
    limit. `arena`: may be shared by decoders of which only one works at a time. `values`: the format
    of the stream's values, None for JSON.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        slice_bytes: int = SLICE_BYTES,
        slice_rows: int | None = None,
        most_records: int | None = None,
        arena: Arena | None = None,
        values: DeclaredFormat | None = None,
    ) -> None:
        self.plan = plan
        self._extractor = values.prepare(plan.paths) if values and plan.paths.count else None
        self._slice_bytes, self._slice_rows = slice_bytes, slice_rows or SLICE_ROWS
        self._most_records = most_records
        self._arena = arena or Arena()
        self._shrinking = Shrinking(FIRST_ROWS)
        self._used = 0  # most rows that were needed at once since the last slice was trimmed
        self._make_room(FIRST_ROWS)

    def decode(
        self,
        buf: Bytes,
        position: int = 0,
        *,
        stop: int = NO_STOP,
        aborted: Aborted = NO_ABORTS,
        committed: bool = True,
    ) -> Iterator[Records | Malformed]:
        """Yield slices of the records with position <= offset < stop in order, and a Malformed for
        each batch that cannot be read. A slice is valid until the next one is asked for, and may be
        empty.

        `aborted`: pairs (producer id, first offset) as the fetch response lists them;
        `committed=False` shows aborted records too. The next fetch continues at the `next_offset`
        of what was yielded last. Yields nothing if `buf` has neither a complete batch with offsets in
        that range nor one that cannot be read.
        """
        found = split(buf)
        batches = found.batches
        sound = crc.matches(buf, batches)
        sight = judge(buf, batches, sound, aborted if committed else NO_ABORTS)
        wanted = (batches["last_offset"] >= position) & (batches["base_offset"] < stop)
        if not wanted.all():  # most often it is all: a fetch begins at the position
            batches, sound, sight = batches[wanted], sound[wanted], sight[wanted]
        faults = np.where(sound, np.where(sight == _UNREADABLE, int(Fault.CONTROL), 0), int(Fault.CRC))
        if self._most_records is not None:
            faults[sound & (sight == _SHOWN) & (batches["count"] > self._most_records)] = int(Fault.TOO_MANY)
        tail = min(int(batches[-1]["last_offset"]) + 1, stop) if batches.size else position
        for first, last in _runs(faults, sight == _SHOWN):
            if faults[first]:
                yield _malformed(batches[first], Fault(int(faults[first])))
            else:
                yield from self._decode_run(buf, batches[first:last], position, stop)
        if found.fault and found.base_offset < stop:
            yield Malformed(found.fault, found.base_offset, max(found.base_offset, tail) + 1)
        elif tail > position:
            yield self._records(buf, 0, 0, tail)

    def _decode_run(self, buf: Bytes, batches: Batches, position: int, stop: int) -> Iterator[Records | Malformed]:
        """Yield the records of neighbouring batches, none of which is hidden, a slice at a time,
        and a Malformed for each batch that cannot be decompressed or walked.
        """
        at = 0
        while at < batches.size:
            # fields of values that are not JSON are written behind the records, in the arena
            if self._extractor or batches[at]["attributes"] & CODEC_MASK:
                source, count, fault = self._decompress(buf, batches[at:])
            else:
                source, count, fault = buf, self._gather_plain(batches[at:]), Fault.NONE
            if count:
                walked = yield from self._walk(source, batches[at : at + count], position, stop)
                at += walked
            self._trim()
            if fault and (not count or walked == count):
                yield _malformed(batches[at], fault)
                at += 1

    def _gather_plain(self, batches: Batches) -> int:
        """Set `data_at` and `data_end` of the uncompressed batches at the front, so that they are
        read in place in the fetched bytes. Return how many of them make one slice, at least 1.
        """
        (compressed,) = (batches["attributes"] & CODEC_MASK).nonzero()
        count = int(compressed[0]) if compressed.size else batches.size
        batches["data_at"][:count] = batches["at"][:count] + HEADER_SIZE
        ends = batches["end"][:count]
        batches["data_end"][:count] = ends
        if count == 1:
            return 1
        return max(1, int(ends.searchsorted(batches["at"][0] + self._slice_bytes, side="right")))

    def _decompress(self, buf: Bytes, batches: Batches) -> tuple[Bytes, int, Fault]:
        """Put the records of batches, decompressed, end to end into the arena until it has a slice
        or a batch fails. Return the arena's buffer, how many batches it has, and the fault of the
        next batch (NONE if it has none, or if the arena is full). Sets their `data_at` and
        `data_end`.
        """
        filled, count = 0, 0
        while count < batches.size and (filled < self._slice_bytes or not count):
            batch = batches[count]
            codec = int(batch["attributes"]) & CODEC_MASK
            data = buf[int(batch["at"]) + HEADER_SIZE : int(batch["end"])]
            after = self._arena.put(filled, codec, data) if data.size else filled
            if isinstance(after, Fault):
                # A batch that does not fit beside others may fit alone.
                is_full = after is Fault.TOO_LARGE and count > 0
                return self._arena.buf, count, Fault.NONE if is_full else after
            batches["data_at"][count], batches["data_end"][count] = filled, after
            filled, count = after, count + 1
        return self._arena.buf, count, Fault.NONE

    def _walk(
        self, buf: Bytes, batches: Batches, position: int, stop: int
    ) -> Generator[Records | Malformed, None, int]:
        """Yield the records of these batches, then a Malformed for the first batch that cannot be
        read, if there is one. The records come as one slice, or as several if there are more than
        `slice_rows`, or if their texts need much room (`_cut`).

        The generator's return value is how many batches are done, a malformed one included; those
        after it are not read.
        """
        counts = batches["count"].astype(np.int64)
        impossible = (counts < 0) | (counts * SMALLEST_RECORD > batches["data_end"] - batches["data_at"])
        fits = int(impossible.argmax()) if impossible.any() else batches.size
        sums = counts[:fits].cumsum()
        end = int(batches["data_end"][-1])
        done, fault = 0, Fault.NONE
        while done < fits and not fault:
            before = int(sums[done - 1]) if done else 0
            count = int(sums.searchsorted(before + self._slice_rows, side="right")) - done
            if count > 0:
                walked = self._walk_some(buf, batches[done : done + count], position, stop, end)
            else:
                walked = self._walk_large(buf, batches[done : done + 1], position, stop, end)
            count, fault = yield from walked
            done += count
        if not fault and fits < batches.size:
            fault = Fault.COUNT
        if fault:
            yield _malformed(batches[done], fault)
            done += 1
        return done

    def _walk_some(
        self, buf: Bytes, batches: Batches, position: int, stop: int, end: int
    ) -> Generator[Records, None, tuple[int, Fault]]:
        """Yield the records of batches with at most `slice_rows` together. Return how many batches
        were read, and the fault of the next one, NONE if all were read. `end`: as in `_records`.
        """
        self._reserve(int(batches["count"].sum()))
        rows, bad, fault = self._fill(buf, batches)
        done = bad if bad >= 0 else batches.size
        if done:
            yield from self._show(buf, rows, position, stop, int(batches["last_offset"][done - 1]) + 1, end)
        return done, fault

    def _walk_large(
        self, buf: Bytes, batch: Batches, position: int, stop: int, end: int
    ) -> Generator[Records, None, tuple[int, Fault]]:
        """Yield the records of a batch (an array of one) with more than `slice_rows`. Return 1 and
        NONE, or 0 and its fault if it cannot be read. `end`: as in `_records`.

        No record of such a batch may be shown. So the batch is walked twice, first to its end.
        """
        for *_, fault in self._walk_parts(buf, batch):
            if fault:
                return 0, fault
        for rows, left, _ in self._walk_parts(buf, batch):
            after = int(self._offset[rows - 1] if left else batch["last_offset"][0]) + 1
            if after > position:
                yield from self._show(buf, rows, position, stop, after, end)
            if after >= stop:
                break
        return 1, Fault.NONE

    def _walk_parts(self, buf: Bytes, batch: Batches) -> Iterator[tuple[int, int, Fault]]:
        """Walk a batch (an array of one), `slice_rows` records at a time, and yield for each part how
        many rows it has filled, how many records are left, and NONE. If the batch cannot be read,
        the fault comes in the last tuple, in place of the part that has it.
        """
        part, left, before = batch.copy(), int(batch["count"][0]), -1
        while left:
            count = min(left, self._slice_rows)
            left -= count
            part["count"] = count
            self._reserve(count)
            self._offset[0] = NO_STOP
            *_, fault = self._fill(buf, part)
            if self._offset[0] <= before:
                # the walk has compared it with the batch's first offset only
                fault = Fault.OFFSETS
            elif left:
                # a part must not end where the batch does; that it does not is a wrong count to the walk
                fault = Fault.NONE if fault == Fault.COUNT else fault or Fault.RECORD
            before = int(self._offset[count - 1])
            part["data_at"] = self._end[count - 1]
            yield count, left, fault
            if fault:
                return

    def _fill(self, buf: Bytes, batches: Batches) -> tuple[int, int, Fault]:
        """Walk batches for whose records there is room; see `walk` for what is returned."""
        plan = self.plan
        found: tuple[int, int, Fault] = walk(
            buf, batches, plan.names, plan.bounds, plan.slots, plan.key_slot, plan.value_slot,
            self._offset, self._timestamp, self._body, self._end, self._at, self._size,
        )  # fmt: skip
        return found

    def _show(self, buf: Bytes, rows: int, position: int, stop: int, next_offset: int, end: int) -> Iterator[Records]:
        """Yield those of the first `rows` rows that have position <= offset < stop, as one slice, or
        several (`_cut`). `next_offset`: where reading continues after these rows, unless that is
        beyond `stop`. `end`: as in `_records`.
        """
        offsets = self._offset[:rows]
        low, high = int(offsets.searchsorted(position)), int(offsets.searchsorted(stop))
        next_offset = min(next_offset, stop)
        for first, last in self._cut(low, high):
            yield self._records(buf, first, last, next_offset if last == high else int(offsets[last]), end)

    def _cut(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of the records low:high that make one slice each: one range, or several
        if their values are not JSON and their texts may need more than TEXT_BYTES. Each of several
        has at least one record. Without records the one range is empty.
        """
        first, filled = low, 0
        if self._extractor and high > low:
            rooms = self._extractor.find_room(self._size[self.plan.value_slot, low:high]).cumsum()
            while rooms[-1] - filled > TEXT_BYTES and high - first > 1:
                last = max(first + 1, low + int(rooms.searchsorted(filled + TEXT_BYTES, side="right")))
                yield first, last
                first, filled = last, int(rooms[last - low - 1])
        yield first, high

    def _records(self, buf: Bytes, low: int, high: int, next_offset: int, end: int = 0) -> Records:
        """Return the records low:high of those that were walked in `buf`, after the wanted paths of
        their values were searched. `end`: where the records' bytes end; the texts of values that
        are not JSON are written there.
        """
        rows = slice(low, high)
        slot = self.plan.value_slot
        if self._extractor and high > low:
            buf = self._arena.reserve(end, int(self._extractor.find_room(self._size[slot, rows]).sum()))
            self._extractor.extract(buf, self._at, self._size, slot, low, high, end)
        elif self.plan.paths.count and high > low:
            extract(buf, self._at, self._size, slot, self.plan.paths, low, high)
        return Records(
            buf,
            self._offset[rows],
            self._timestamp[rows],
            self._body[rows],
            self._end[rows],
            self._at[:, rows],
            self._size[:, rows],
            next_offset,
            self.plan,
        )

    def _reserve(self, rows: int) -> None:
        """Make room for so many rows. What they hold is lost."""
        self._used = max(self._used, rows)
        if rows > self._rows:
            self._make_room(rows)

    def _make_room(self, rows: int) -> None:
        """Replace the rows by so many empty ones."""
        # All are made before the first one is kept: kernels check no bounds, so after an
        # out-of-memory error the decoder must not count rows that it lacks.
        single = [np.empty(rows, np.int64) for _ in range(4)]
        by_field = [np.empty((self.plan.width, rows), np.int64) for _ in range(2)]
        self._offset, self._timestamp, self._body, self._end = single
        self._at, self._size = by_field
        self._rows = rows

    def _trim(self) -> None:
        """Give up arena and rows that were large for nothing. Call when a slice is not read any more."""
        self._arena.trim()
        if self._shrinking.is_due(self._rows, self._used):
            self._make_room(FIRST_ROWS)
        self._used = 0


def _malformed(batch: np.void, fault: Fault) -> Malformed:
    return Malformed(fault, int(batch["base_offset"]), int(batch["last_offset"]) + 1)


def _runs(faults: Ints, seen: Flags) -> Iterator[tuple[int, int]]:
    """Yield ranges (first, end) of batches, in order: neighbouring batches that can be decoded make
    one range, and each batch with a fault is a range of one. Batches that are hidden and have no
    fault are in none.
    """
    first = None
    for i, (fault, shown) in enumerate(zip(faults.tolist(), seen.tolist(), strict=True)):
        if shown and not fault:
            first = i if first is None else first
            continue
        if first is not None:
            yield first, i
            first = None
        if fault:
            yield i, i + 1
    if first is not None:
        yield first, faults.size
