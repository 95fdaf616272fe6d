"""The last record of each subject, and the last records of all, with as little of a log read as its chunk headers allow.

Headers name subjects and not offsets, so the chunk that holds the last record of a subject has to be read, and no chunk
behind it need be. `LastPerSubject` says what to read, newest first, and is told what was found there:

- a chunk that counts its subjects is read if it names one that was not found in anything newer
- a chunk that counts none is read unless its Bloom filter refuses what is wanted: patterns with wildcards may match
  subjects that nothing else names; wanted subjects that are given in full are looked for until they are found
- what has no header is read. Subjects that are given in full end that early, so it is cut into pieces, each twice as
  long as the one that is newer

Wildcards over chunks without counts have no end before the log's start. A filter says of a subject that is named that it is not
there, but names none itself; that its bits are all those of subjects found already makes another one unlikely and not
impossible, and its last message would be lost. Only counts (MAX_SUBJECTS, index/skip/chunk_header.py) can stop such a search.

What a header names may be gone (retention, compaction), or not pass whatever else is asked of it. So a subject counts as
found when a record of it was: nothing rests on a header but which chunks hold no record of it. Where a header must be right
its chunk is taken to have what it names while a round is planned, and so no older one is read in vain beside it.

Rounds: the spans of one are fetched in any order, or at once. Their bytes are bounded; the next round knows what was
found in this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from overlay.index.ledger.ledger import Ledger
from overlay.index.skip.chunks import Chunks
from overlay.index.skip.expressions import MOST_TERMS
from overlay.index.skip.plan import BRIDGE, Span
from overlay.index.skip.probes import Part
from overlay.index.skip.prune import Flags, Ints, might_match
from overlay.index.skip.terms import pattern_terms
from overlay.kafka.log_position import TopicPartition
from overlay.kernels import kernel
from overlay.subject import Pattern

from .counts import Choice
from .estimate import Teller

ROUND_BYTES = 8 << 20
"""A round ends with the chunk that makes it as large; the first ones are often enough."""
NEWEST = 20_000
"""Offsets of the newest piece of what has no header."""
UNKNOWN_BYTES = 200
"""An offset of a log of which nothing is known."""

_NAMED, _ANYTHING, _LITERALS = range(3)
"""What a segment may hold: the subjects that are listed for it, any, any that is given in full."""


class Piece(NamedTuple):
    """first_offset <= offset < next_offset, to be read; `bytes` of the log, about."""

    first_offset: int
    next_offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Segments:
    """Chunks and pieces without a header, in the order of offsets, [n]; those that cannot matter are left out."""

    first: Ints
    after: Ints
    begin_at: Ints
    """Bytes of the log below it, and up to its end."""
    end_at: Ints
    holds: npt.NDArray[np.uint8]
    sure: Flags
    """What is listed is there."""
    starts: Ints
    """Where the subjects of each begin in `codes`, [n + 1]."""
    codes: npt.NDArray[np.int32]


class LastPerSubject:
    """The search in one partition, first <= offset < end. `may_hold`: chunks that matter at all; all where it is left out.

    Use:  while pieces := search.next(): read them, search.take(subject and offset of what passes there)
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
        """By subject the offset of the last record that was found."""
        return self._offsets

    @property
    def offsets(self) -> Ints:
        """Of the last records found, ascending."""
        return np.sort(np.fromiter(self._offsets.values(), np.int64, len(self._offsets)))

    def take(self, found: Iterable[tuple[str, int]]) -> None:
        """Subjects and offsets of records that were found, in any order; only the last of each matters."""
        for subject, offset in found:
            if offset > self._offsets.get(subject, -1):
                self._offsets[subject] = offset
                if (code := self._codes.get(subject)) is not None:
                    self._last[code] = offset

    def next(self, most: int = ROUND_BYTES) -> tuple[Piece, ...]:
        """What to read in the next round, newest first; nothing when every subject is found. `most`: bytes, about."""
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

    def _list_named(
        self, chunks: Chunks, patterns: Sequence[Pattern], low: int, high: int
    ) -> tuple[Ints, npt.NDArray[np.int32]]:
        """The subjects that each chunk may hold as far as they are known by name: by counts, or by Bloom filters."""
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


def merge_lasts(found: Mapping[TopicPartition, Mapping[str, int]], ledger: Ledger) -> dict[TopicPartition, Ints]:
    """Return of each partition the offsets, ascending, that are the last of their subjects in all partitions.

    `found`: of each partition the last offset by subject. The last one is that with the highest sequence. A record whose
    sequence is lost (index/ledger/ledger.py) counts as coming right before the next one of its partition.
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
    """An offset from which up to `end` there are at least `count` records of these subjects, by exact counts; `first` for none.

    It is where a chunk begins, and as high as headers can tell.
    """
    low = int(np.searchsorted(chunks.first_offset, first))
    high = max(int(np.searchsorted(chunks.next_offset, end, side="right")), low)
    counts, known = Teller(patterns).count(chunks, low, high)
    sums = np.cumsum(np.where(known & chunks.exact[low:high], counts, 0)[::-1])
    enough = int(np.searchsorted(sums, max(count, 1)))
    return int(chunks.first_offset[high - 1 - enough]) if enough < sums.size else first


def find_since(chunks: Chunks, since: int, first: int, end: int) -> Iterator[Span]:
    """Where the first record with timestamp >= since (ms) may be, of first <= offset < end, oldest first.

    The first such record that is found in them is the one, and nothing behind it need be read; where there is none in
    them, there is none at all. What has no header, and chunks with a record without a timestamp, are among them.
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
    """Bytes of the log below some offsets, as the chunks low <= row < high tell; what has no header is taken to be as large."""
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
    """Pieces of what no chunk covers, the longer the older."""
    lows, highs = np.append(first, ends), np.append(begins, end)
    for hole in np.flatnonzero(lows < highs).tolist():
        low, high, size = int(lows[hole]), int(highs[hole]), NEWEST
        while low < high:
            yield max(low, high - size), high
            high, size = high - size, size * 2


def _join(parts: _Segments, rows: Ints) -> Iterator[Piece]:
    """Segments, newest first, as pieces: over what lies between two of them where a request would cost more."""
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
def _choose(first, bytes, holds, sure, starts, codes, is_read, last, literals, most, chosen):  # type: ignore[no-untyped-def]
    """Unread segments that may hold a later record than is known of some subject, newest first: how many."""
    expected = np.zeros(last.size, np.bool_)  # what a chunk of this round is sure to have
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
        if sure[row]:
            for i in range(starts[row], starts[row + 1]):
                expected[codes[i]] = True
        chosen[count] = row
        count += 1
        used += bytes[row]
        if used >= most:
            break
    return count
