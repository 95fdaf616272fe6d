"""What to read of a partition, and in which order: spans of offsets from the answers about its chunks.

A chunk that is NO is not read, unless reading it is cheaper than leaving it out. Leaving out means another fetch
request, which costs about FETCH_S whatever it brings; in that time a reader that goes on takes in BRIDGE bytes. So gaps
up to BRIDGE are read over, and whatever stands between two small gaps becomes one fetch. What a bridge brings is tested
like everything else: its residual holds the part that refused it.

Where skipping saves little, it gets out of the way. The saving of a plan is the time to read what it leaves out, less
the requests that its gaps cost. Below WORTH of the time to read everything, all of it is read in a row, as if there
were no index. Small gaps that add up to nothing cost that much at most: then the fetches ahead are never broken off for
them.

What has no header is read and tested in full: offsets before the first chunk, holes where a header could not be read,
and all that lies behind the last one.

Neighbouring spans whose residual differs may touch. They cost no request: the reader goes on and tests something else.
A run that is smaller than BRIDGE is not worth that either, and joins its neighbour with the residual of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from overlay.kernels import kernel

from .probes import Part
from .prune import NO, Answers, Chunks, Ints

FETCH_S = 1e-3
"""A fetch request on its own: measured at 1 to 1.5 ms between neighbours, and more where the network is longer."""
READ_BYTES_S = 150e6
"""Compressed bytes of log a second that one reader fetches, decodes and tests."""
BRIDGE = int(FETCH_S * READ_BYTES_S)
"""Bytes that are read in the time of a request."""
WORTH = 0.05
"""The least part of the whole time that skipping has to save."""
SPAN_BYTES = 64 << 20
"""Where chunks are skipped, spans end here at the latest, so that several can be under way and progress can be seen."""
OPEN_END = (1 << 63) - 1
"""next_offset of a span that ends with the log."""


@dataclass(frozen=True, slots=True)
class Span:
    """first_offset <= offset < next_offset, and the parts of the conditions that its records have to be tested for."""

    first_offset: int
    next_offset: int
    residual: Part


class Saving(NamedTuple):
    """What a route reads of the chunks within its bounds, and what it leaves out; chunks without a header have no bytes."""

    read_chunks: int
    read_bytes: int
    skipped_chunks: int
    skipped_bytes: int
    gaps: int


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """The spans of a partition that have to be read, in order and without overlap. Make it anew when chunks were added."""

    first_offset: Ints
    next_offset: Ints
    residual: npt.NDArray[np.uint8]
    saving: Saving
    skips: bool
    """False where everything is read, because leaving out saves nothing or too little."""

    def next(self, position: int) -> Span | None:
        """What to read next from `position` on: the rest of the span that holds it, else the next span; None at the end."""
        at = int(np.searchsorted(self.next_offset, position, side="right"))
        if at == self.next_offset.size:
            return None
        first = max(position, int(self.first_offset[at]))
        return Span(first, int(self.next_offset[at]), Part(int(self.residual[at])))

    def __iter__(self) -> Iterator[Span]:
        for first, after, residual in zip(self.first_offset, self.next_offset, self.residual, strict=True):
            yield Span(int(first), int(after), Part(int(residual)))

    def next_needed(self, offset: int) -> int:
        """The first offset from `offset` on that has to be read; OPEN_END when there is none."""
        span = self.next(offset)
        return OPEN_END if span is None else span.first_offset


def plan(answers: Answers, chunks: Chunks, start: int = 0, stop: int = OPEN_END, *, exactly: bool = False) -> Route:
    """The route from `start` to `stop` (exclusive) through a partition. `answers` are those about `chunks`, all of them.

    `exactly`: no chunk that is NO is read, whatever that costs.
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
    # copies: the rest of the room that spans could have needed goes
    return Route(spans[0, :count].copy(), spans[1, :count].copy(), spans[2, :count].astype(np.uint8), saving, skips)


def weigh(chunks: Chunks, first: Ints, after: Ints) -> Ints:
    """Bytes of the chunks that hold some offsets, first[i] <= offset < after[i]; -1 where some of these have no header.

    Neither falls from one i to the next.
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
def _find_runs(first, after, bytes, levels, residual, start, stop, asked):  # type: ignore[no-untyped-def]
    """Cut start..stop into runs of chunks that are alike, and of offsets that have no chunk.

    Rows of first offset, next offset, bytes, whether it is to be read, and chunks; and the residuals.
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
def _join(runs, residual, bridge, small, most):  # type: ignore[no-untyped-def]
    """Runs to spans: (how many, rows of first offset, next offset and residual, the figures of Saving)."""
    size = residual.size
    spans = np.empty((3, size), np.int64)
    weights = np.zeros(size, np.int64)
    figures = np.zeros(5, np.int64)
    count = 0
    gap = 0  # runs right before this one that are not to be read
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
def _append(spans, weights, count, first, after, bytes, residual, small, most):  # type: ignore[no-untyped-def]
    """Another run that is read: a part of the last span if it touches that and neither is tested for much more."""
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
