"""What to read of a partition, and in which order: ranges of offsets, from the answers about its
chunks.

A chunk that is NO is not read, unless reading it is cheaper than skipping it. Skipping means
another fetch request, which costs about FETCH_S whatever it brings. In that time a reader that
reads on takes in BRIDGE bytes. So gaps up to BRIDGE are read, and chunks with only small gaps
between them become one fetch. The records of such a gap are tested like all others: its residual
has the part that refused it.

If skipping saves little, everything is read. The saving of a plan is the time to read what it
leaves out, minus the requests that its gaps cost. Below WORTH of the time to read everything, all
of it is read in a row, as if there were no index. So small gaps that add up to nothing cost at most
that much, and do not interrupt the fetches ahead.

Offsets without a header are read and tested in full: before the first chunk, in holes where a
header or a batch of the log could not be read, and after the last chunk.

Neighbouring spans with different residuals may touch. They cost no request: the reader reads on and
tests other parts. A run smaller than BRIDGE is not worth that, and joins its neighbour with the
residuals of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from overlay.arrays import Bytes, Int, Ints
from overlay.kernels import kernel

from .probes import Part
from .prune import NO, Answers, Chunks, Levels

FETCH_S = 1e-3
"""Seconds for a single fetch request: measured at 1 to 1.5 ms in the same network, and more over
longer distances.
"""
READ_BYTES_S = 150e6
"""Compressed bytes of log per second that one reader fetches, decodes and tests."""
BRIDGE = int(FETCH_S * READ_BYTES_S)
"""Bytes that are read in the time of a request."""
WORTH = 0.05
"""The least share of the whole time that skipping has to save."""
SPAN_BYTES = 64 << 20
"""Largest span if chunks are skipped, so that several fetches can be in flight and progress is
visible.
"""
OPEN_END = (1 << 63) - 1
"""next_offset of a span that ends with the log."""


@dataclass(frozen=True, slots=True)
class Span:
    """A range to read, first_offset <= offset < next_offset, with the parts of the conditions to
    test its records for.
    """

    first_offset: int
    next_offset: int
    residual: Part


class Saving(NamedTuple):
    """How many chunks, and bytes of them, a route reads and skips within its bounds, and how often
    reading is interrupted (`gaps`). Ranges without a header count no bytes.
    """

    read_chunks: int
    read_bytes: int
    skipped_chunks: int
    skipped_bytes: int
    gaps: int


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """The ranges of a partition to read, in order and without overlap. It does not follow the
    index: make a new one when chunks were added. `residual`: by range, the parts of the conditions
    that its records still have to be tested for (bits of Part).
    """

    first_offset: Ints
    next_offset: Ints
    residual: Bytes
    saving: Saving
    skips: bool
    """False if everything is read, because skipping saves nothing or too little."""

    def next(self, position: int) -> Span | None:
        """Return what to read next from offset `position` on: the rest of the span that holds it,
        else the next span; None if nothing is left to read.
        """
        at = int(np.searchsorted(self.next_offset, position, side="right"))
        if at == self.next_offset.size:
            return None
        first = max(position, int(self.first_offset[at]))
        return Span(first, int(self.next_offset[at]), Part(int(self.residual[at])))

    def __iter__(self) -> Iterator[Span]:
        for first, after, residual in zip(self.first_offset, self.next_offset, self.residual, strict=True):
            yield Span(int(first), int(after), Part(int(residual)))

    def next_needed(self, offset: int) -> int:
        """Return the first offset from `offset` on to be read; OPEN_END if there is none."""
        span = self.next(offset)
        return OPEN_END if span is None else span.first_offset


def plan(answers: Answers, chunks: Chunks, start: int = 0, stop: int = OPEN_END, *, exactly: bool = False) -> Route:
    """Return which ranges to read from offset `start` to `stop` (exclusive) of a partition.
    `answers`: those of all `chunks` about the reader's conditions. Everything is read if skipping
    saves too little.

    `exactly`: read no chunk that is NO, whatever that costs.
    """
    low = int(np.searchsorted(chunks.next_offset, start, side="right"))
    high = max(int(np.searchsorted(chunks.first_offset, stop, side="left")), low)
    part = slice(low, high)
    runs, residual = _find_runs(
        chunks.first_offset[part],
        chunks.next_offset[part],
        chunks.bytes[part],
        answers.levels[part],
        answers.residual[part],
        start,
        stop,
        np.uint8(answers.asked),
    )
    count, spans, figures = _join(runs, residual, -1 if exactly else BRIDGE, BRIDGE, SPAN_BYTES)
    saving = Saving(*figures.tolist())
    saved = saving.skipped_bytes / READ_BYTES_S - saving.gaps * FETCH_S
    skips = exactly or saved > WORTH * (saving.read_bytes + saving.skipped_bytes) / READ_BYTES_S
    if not skips:
        count, spans, figures = _join(runs, residual, OPEN_END, BRIDGE, OPEN_END)
        saving = Saving(*figures.tolist())
    # copies, so that the memory for the unused spans is freed
    return Route(spans[0, :count].copy(), spans[1, :count].copy(), spans[2, :count].astype(np.uint8), saving, skips)


def weigh(chunks: Chunks, first: Ints, after: Ints) -> Ints:
    """Return for each range first[i] <= offset < after[i] the bytes in the log of the chunks that
    it touches, whole; -1 if these have fewer offsets than the range, so that headers are missing.

    `first` and `after` must not fall from one i to the next.
    """
    low = np.searchsorted(chunks.next_offset, first, side="right")
    high = np.searchsorted(chunks.first_offset, after, side="left")
    part = slice(int(low.min(initial=len(chunks))), int(high.max(initial=0)))
    offsets = chunks.next_offset[part] - chunks.first_offset[part]
    sums = np.zeros((2, offsets.size + 1), np.int64)
    np.cumsum([chunks.bytes[part], offsets], axis=1, out=sums[:, 1:])
    bytes, covered = sums[:, np.maximum(high, low) - part.start] - sums[:, low - part.start]
    weighed: Ints = np.where(covered >= after - first, bytes, -1)
    return weighed


@kernel
def _find_runs(
    first: Ints, after: Ints, bytes: Ints, levels: Levels, residual: Bytes, start: int, stop: int, asked: np.uint8
) -> tuple[Ints, Bytes]:
    """Cut start..stop into runs of neighbouring chunks that have the same residual, are all NO or
    all not, and have at most SPAN_BYTES together; and of offsets without a chunk. `asked`: the
    residual of the latter.

    Return an array with the rows first offset, next offset, bytes, whether the run is to be read,
    and number of chunks; and the residuals of the runs.
    """
    room = 2 * first.size + 2
    runs = np.empty((5, room), np.int64)
    full = np.empty(room, np.uint8)
    count = 0
    position = start
    for i in range(first.size + 1):
        begin = min(first[i], stop) if i < first.size else stop
        if begin > position:
            runs[0, count], runs[1, count], runs[2, count], runs[3, count], runs[4, count] = position, begin, 0, 1, 0
            full[count] = asked
            count += 1
            position = begin
        if i == first.size or position >= stop:
            break
        end = min(after[i], stop)
        is_read = levels[i] != NO
        if (
            count > 0
            and runs[4, count - 1] > 0
            and runs[3, count - 1] == is_read
            and full[count - 1] == residual[i]
            and runs[2, count - 1] + bytes[i] <= SPAN_BYTES
        ):
            runs[1, count - 1] = end
            runs[2, count - 1] += bytes[i]
            runs[4, count - 1] += 1
        else:
            runs[0, count], runs[1, count], runs[2, count] = position, end, bytes[i]
            runs[3, count], runs[4, count] = is_read, 1
            full[count] = residual[i]
            count += 1
        position = end
    return runs[:, :count], full[:count]


@kernel
def _join(runs: Ints, residual: Bytes, bridge: int, small: int, most: int) -> tuple[int, Ints, Ints]:
    """Make spans of the runs that are to be read. `runs`, `residual`: as `_find_runs` returns them.
    Gaps (runs not to be read) of up to `bridge` bytes between two spans are read too; a run of up
    to `small` bytes may get a neighbour's residual; no span gets more than `most` bytes by joining.

    Return how many spans there are; an array with the rows first offset, next offset and residual;
    and the numbers of Saving.
    """
    size = residual.size
    spans = np.empty((3, size), np.int64)
    weights = np.zeros(size, np.int64)
    figures = np.zeros(5, np.int64)
    count = 0
    gap = 0  # skipped runs right before this one
    gap_bytes = 0
    for i in range(size):
        if not runs[3, i]:
            gap += 1
            gap_bytes += runs[2, i]
            continue
        begin = i
        if gap and count and gap_bytes <= bridge:
            begin = i - gap
        elif gap:
            figures[2] += runs[4, i - gap : i].sum()
            figures[3] += gap_bytes
            figures[4] += count > 0
        for j in range(begin, i + 1):
            figures[0] += runs[4, j]
            figures[1] += runs[2, j]
            count = _append(
                spans, weights, count, runs[0, j], runs[1, j], runs[2, j], np.int64(residual[j]), small, most
            )
        gap = 0
        gap_bytes = 0
    figures[2] += runs[4, size - gap : size].sum()
    figures[3] += gap_bytes
    return count, spans, figures


@kernel
def _append(
    spans: Ints, weights: Ints, count: int, first: int, after: int, bytes: int, residual: Int, small: int, most: int
) -> int:
    """Add a run to the last span, or else as a new span, and return how many spans there are.
    `weights`: the bytes of each span. The run joins the last span if they touch, have at most
    `most` bytes together, and each of the two has at most `small` bytes or gets nothing more to be
    tested for by that. The joined span has the residuals of both.
    """
    if count and spans[1, count - 1] == first and weights[count - 1] + bytes <= most:
        last = spans[2, count - 1]
        both = last | residual
        if (both == last or weights[count - 1] <= small) and (both == residual or bytes <= small):
            spans[1, count - 1] = after
            spans[2, count - 1] = both
            weights[count - 1] += bytes
            return count
    spans[0, count], spans[1, count], spans[2, count] = first, after, residual
    weights[count] = bytes
    return count + 1
