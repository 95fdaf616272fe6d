"""Packed rows against plain ones, with pages of one row and of many, and figures of every length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.index.ledger.pages import Pages

SIZES = st.sampled_from([1, 2, 3, 127, 128, 129, 16_383, 16_384, 1 << 33])
GAPS = st.sampled_from([0, 0, 0, 0, 1, 200, 1 << 40])


class Row(NamedTuple):
    code: int
    first_sequence: int
    first_offset: int
    length: int


@dataclass
class Plain:
    """The same as a list."""

    rows: list[Row] = field(default_factory=list)

    def void(self, code: int, end: int) -> None:
        rows = [
            row._replace(length=min(row.length, end - row.first_offset)) if row.code == code else row
            for row in self.rows
        ]
        self.rows = [row for row in rows if row.length > 0]

    def forget(self, code: int, start: int) -> None:
        rows = [self._cut(row, start) if row.code == code else row for row in self.rows]
        self.rows = [row for row in rows if row.length > 0]

    @staticmethod
    def _cut(row: Row, start: int) -> Row:
        gone = max(start - row.first_offset, 0)
        return Row(row.code, row.first_sequence + gone, row.first_offset + gone, row.length - gone)

    def find_sequence(self, code: int, offset: int) -> int:
        """From an offset on; 0 for none."""
        return next(
            (
                row.first_sequence + max(offset - row.first_offset, 0)
                for row in self.rows
                if row.code == code and row.first_offset + row.length > offset
            ),
            0,
        )

    def find_offset(self, code: int, sequence: int) -> int:
        return next(
            (
                row.first_offset + max(sequence - row.first_sequence, 0)
                for row in self.rows
                if row.code == code and row.first_sequence + row.length > sequence
            ),
            -1,
        )

    def locate(self, sequence: int) -> tuple[int, int, int] | None:
        for row in self.rows:
            if row.first_sequence + row.length > sequence:
                passed = max(sequence - row.first_sequence, 0)
                return row.code, row.first_sequence + passed, row.first_offset + passed
        return None


def compare(pages: Pages, plain: Plain, codes: int, some: Sequence[Row]) -> None:
    """At the edges of some rows, and beyond all."""
    for code in range(codes):
        edges = (row.first_offset + d for row in some if row.code == code for d in (-1, 0, row.length // 2, row.length))
        offsets = sorted({0, 1 << 60, *(max(0, edge) for edge in edges)})
        from_on = [plain.find_sequence(code, offset) for offset in offsets]
        assert [pages.find_sequence(code, offset) for offset in offsets] == from_on
        own = [row for row in plain.rows if row.code == code]
        covered = [any(row.first_offset <= o < row.first_offset + row.length for row in own) for o in offsets]
        exact = [one if there else 0 for one, there in zip(from_on, covered, strict=True)]
        asked = np.array(offsets)
        assert pages.find_sequences(code, asked).tolist() == exact
        assert pages.find_sequences(code, asked[::-1]).tolist() == exact[::-1]
    for sequence in {
        0,
        1 << 61,
        *(row.first_sequence + d for row in some for d in (-1, 0, row.length // 2, row.length)),
    }:
        code, *place, count = pages.locate(sequence)
        assert ((code, *place) if count else None) == plain.locate(sequence)
        for code in range(codes):
            assert pages.find_offset(code, sequence) == plain.find_offset(code, sequence)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from([1, 2, 5, 1024]))
def test_packed_is_plain(data: st.DataObject, page_rows: int) -> None:
    pages, plain = Pages(page_rows), Plain()
    sequence, tips = 1, dict[int, int]()
    for _ in range(data.draw(st.integers(1, 5))):
        codes = data.draw(st.integers(1, 3))
        pages.enlist(codes)
        fresh = list[Row]()
        for code in data.draw(st.lists(st.integers(0, codes - 1), max_size=8)):
            sequence += data.draw(GAPS)
            offset, count = tips.get(code, 0) + data.draw(GAPS), data.draw(SIZES)
            fresh.append(Row(code, sequence, offset, count))
            sequence, tips[code] = sequence + count, offset + count
        if fresh:
            pages.append(*np.array(fresh).T.copy())
        plain.rows += fresh
        gone = data.draw(st.sampled_from(plain.rows)) if plain.rows else Row(0, 1, 0, 1)
        code = data.draw(st.integers(0, codes - 1))
        near = data.draw(st.sampled_from([0, 100, gone.first_offset, gone.first_offset + gone.length // 2]))
        match data.draw(st.sampled_from(["go on", "void", "forget"])):
            case "void":
                pages.void(code, near)
                plain.void(code, near)
                tips[code] = min(tips.get(code, 0), near)
            case "forget":
                starts = np.zeros(codes, np.int64)
                starts[code] = near
                pages.forget(starts)
                plain.forget(code, near)
        compare(pages, plain, codes, [gone, *plain.rows[-3:], *fresh[:2]])


def fill(pages: Pages, rows: int, codes: int = 2) -> None:
    """Rows of one record, partition by partition in turn."""
    at = np.arange(rows)
    pages.enlist(codes)
    pages.append(at % codes, at + 1, at // codes, np.ones(rows, np.int64))


def test_a_row_that_goes_on_takes_two_bytes() -> None:
    pages = Pages()
    fill(pages, 200_000)
    assert len(pages) == 200_000
    assert pages.nbytes < 200_000 * 2.2 * 1.25 + 65_536 * 32


def test_memory_comes_back_when_retention_has_taken_pages() -> None:
    pages = Pages(64)
    fill(pages, 10_000)
    before = pages.nbytes
    pages.forget(np.array([4_000, 4_000]))
    assert 2_000 <= len(pages) < 2_064
    assert pages.nbytes < before / 3
    assert pages.locate(0) == (0, 8_001, 4_000, 1)
    pages.append(*np.array([[0, 10_001, 5_000, 3]]).T.copy())
    assert pages.find_sequences(0, np.array([4_999, 5_002])).tolist() == [9_999, 10_003]


def test_a_partition_without_retention_keeps_the_pages_that_it_is_in() -> None:
    """Its neighbour's rows go wherever it has none itself."""
    pages = Pages(16)
    pages.enlist(2)
    pages.append(*np.array([[0, 1, 0, 5]]).T.copy())
    at = np.arange(1_000)
    pages.append(np.ones(1_000, np.int64), at * 2 + 10, at, np.ones(1_000, np.int64))
    pages.forget(np.array([0, 1_000]))
    assert len(pages) == 16
    assert pages.locate(3) == (0, 3, 2, 3)
    assert pages.locate(6)[3] == 0


def test_rows_behind_pages_that_are_gone_keep_their_offsets_when_they_are_written_anew() -> None:
    pages = Pages(1)
    pages.enlist(2)
    # partition 1's first row stays, what partition 0 had before and behind it goes
    pages.append(*np.array([(0, 1, 0, 1), (1, 2, 0, 1), (0, 3, 1, 1), (1, 4, 1, 1), (0, 5, 2, 1)]).T.copy())
    pages.forget(np.array([2, 0]))
    assert len(pages) == 3
    pages.void(1, 0)
    assert pages.find_sequences(0, np.array([1, 2])).tolist() == [0, 5]
    assert pages.find_sequences(1, np.array([0, 1])).tolist() == [0, 0]
