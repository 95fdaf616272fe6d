"""The last record of each subject, and the last records of all, reading as little of a log as its
chunk headers allow.

Headers name subjects but not offsets. So the chunk with the last record of a subject has to be
read, and no later chunk does for that subject. `LastPerSubject` says what to read, newest first,
and is told what was found:

- A chunk that counts its subjects is read if it names one that was not found in anything newer.
- A chunk without counts is read unless its Bloom filter rules out the wanted subjects. Patterns
  with wildcards may match subjects that no header names; wanted literal subjects are searched until
  they are found.
- Offsets without a header are read. A search for literal subjects alone ends early, so these
  offsets are cut into pieces, each twice as long as the next newer one.

Wildcards over chunks without counts are searched down to the log start. A Bloom filter can say that
a given subject is absent, but cannot list subjects. If all its bits are those of subjects found
already, another subject is unlikely but possible, and its last message would be lost. Only counts
(MAX_SUBJECTS, index/skip/chunk_header.py) can end such a search.

A record that a header counted may be gone (retention, compaction), or may fail the other
conditions. So a subject counts as found only when a record of it was found. Headers are only
trusted to say which chunks have no record of it. Within one step, a chunk whose header must be
right is assumed to have what it names, so that no older chunk is read in vain beside it.

Each call of `next` gives the pieces of one step. They may be fetched in any order, or at once, and
their bytes are bounded. The next step uses what this one found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from overlay.arrays import Bytes, Flags, Int32s, Ints
from overlay.index.ledger.ledger import Ledger
from overlay.index.skip.chunks import Chunks
from overlay.index.skip.expressions import MOST_TERMS
from overlay.index.skip.plan import BRIDGE, Span
from overlay.index.skip.probes import Part
from overlay.index.skip.prune import might_match
from overlay.index.skip.terms import pattern_terms
from overlay.kafka.log_position import TopicPartition
from overlay.kernels import kernel
from overlay.subject import Pattern

from .counts import Choice
from .estimate import Teller

ROUND_BYTES = 8 << 20
"""A step ends with the chunk that brings it to this size; the first steps are often enough."""
NEWEST = 20_000
"""Offsets of the newest piece of a range without a header."""
UNKNOWN_BYTES = 200
"""Assumed bytes per offset of a log without any header."""

_NAMED, _ANYTHING, _LITERALS = range(3)
"""What a segment may hold: the subjects listed for it, any subject, any wanted literal subject."""


class Piece(NamedTuple):
    """A range to read, first_offset <= offset < next_offset. `bytes`: its approximate compressed
    size in the log.
    """

    first_offset: int
    next_offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Segments:
    """The parts of a partition that may have to be read, as columns in offset order, [n]: chunks
    that may have a wanted subject, and pieces of ranges without a header. `holds`: _NAMED,
    _ANYTHING or _LITERALS, by segment.
    """

    first: Ints
    after: Ints
    begin_at: Ints
    """Approximate bytes of the log below its start."""
    end_at: Ints
    """Approximate bytes of the log below its end."""
    holds: Bytes
    sure: Flags
    """Whether the listed subjects are certainly there."""
    starts: Ints
    """Where the subjects of each segment begin in `codes`, [n + 1]."""
    codes: Int32s


class LastPerSubject:
    """A search for the last record of each subject that matches `patterns`, in one partition, first
    <= offset < end. It does not read: it says what to read, newest first. `may_hold`: a flag per
    chunk, False for chunks to leave out; None for all chunks.

    Use: while pieces := search.next(): read them, search.take(subject and offset of matching
    records)
    """

    def __init__(
        self, chunks: Chunks, patterns: Sequence[Pattern], first: int, end: int, may_hold: Flags | None = None
    ) -> None:
        self._offsets: dict[str, int] = {}
        self._codes: dict[str, int] = {pattern.text: i for i, pattern in enumerate(_list_literals(patterns))}
        self._literals = len(self._codes)
        self._segments = self._find_segments(chunks, patterns, first, end, may_hold)
        self._is_read = np.zeros(self._segments.first.size, np.bool_)
        self._last = np.full(max(len(self._codes), 1), -1, np.int64)

    @property
    def found(self) -> dict[str, int]:
        """Return by subject the highest offset that was passed to `take`."""
        return self._offsets

    @property
    def offsets(self) -> Ints:
        """Return the values of `found`, ascending."""
        return np.sort(np.fromiter(self._offsets.values(), np.int64, len(self._offsets)))

    def take(self, found: Iterable[tuple[str, int]]) -> None:
        """Record subjects and offsets of matching records that were found, in any order. Of each
        subject only the highest offset is kept.
        """
        for subject, offset in found:
            if offset > self._offsets.get(subject, -1):
                self._offsets[subject] = offset
                if (code := self._codes.get(subject)) is not None:
                    self._last[code] = offset

    def next(self, most: int = ROUND_BYTES) -> tuple[Piece, ...]:
        """Return the ranges to read next, newest first, and count them as read. Empty if the search
        is over: no range is left that may have a later record of a subject. The ranges may include
        small gaps that need not be read. `most`: approximate bytes at which the list ends; the last
        range may exceed them.
        """
        parts = self._segments
        chosen = np.empty(parts.first.size, np.int64)
        count = _choose(
            parts.first, parts.end_at - parts.begin_at, parts.holds, parts.sure, parts.starts, parts.codes,
            self._is_read, self._last, self._literals, most, chosen,
        )  # fmt: skip
        rows = chosen[:count]
        self._is_read[rows] = True
        return tuple(_join(parts, rows))

    def _find_segments(
        self, chunks: Chunks, patterns: Sequence[Pattern], first: int, end: int, may_hold: Flags | None
    ) -> _Segments:
        low = int(np.searchsorted(chunks.next_offset, first, side="right"))
        high = max(int(np.searchsorted(chunks.first_offset, end)), low)
        part = slice(low, high)
        starts, codes = self._list_named(chunks, patterns, low, high)
        counted = chunks.counted[part]
        uncounted = np.zeros(len(chunks), np.bool_)
        uncounted[part] = ~counted & ~(chunks.current & (chunks.addressed == 0))[part]
        wild = [pattern for pattern in patterns if not pattern.is_literal]
        holds = np.where(might_match(chunks, wild, uncounted)[part] & bool(wild), _ANYTHING, _NAMED).astype(np.uint8)
        if self._literals > MOST_TERMS:
            holds[~counted & (holds == _NAMED)] = _LITERALS
        begins, ends = np.maximum(chunks.first_offset[part], first), np.minimum(chunks.next_offset[part], end)
        is_whole = (begins == chunks.first_offset[part]) & (ends == chunks.next_offset[part])
        kept = ((holds != _NAMED) | (np.diff(starts) > 0)) & (begins < ends)
        if may_hold is not None:
            kept &= may_hold[part]
        pieces = np.array(list(_cut_holes(begins, ends, first, end)), np.int64).reshape(-1, 2)
        bounds = np.concatenate((np.column_stack((begins, ends))[kept], pieces))
        order = np.argsort(bounds[:, 0], kind="stable")
        bounds, none = bounds[order], np.zeros(len(pieces), np.int64)
        sizes = np.concatenate((np.diff(starts)[kept], none))[order]
        is_literal = self._literals > 0 and all(pattern.is_literal for pattern in patterns)
        places = _weigh(chunks, low, high, bounds)
        return _Segments(
            bounds[:, 0].copy(),
            bounds[:, 1].copy(),
            places[:, 0].copy(),
            places[:, 1].copy(),
            np.concatenate((holds[kept], none + (_LITERALS if is_literal else _ANYTHING)))[order].astype(np.uint8),
            np.concatenate(((counted & is_whole & chunks.exact[part])[kept], none))[order].astype(np.bool_),
            np.concatenate(([0], np.cumsum(sizes))),
            codes[np.repeat(kept, np.diff(starts))],
        )

    def _list_named(self, chunks: Chunks, patterns: Sequence[Pattern], low: int, high: int) -> tuple[Ints, Int32s]:
        """Return the wanted subjects that counts name, and the wanted literal ones (MOST_TERMS at
        most) that Bloom filters do not rule out, for the chunks low <= row < high: bounds [rows +
        1], and the subjects' codes of all chunks end to end. Subjects that are new get a code in
        `_codes`.
        """
        starts, numbers, subjects = chunks.list_subjects(Choice(patterns), low, high)
        known = np.unique(numbers)
        table = np.zeros(int(known.max(initial=0)) + 1, np.int32)
        for number in known.tolist():
            table[number] = self._codes.setdefault(subjects[number], len(self._codes))
        rows = np.repeat(np.arange(high - low), np.diff(starts))
        named = [(rows, table[numbers])]
        if 0 < self._literals <= MOST_TERMS:
            among = np.zeros(len(chunks), np.bool_)
            among[low:high] = ~chunks.counted[low:high]
            for code, pattern in enumerate(_list_literals(patterns)):
                found = np.flatnonzero(chunks.might_contain(pattern_terms(pattern), among)[low:high])
                named.append((found, np.full(found.size, code, np.int32)))
        rows, codes = (np.concatenate(each) for each in zip(*named, strict=True))
        order = np.argsort(rows, kind="stable")
        return np.searchsorted(rows[order], np.arange(high - low + 1)), codes[order]


def find_lows(positions: Mapping[TopicPartition, int], ledger: Ledger) -> dict[TopicPartition, int]:
    """Return for each partition the offset from which on it has to be searched. `positions`: the
    consumer's next offset in each partition.

    The consumer's next sequence is the lowest one at its positions. A partition is searched from
    its first offset with this sequence or a higher one, but not from beyond the position.
    """
    place = min(ledger.sequence_from(source, position) for source, position in positions.items())
    lows = ledger.positions_at(place)
    return {source: min(position, lows.get(source, position)) for source, position in positions.items()}


def merge_lasts(found: Mapping[TopicPartition, Mapping[str, int]], ledger: Ledger) -> dict[TopicPartition, Ints]:
    """Return for each partition the offsets, ascending, that are the last of their subjects in all
    partitions.

    `found`: for each partition the last offset by subject. The last one is that with the highest
    sequence. A record without one (index/ledger/ledger.py) counts as having the sequence before
    that of the next record of its partition, or the ledger's last one if there is none. Of equal
    ones, that of the partition later by topic and number counts as the last.
    """
    best: dict[str, tuple[int, TopicPartition, int]] = {}
    for source, lasts in sorted(found.items()):
        offsets = np.fromiter(lasts.values(), np.int64, len(lasts))
        order = np.argsort(offsets)
        sequences = np.empty_like(offsets)
        sequences[order] = ledger.sequence_of(source, offsets[order])
        for subject, offset, sequence in zip(lasts, offsets.tolist(), sequences.tolist(), strict=True):
            place = (sequence or ledger.sequence_from(source, offset) - 1, source, offset)
            if subject not in best or best[subject] < place:
                best[subject] = place
    kept: dict[TopicPartition, list[int]] = {source: [] for source in found}
    for _, source, offset in best.values():
        kept[source].append(offset)
    return {source: np.sort(np.array(offsets, np.int64)) for source, offsets in kept.items()}


def find_tail(chunks: Chunks, patterns: Sequence[Pattern], first: int, end: int, count: int) -> int:
    """Return the highest first offset of a chunk such that, by exact counts, at least `count`
    records with these subjects are between it and `end`. Return `first` if headers cannot tell this
    for any chunk.
    """
    low = int(np.searchsorted(chunks.first_offset, first))
    high = max(int(np.searchsorted(chunks.next_offset, end, side="right")), low)
    counts, known = Teller(patterns).count(chunks, low, high)
    sums = np.cumsum(np.where(known & chunks.exact[low:high], counts, 0)[::-1])
    enough = int(np.searchsorted(sums, max(count, 1)))
    return int(chunks.first_offset[high - 1 - enough]) if enough < sums.size else first


def find_since(chunks: Chunks, since: int, first: int, end: int) -> Iterator[Span]:
    """Yield the ranges within first <= offset < end that may hold the first record with timestamp
    >= since (ms), oldest first.

    The first such record found in them is the result, and later ranges need not be read. If they
    have none, there is none. Ranges without a header, and chunks whose times are unknown, are
    included.
    """
    early = (chunks.max_time < since) & (chunks.max_time >= 0)
    lows = np.maximum(np.append(first, chunks.next_offset[early]), first)
    highs = np.minimum(np.append(chunks.first_offset[early], end), end)
    for low, high in zip(lows.tolist(), highs.tolist(), strict=True):
        if low < high:
            yield Span(low, high, Part.WINDOW)


def _list_literals(patterns: Sequence[Pattern]) -> list[Pattern]:
    return [pattern for pattern in dict.fromkeys(patterns) if pattern.is_literal]


def _weigh(chunks: Chunks, low: int, high: int, bounds: Ints) -> Ints:
    """Return for each offset in `bounds` the approximate bytes of the log below it, by the chunks
    low <= row < high. Only differences mean something: the first chunk's beginning counts as 0.
    Ranges without a header count like the average; UNKNOWN_BYTES per offset if there is no such
    chunk.
    """
    first, after, bytes = chunks.first_offset[low:high], chunks.next_offset[low:high], chunks.bytes[low:high]
    if not first.size:
        return bounds * UNKNOWN_BYTES
    each = float(bytes.sum() / (after - first).sum())
    corners, steps = np.column_stack((first, after)).ravel(), np.zeros(2 * first.size)
    steps[1::2] = bytes
    steps[2::2] = (first[1:] - after[:-1]) * each
    outside = np.minimum(bounds - corners[0], 0) + np.maximum(bounds - corners[-1], 0)
    weighed: Ints = (np.interp(bounds, corners, np.cumsum(steps)) + outside * each).astype(np.int64)
    return weighed


def _cut_holes(begins: Ints, ends: Ints, first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield (first offset, next offset) of pieces of the ranges within first..end that no chunk
    covers: ranges in offset order, the pieces of each newest first. The newest piece of a range has
    NEWEST offsets, each older one twice as many, the oldest what is left. `begins`, `ends`: of the
    chunks.
    """
    lows, highs = np.append(first, ends), np.append(begins, end)
    for hole in np.flatnonzero(lows < highs).tolist():
        low, high, size = int(lows[hole]), int(highs[hole]), NEWEST
        while low < high:
            yield max(low, high - size), high
            high, size = high - size, size * 2


def _join(parts: _Segments, rows: Ints) -> Iterator[Piece]:
    """Yield segments as pieces to read. `rows`: numbers of the segments, newest first. Two segments
    become one piece if they touch, or if the gap between them is so small (BRIDGE bytes) that a
    request of its own would cost more.
    """
    first = after = begin = end = -1
    for row in rows.tolist():
        if first >= 0 and (parts.after[row] == first or begin - parts.end_at[row] <= BRIDGE):
            first, begin = int(parts.first[row]), int(parts.begin_at[row])
            continue
        if first >= 0:
            yield Piece(first, after, end - begin)
        first, after = int(parts.first[row]), int(parts.after[row])
        begin, end = int(parts.begin_at[row]), int(parts.end_at[row])
    if first >= 0:
        yield Piece(first, after, end - begin)


@kernel
def _choose(
    first: Ints, bytes: Ints, holds: Bytes, sure: Flags, starts: Ints, codes: Int32s, is_read: Flags, last: Ints,
    literals: int, most: int, chosen: Ints,
) -> int:  # fmt: skip
    """Write to `chosen` the numbers of unread segments, newest first, that may hold a later record
    of some subject than is known. Listed subjects that are surely in a newer segment of this step
    do not count. Stop after the segment with which they have `most` bytes. Return how many.

    `last`: the highest offset found, by subject code. `literals`: how many codes are of literal
    patterns.
    """
    expected = np.zeros(last.size, np.bool_)  # certainly in a segment of this step
    count = 0
    used = 0
    for row in range(first.size - 1, -1, -1):
        if is_read[row]:
            continue
        wanted = holds[row] == _ANYTHING
        if holds[row] == _LITERALS:
            for code in range(literals):
                wanted |= last[code] < first[row] and not expected[code]
        for i in range(starts[row], starts[row + 1]):
            wanted |= last[codes[i]] < first[row] and not expected[codes[i]]
        if not wanted:
            continue
        # subjects that are certainly here need no older segment in this step
        if sure[row]:
            for i in range(starts[row], starts[row + 1]):
                expected[codes[i]] = True
        chosen[count] = row
        count += 1
        used += bytes[row]
        if used >= most:
            break
    return count
