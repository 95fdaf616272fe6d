"""A partition as a strip of cells, from the start of its log to the end: skipped, read or matched.

A cell stands for many chunks and shows the most important one. A match counts most, then a chunk
without a header, then one that was read. A cell shows "skipped" only if all of it was skipped. So a
single match among millions of records is visible.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from overlay.arrays import Int8s, Ints

Cells = Int8s

SKIPPED, READ, UNINDEXED, MATCHED = range(4)
"""Kinds of cells by rising importance. READ: by its header; UNINDEXED: for lack of a header."""

MARKS = "·░?█"
PLAIN_MARKS = ".-?#"
"""For terminals without Unicode."""
STYLES = ("dim", "cyan", "yellow", "bold green")
NAMES = ("skipped", "read", "unindexed", "matched")
WORDS = ("skipped", "read", "not indexed, read", "matched")


@dataclass(frozen=True, slots=True, eq=False)
class Strip:
    """A partition's log as a row of cells, each with one of the four kinds; no cells if the log is empty."""

    name: str
    cells: Cells

    def write(self, marks: str = MARKS) -> str:
        """Return one character for each cell. `marks`: those of the four kinds, in order."""
        return "".join(marks[cell] for cell in self.cells.tolist())


class Canvas:
    """Paints ranges of offsets on cells, which share the offsets from `first` to below `end`
    evenly. `width`: most cells; there are fewer if there are fewer offsets. At first all are
    SKIPPED.
    """

    def __init__(self, first: int, end: int, width: int) -> None:
        self.first, self.end = first, end
        self.cells = np.full(max(0, min(width, end - first)), SKIPPED, np.int8)

    def paint(self, kind: int, first_offset: Ints, next_offset: Ints) -> None:
        """Set a kind on the cells of offset ranges, except on cells with a more important kind. A
        range goes from `first_offset` to below `next_offset`; a cell that it only touches is set as
        well.
        """
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
    """Return the kinds of cells that occur on the strips, each once, by rising importance."""
    return sorted({int(kind) for strip in strips for kind in np.unique(strip.cells)})
