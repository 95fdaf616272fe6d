"""Counts of records by subject, for many chunks: how many records of each chunk have a matching
subject.

Subjects repeat from chunk to chunk, so each is kept once and chunks hold its number. Beyond LIMIT
distinct subjects, or the bytes of subjects that a dictionary stores, chunks are kept without their
counts, and readers treat them as unknown. So memory is bounded for any topic.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from overlay.arrays import Bytes, Flags, Ints, UInt16s, UInt32s
from overlay.index.skip.encode import COUNTS_AT, TEXTS_AT, Block
from overlay.kernels import kernel
from overlay.ragged import Ragged
from overlay.subject import Matcher, Pattern, SubjectRule
from overlay.subject.dictionary import Dictionary

LIMIT = 1 << 16


class Choice:
    """Flags for a list of subjects that grows: whether each matches any of `patterns`. The caller
    keeps the list and passes all of it to `learn`, which matches only the new ones.
    """

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._matcher = Matcher([(pattern, 0) for pattern in patterns])
        self._flags: Flags = np.empty(0, np.bool_)

    def learn(self, subjects: Sequence[str]) -> Flags:
        """Return a flag for each subject: whether it matches. `subjects` must begin with those of
        the previous call; only the new ones are matched.
        """
        if len(subjects) > self._flags.size:
            fresh = subjects[self._flags.size :]
            found = np.fromiter((bool(self._matcher.match(subject)) for subject in fresh), np.bool_, len(fresh))
            self._flags = np.concatenate((self._flags, found))
        return self._flags


class Counts:
    """Counts of records by subject, for many chunks: a row per chunk. If the counts of a chunk are
    unknown, its row is empty; `add` returns a flag per row, True for known counts.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = min(limit, LIMIT)  # codes are uint16
        self._subjects = Dictionary(SubjectRule.from_key(), "", 0, lambda subject: True, limit=1 << 62)
        self._codes, self._records = Ragged(np.uint16), Ragged(np.uint16)

    @property
    def nbytes(self) -> int:
        return self._codes.nbytes + self._records.nbytes

    def add(self, block: Block, rows: Ints, wanted: Flags) -> Flags:
        """Append a row for each of some chunk headers, and return for each whether its counts are
        known.

        `rows`: numbers of the headers' rows in `block`. `wanted`: one flag per header, False for
        counts that must not be used. The counts of a header are unknown if it is not wanted, if the
        table of distinct subjects was full before the call, if its subjects do not all fit, or if
        one of them is no subject that a stream can have.
        """
        # a dictionary that is full would be emptied, and the codes of the rows before be invalid
        known = wanted & (len(self._subjects.subjects) < self._limit and not self._subjects.is_full)
        sizes = np.where(known, block.heads["subjects"][rows], 0).astype(np.int64)
        total = int(sizes.sum())
        at, size, records = (np.empty(total, np.int64) for _ in range(3))
        _list_subjects(block.buf, block.at[rows], sizes, at, size, records)
        codes = self._subjects.encode(block.buf, at[None], size[None]) if total else np.empty(0, np.int32)
        bad = (codes < 0) | (codes >= self._limit)
        if bad.any():
            owners = np.repeat(np.arange(rows.size), sizes)
            known[owners[bad]] = False
            kept = known[owners]
            codes, records = codes[kept], records[kept]
            sizes = np.where(known, sizes, 0)
        self._records.widen(int(records.max(initial=0)))
        self._codes.extend(sizes)[:] = codes
        self._records.extend(sizes)[:] = records
        return known

    def truncate(self, rows: int) -> None:
        """Keep only the first `rows` rows."""
        self._codes.truncate(rows)
        self._records.truncate(rows)

    def take(self, kept: Ints) -> None:
        """Keep only the rows with these numbers, in this order."""
        self._codes.take(kept)
        self._records.take(kept)

    @property
    def subjects(self) -> Sequence[str]:
        """Return the distinct subjects of all rows that were ever added; a subject's index is its
        number. The list only grows.
        """
        return self._subjects.subjects

    def count(self, wanted: Flags, first: int, after: int) -> Ints:
        """Return for each row first <= row < after how many records have a wanted subject; 0 if
        unknown. `wanted`: one flag per subject number.
        """
        counts = np.zeros(after - first, np.int64)
        if wanted.any():
            _count(self._codes.data, self._records.data, self._codes.starts[first:], wanted, counts)
        return counts

    def sum(self, wanted: Flags, rows: Flags, first: int, after: int) -> dict[str, int]:
        """Return how many records each wanted subject has in some rows, only subjects that have
        some.

        `wanted`: one flag per subject number. `rows`: one flag for each row first <= row < after.
        """
        starts = self._codes.starts[first : after + 1]
        part = slice(int(starts[0]), int(starts[-1]))
        codes, records = self._codes.data[part], self._records.data[part]
        kept = np.repeat(rows, np.diff(starts)) & wanted[codes]
        sums = np.zeros(wanted.size, np.int64)
        np.add.at(sums, codes[kept], records[kept].astype(np.int64))
        return {self.subjects[code]: int(sums[code]) for code in np.flatnonzero(sums).tolist()}

    def list(self, wanted: Flags, first: int, after: int) -> tuple[Ints, UInt16s]:
        """Return the wanted subjects of the rows first <= row < after, as two arrays: bounds [rows
        + 1], and the subject numbers of all rows end to end. `wanted`: one flag per subject number.
        A row with unknown counts has no subjects.
        """
        bounds = np.zeros(after - first + 1, np.int64)
        starts = self._codes.starts[first : after + 1]
        found = np.empty(int(starts[-1] - starts[0]), np.uint16)
        used = _list_wanted(self._codes.data, starts, wanted, bounds, found)
        return bounds, found[:used].copy()


@kernel
def _list_subjects(buf: Bytes, parts: Ints, sizes: Ints, at: Ints, size: Ints, records: Ints) -> None:
    """Write for each subject of each row where its text begins in `buf`, its bytes, and its number
    of records to `at`, `size` and `records`, row by row. `parts`: Block.at of the rows. `sizes`:
    subjects of each row.
    """
    put = 0
    for row in range(sizes.size):
        entry, text = parts[row, COUNTS_AT], parts[row, TEXTS_AT]
        for _ in range(sizes[row]):
            count = np.int64(0)
            for i in range(4):
                count |= np.int64(buf[entry + i]) << (8 * i)
            length = np.int64(buf[entry + 4]) | (np.int64(buf[entry + 5]) << 8)
            at[put], size[put], records[put] = text, length, count
            put += 1
            entry += 6
            text += length


@kernel
def _count(codes: UInt16s, records: UInt16s | UInt32s | Ints, starts: Ints, wanted: Flags, counts: Ints) -> None:
    for row in range(counts.size):
        total = np.int64(0)
        for i in range(starts[row], starts[row + 1]):
            if wanted[codes[i]]:
                total += np.int64(records[i])
        counts[row] = total


@kernel
def _list_wanted(codes: UInt16s, starts: Ints, wanted: Flags, bounds: Ints, found: UInt16s) -> int:
    put = 0
    for row in range(bounds.size - 1):
        for i in range(starts[row], starts[row + 1]):
            if wanted[codes[i]]:
                found[put] = codes[i]
                put += 1
        bounds[row + 1] = put
    return put
