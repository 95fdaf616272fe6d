"""The rows of a ledger, packed: two to four bytes for a row that continues the last ones. Kernels
search them.

A row gives `count` offsets of a partition, from first_offset on, as many sequences, from
first_sequence on. Rows are in the order of sequences, and within a partition in that of offsets.
Mostly both continue without a gap: the sequence where the row before ended, the offset where the
partition's last row did. So a row is

    head    2 * the partition's code, + 1 if there are gaps
    gaps    if there are: the sequences left out, the offsets left out
    count

each a varint: seven bits a byte, lowest first, the highest bit set if more bytes follow. The count
is last so that it can be overwritten: a row that continues the last one in both is merged into it.

Rows stand in pages. What a page begins with is kept beside it: its first sequence, and of each partition where its last row
before that ended (its mark). So a page can be read without those before it, and is found by bisection: by sequence, or by
the marks of a partition. A page has at most PAGE_ROWS rows, more with many partitions, so that the marks take about
a byte a row at most. To find one row is to read half a page on average, some microseconds.

Offsets that retention has removed are hidden at once, also a part of a row. Their memory is freed
when a quarter of the pages hold nothing else.
"""

from __future__ import annotations

import numpy as np

from overlay.arrays import AnyArray, Bytes, Flags, Int, Ints
from overlay.kernels import kernel

PAGE_ROWS = 1024
ROW_BYTES = 5 + 3 * 9
"""The most bytes that a row takes."""
PART = 1 << 16
"""Rows packed at once: room for the most that they may take must exist before."""

_POS, _COUNT_AT, _CODE, _COUNT, _SEQUENCE, _LEFT, _PAGES = range(7)
# Fields of the tail: bytes in use; where the last row's count is, its partition (-1: it is closed),
# its count; the sequence after the last row; rows that still fit the last page; pages in use.


class Pages:
    """The rows of a stream's ledger, packed. A row gives `count` offsets of a partition, from
    first_offset on, as many sequences, from first_sequence on.

    Not for two threads at once. Partitions are codes from 0 on; call `enlist` for new ones.
    """

    def __init__(self, page_rows: int = PAGE_ROWS) -> None:
        self._page_rows = page_rows
        self._data = np.empty(0, np.uint8)
        self._at, self._sequences, self._sizes = (np.zeros(1, np.int64) for _ in range(3))
        self._marks = np.zeros((1, 0), np.int64)
        self._tips, self._lows = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._tail = np.array([0, 0, -1, 0, 0, 0, 0], np.int64)

    def __len__(self) -> int:
        """Return the number of rows in memory. Rows whose records retention has removed may be
        counted.
        """
        return int(self._sizes[: self._used].sum())

    @property
    def nbytes(self) -> int:
        arrays = (self._data, self._at, self._sequences, self._sizes, self._marks, self._tips, self._lows)
        return sum(array.nbytes for array in arrays)

    @property
    def _used(self) -> int:
        return int(self._tail[_PAGES])

    @property
    def _shelf(self) -> tuple[Bytes, Ints, Ints, Ints]:
        """Return the arrays that kernels search: the packed bytes; where each page in use begins in
        them, and as one item more the end; the first sequence of each page; and the marks, [pages,
        partitions by code]: the offset after the last row of the partition before the page, 0 if
        there is none.
        """
        used = self._used
        return self._data, self._at[: used + 1], self._sequences[:used], self._marks[:used]

    def enlist(self, codes: int) -> None:
        """Make room for partitions, so that all codes below `codes` may be used."""
        more = codes - self._tips.size
        if more > 0:
            more = max(more, self._tips.size, 8)
            self._tips, self._lows = (np.pad(column, (0, more)) for column in (self._tips, self._lows))
            self._marks = np.pad(self._marks, ((0, 0), (0, more)))

    def append(self, codes: Ints, first_sequence: Ints, first_offset: Ints, count: Ints) -> None:
        """Append rows, one for each item of the columns, in the order of sequences. `codes`: of the
        partitions. Each row has at least one record; its sequences are above all existing ones, its
        offsets above those of its partition.
        """
        limit = self._page_rows * max(1, self._tips.size // 128)
        for begin in range(0, codes.size, PART):
            part = slice(begin, begin + PART)
            size = min(PART, codes.size - begin)
            self._data = _grow(self._data, int(self._tail[_POS]), size * ROW_BYTES)
            self._at, self._sequences, self._sizes, self._marks = (
                _grow(column, self._used + 1, size // limit + 2)
                for column in (self._at, self._sequences, self._sizes, self._marks)
            )
            _pack(
                codes[part], first_sequence[part], first_offset[part], count[part],
                self._data, self._at, self._sequences, self._sizes, self._marks, self._tips, self._lows, self._tail, limit,
            )  # fmt: skip

    def void(self, code: int, end: int) -> None:
        """Remove the sequences of the partition with this code from offset `end` on. Other
        partitions keep theirs, but later rows of all partitions are packed anew. Does nothing if
        the partition ends at or below `end`.
        """
        if self._tips[code] <= end:
            return
        page = max(int(np.searchsorted(self._marks[: self._used, code], end, side="right")) - 1, 0)
        rows = np.empty((4, int(self._sizes[page : self._used].sum())), np.int64)
        tips = self._marks[page].copy()
        _unpack(*self._shelf, page, rows)
        tips[code] = min(tips[code], end)  # those below may be gone
        self._close(page, tips)
        codes, _, first_offset, count = rows
        count[:] = np.where(codes == code, np.clip(end - first_offset, 0, count), count)
        lows = self._lows.copy()
        # contiguous: no kernel is compiled for columns with strides
        self.append(*np.ascontiguousarray(rows[:, count > 0]))
        self._lows[:] = lows  # the rows are not new, so hidden offsets stay hidden

    def forget(self, starts: Ints) -> None:
        """Hide the offsets of each partition below its start (by code): searches then find no
        sequence for them. Frees the pages with only hidden offsets once they are a quarter of all
        pages.
        """
        self._lows[: starts.size] = np.maximum(self._lows[: starts.size], starts)
        used, marks = self._used, self._marks[: self._used]
        ends = np.concatenate((marks[1:], self._tips[None]))
        kept = np.any((ends > marks) & (ends > self._lows), axis=1)
        if used and 4 * int(kept.sum()) <= 3 * used:
            self._keep(kept)

    def find_sequences(self, code: int, offsets: Ints) -> Ints:
        """Return the sequence of each of the `offsets` of a partition, in their order; 0 for an
        offset that has none or that `forget` has hidden. `code`: of the partition. Descending
        offsets cost a sort.
        """
        out = np.zeros(offsets.size, np.int64)
        if not _find_sequences(*self._shelf, code, self._lows[code], offsets, out):
            order = np.argsort(offsets, kind="stable")
            found = np.zeros(offsets.size, np.int64)
            _find_sequences(*self._shelf, code, self._lows[code], offsets[order], found)
            out[order] = found
        return out

    def find_sequence(self, code: int, offset: int) -> int:
        """Return the sequence of a partition's first offset, from `offset` on, that has one and is
        not hidden (`forget`); 0 if there is none. `code`: of the partition.
        """
        start = max(offset, int(self._lows[code]))
        page = max(int(np.searchsorted(self._marks[: self._used, code], start, side="right")) - 1, 0)
        first_offset, first_sequence = _find_row(*self._shelf, code, page, start, 0)
        return int(first_sequence + max(start - first_offset, 0)) if first_sequence else 0

    def find_offset(self, code: int, sequence: int) -> int:
        """Return the lowest offset of a partition that is not hidden (`forget`) and whose sequence
        is at or above `sequence`; -1 if there is none. `code`: of the partition.
        """
        low = int(self._lows[code])
        first_offset, first_sequence = _find_row(*self._shelf, code, self._find_page(sequence), low, sequence)
        return int(max(first_offset + max(sequence - first_sequence, 0), low)) if first_sequence else -1

    def locate(self, sequence: int) -> tuple[int, int, int, int]:
        """Return (partition code, first sequence, first offset, count) of the row that has
        `sequence`, or else of the next row above it.

        If the row begins below `sequence`, the result is its part from `sequence` on. Hidden
        offsets are left out. A count of 0 means that there is no such row.
        """
        code, start, offset, count = _locate(*self._shelf, self._find_page(sequence), self._lows, sequence)
        return int(code), int(start), int(offset), int(count)

    def _find_page(self, sequence: int) -> int:
        return max(int(np.searchsorted(self._sequences[: self._used], sequence, side="right")) - 1, 0)

    def _close(self, pages: int, tips: Ints) -> None:
        """Keep only the first `pages` pages. The next row begins a new page. `tips`: by code, the
        offset where the last kept row of each partition ends.
        """
        pos = self._at[pages]
        self._tips[:] = tips
        self._tail[:] = pos, pos, -1, 0, 0, 0, pages

    def _keep(self, kept: Flags) -> None:
        """Free the pages whose item of `kept` (one per page) is False."""
        used, at = self._used, self._at
        edges = np.flatnonzero(np.diff(kept, prepend=False, append=False)).reshape(-1, 2).tolist()
        data = [self._data[at[first] : at[end]] for first, end in edges]
        sizes = np.diff(at[: used + 1])[kept]
        goes_on = bool(kept[-1])
        self._data = np.concatenate(data) if data else np.empty(0, np.uint8)
        self._sequences, self._sizes, self._marks = (
            np.concatenate((column[:used][kept], column[:1])) for column in (self._sequences, self._sizes, self._marks)
        )
        self._at = np.concatenate(([0], np.cumsum(sizes)))
        if goes_on:
            self._tail[[_POS, _COUNT_AT]] -= self._tail[_POS] - self._at[-1]
            self._tail[_PAGES] = sizes.size
        else:
            self._close(sizes.size, self._tips)


def _grow(column: AnyArray, used: int, more: int) -> AnyArray:
    """Return a column with room for `more` items after the first `used` ones: `column` itself if it
    has the room, else a larger copy.
    """
    if used + more <= len(column):
        return column
    larger = np.zeros((max(used + more, used * 5 // 4), *column.shape[1:]), column.dtype)
    larger[:used] = column[:used]
    return larger


@kernel(inline="always")
def _put(data: Bytes, pos: Int, value: Int) -> Int:
    while value > 127:
        data[pos] = value & 127 | 128
        value >>= 7
        pos += 1
    data[pos] = value
    return pos + 1


@kernel(inline="always")
def _get(data: Bytes, pos: Int) -> tuple[Int, Int]:
    """Read the variable-length number at `pos`. Return it and the position after it."""
    value: Int = np.int64(data[pos])
    pos += 1
    if value > 127:
        value &= 127
        shift = 7
        while True:
            byte = np.int64(data[pos])
            pos += 1
            value |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
    return value, pos


@kernel(inline="always")
def _read_row(data: Bytes, pos: Int) -> tuple[Int, Int, Int, Int, Int]:
    """Read the row at `pos`. Return the position after it, the code of its partition, how many
    sequences and how many offsets of the partition were left out before it, and its count.
    """
    sequences: Int = np.int64(0)
    offsets: Int = np.int64(0)
    head: Int = np.int64(data[pos])
    count: Int = np.int64(data[pos + 1])
    if (head | count) < 128 and not head & 1:  # nearly all rows: one predictable branch
        return pos + 2, head >> 1, sequences, offsets, count
    head, pos = _get(data, pos)
    if head & 1:
        sequences, pos = _get(data, pos)
        offsets, pos = _get(data, pos)
    count, pos = _get(data, pos)
    return pos, head >> 1, sequences, offsets, count


@kernel
def _pack(
    codes: Ints, first_sequence: Ints, first_offset: Ints, counts: Ints, data: Bytes, at: Ints, sequences: Ints,
    sizes: Ints, marks: Ints, tips: Ints, lows: Ints, tail: Ints, limit: int,
) -> None:  # fmt: skip
    pos, count_at, last, last_count = tail[_POS], tail[_COUNT_AT], tail[_CODE], tail[_COUNT]
    next_sequence, left, pages = tail[_SEQUENCE], tail[_LEFT], tail[_PAGES]
    for i in range(codes.size):
        code, count = codes[i], counts[i]
        # Everything below this row is hidden already, and the row itself must not be.
        lows[code] = min(lows[code], first_offset[i])
        if code == last and first_sequence[i] == next_sequence and first_offset[i] == tips[code]:
            count += last_count
            pos = count_at
        else:
            if left == 0:
                at[pages], sequences[pages], sizes[pages] = pos, first_sequence[i], 0
                for j in range(tips.size):
                    marks[pages, j] = tips[j]
                pages += 1
                left, next_sequence = limit, first_sequence[i]
            gaps = first_sequence[i] - next_sequence, first_offset[i] - tips[code]
            has_gaps = gaps[0] > 0 or gaps[1] > 0
            pos = _put(data, pos, code * 2 + has_gaps)
            if has_gaps:
                pos = _put(data, pos, gaps[0])
                pos = _put(data, pos, gaps[1])
            count_at = pos
            left -= 1
            sizes[pages - 1] += 1
        pos = _put(data, pos, count)
        last, last_count = code, count
        tips[code], next_sequence = first_offset[i] + counts[i], first_sequence[i] + counts[i]
    at[pages] = pos
    tail[_POS], tail[_COUNT_AT], tail[_CODE], tail[_COUNT] = pos, count_at, last, last_count
    tail[_SEQUENCE], tail[_LEFT], tail[_PAGES] = next_sequence, left, pages


@kernel
def _unpack(data: Bytes, at: Ints, sequences: Ints, marks: Ints, page: int, rows: Ints) -> None:
    """Write the rows of page `page` and of all later ones to `rows` (int64, [4, rows]): partition
    code, first sequence, first offset and count.
    """
    tips = np.empty(marks.shape[1], np.int64)
    row = 0
    for i in range(page, sequences.size):
        pos, sequence = at[i], sequences[i]
        for j in range(tips.size):
            tips[j] = marks[i, j]  # pages before it may be gone
        while pos < at[i + 1]:
            pos, code, gap, left_out, count = _read_row(data, pos)
            sequence += gap
            tips[code] += left_out
            rows[0, row], rows[1, row], rows[2, row], rows[3, row] = code, sequence, tips[code], count
            tips[code] += count
            sequence += count
            row += 1


@kernel
def _seek(marks: Ints, code: int, offset: int, low: int) -> int:
    """Return the number of the last page from `low` on whose mark of a partition (where its last
    row before the page ends) is at or below `offset`; `low` if no page above it has such a mark.
    """
    high = marks.shape[0]
    while high - low > 1:
        middle = (low + high) // 2
        if marks[middle, code] <= offset:
            low = middle
        else:
            high = middle
    return low


@kernel
def _find_sequences(
    data: Bytes, at: Ints, sequences: Ints, marks: Ints, code: int, low: int, offsets: Ints, out: Ints
) -> bool:
    """Write the sequence of each offset of a partition to `out`, 0 if it has none. Return True; or
    False, with `out` only partly written, if `offsets` descend so that rows would have to be read
    backwards.

    `low`: the partition's offsets below it are hidden, and get 0.
    """
    pages = sequences.size
    # The current row has the offsets `first` to `after`; sequence = offset + shift. The next row is
    # at `pos`, the page ends at `stop`.
    page, stop, sequence = -1, np.int64(0), np.int64(0)
    pos: Int = np.int64(0)
    first, after, shift = np.int64(0), np.int64(0), np.int64(0)
    i = 0
    while i < offsets.size:
        # all offsets of the current row
        while i < offsets.size and first <= offsets[i] < after:
            out[i] = offsets[i] + shift if offsets[i] >= low else 0
            i += 1
        if i == offsets.size:
            break
        offset = offsets[i]
        if offset < first:
            # in a gap before the current row, so it has no sequence; or offsets descend
            if i and offset < offsets[i - 1]:
                return False
            i += 1
        elif page + 1 < pages and (page < 0 or offset >= marks[page + 1, code]):
            page = _seek(marks, code, offset, page + 1)
            pos, stop, sequence = at[page], at[page + 1], sequences[page]
            first = after = marks[page, code]
        elif pos == stop:
            first = after  # offsets after it are in no row of the page
            i += 1
        else:
            # the partition's next row in this page
            other: Int = np.int64(-1)
            while pos < stop and other != code:
                pos, other, gap, left_out, count = _read_row(data, pos)
                sequence += gap + count
                if other == code:
                    first = after + left_out
                    after = first + count
                    shift = sequence - after
    return True


@kernel
def _find_row(
    data: Bytes, at: Ints, sequences: Ints, marks: Ints, code: Int, page: Int, offset: Int, sequence: Int
) -> tuple[Int, Int]:
    """Return (first offset, first sequence) of the partition's first row, from page `page` on,
    whose last offset is at or above `offset` and whose last sequence is at or above `sequence`;
    (0, 0) if there is none.
    """
    for i in range(page, sequences.size):
        tip = marks[i, code]
        if i + 1 < sequences.size and marks[i + 1, code] == tip:
            continue
        pos, at_sequence = at[i], sequences[i]
        while pos < at[i + 1]:
            pos, other, gap, left_out, count = _read_row(data, pos)
            at_sequence += gap + count
            if other == code:
                tip += left_out + count
                if tip > offset and at_sequence > sequence:
                    return tip - count, at_sequence - count
    return np.int64(0), np.int64(0)


@kernel
def _locate(
    data: Bytes, at: Ints, sequences: Ints, marks: Ints, page: Int, lows: Ints, sequence: Int
) -> tuple[Int, Int, Int, Int]:
    tips = np.empty(lows.size, np.int64)
    for i in range(page, sequences.size):
        for j in range(tips.size):
            tips[j] = marks[i, j]
        pos, at_sequence = at[i], sequences[i]
        while pos < at[i + 1]:
            pos, code, gap, left_out, count = _read_row(data, pos)
            at_sequence += gap + count
            tips[code] += left_out + count
            if at_sequence > sequence and tips[code] > lows[code]:
                first_sequence, first_offset = at_sequence - count, tips[code] - count
                passed = max(sequence - first_sequence, lows[code] - first_offset, 0)
                return code, first_sequence + passed, first_offset + passed, count - passed
    return np.int64(0), np.int64(0), np.int64(0), np.int64(0)
