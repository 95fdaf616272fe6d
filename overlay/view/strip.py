"""A partition as a strip of cells, from the start of its log to the end: what a reading skips, reads and finds.

A cell stands for many chunks, and shows the one that counts most: a match before what was read in vain, that before what
has no header, and skipped only where all of it is. So a single match among millions of records is seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Cells = npt.NDArray[np.int8]

SKIPPED, READ, UNINDEXED, MATCHED = range(4)
"""What a cell shows, in the order in which it is painted over: read by its header, read for want of one."""

MARKS = "·░?█"
PLAIN_MARKS = ".-?#"
"""For terminals that know no other letters."""
STYLES = ("dim", "cyan", "yellow", "bold green")
WORDS = ("skipped", "read", "not indexed, read", "matched")


@dataclass(frozen=True, slots=True, eq=False)
class Strip:
    """`cells`: one of the four for each; empty where the log is."""

    name: str
    cells: Cells

    def write(self, marks: str = MARKS) -> str:
        """A letter for each cell."""
        return "".join(marks[cell] for cell in self.cells.tolist())


class Canvas:
    """Paints first <= offset < end on `width` cells, or as many as there are offsets."""

    def __init__(self, first: int, end: int, width: int) -> None:
        self.first, self.end = first, end
        self.cells = np.full(max(0, min(width, end - first)), SKIPPED, np.int8)

    def paint(self, kind: int, first_offset: Ints, next_offset: Ints) -> None:
        """Put a kind on the cells of spans of offsets, where nothing that counts more is."""
        low = np.maximum(first_offset, self.first)
        high = np.minimum(next_offset, self.end)
        inside = low < high
        touched = np.zeros(self.cells.size + 1, np.int64)
        np.add.at(touched, self._place(low[inside]), 1)
        np.add.at(touched, self._place(high[inside] - 1) + 1, -1)
        covered = np.cumsum(touched[:-1]) > 0
        self.cells[covered] = np.maximum(self.cells[covered], kind)

    def _place(self, offsets: Ints) -> Ints:
        return (offsets - self.first) * self.cells.size // max(1, self.end - self.first)


def find_kinds(strips: Iterable[Strip]) -> list[int]:
    """What is on the strips, in order, for a legend."""
    return sorted({int(kind) for strip in strips for kind in np.unique(strip.cells)})
