"""A table of records, printed as they arrive: fitted to a terminal, or uncut lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from overlay.client.read.cells import list_headers, show_times
from overlay.client.texts import make_printable, show_content

from .figures import UNKNOWN

GRID_COLUMNS = ("subject", "sequence", "timestamp", "key", "value", "headers", "partition", "offset")
_CAPS = {"subject": 0.3, "key": 0.15, "headers": 0.2}
"""The largest share for a column of the width that numbers and the time leave, so that the value keeps some room."""
_GAP = "  "
_RIGHT = ("sequence", "partition", "offset")


class Grid:
    """Prints batches that have GRID_COLUMNS as a table: a line with the column names, then a line per record.

    If a batch has sequences, its table shows the sequence, otherwise the partition and offset. If
    this changes from one batch to the next, the column names are printed again. Control characters
    in the data are shown as escapes, because a terminal would obey them. If the console is no
    terminal, `write` receives the lines instead, uncut.
    """

    def __init__(self, console: Console, write: Callable[[bytes], object]) -> None:
        self._console, self._write = console, write
        self._widths: dict[str, int] = {}

    def print(self, batch: pa.RecordBatch) -> None:
        """Print the records of a batch. Column widths only grow while the columns stay the same."""
        cells = self._read(batch)
        is_new = list(cells) != list(self._widths)
        before = {} if is_new else self._widths
        self._widths = {
            name: max(before.get(name, len(name)), *map(cell_len, column)) for name, column in cells.items()
        }
        if is_new:
            self._show([list(cells)], "bold")
        self._show(zip(*cells.values(), strict=True), "")

    def _read(self, batch: pa.RecordBatch) -> dict[str, list[str]]:
        sequenced = batch["sequence"].null_count < batch.num_rows
        columns: dict[str, Iterable[object]] = {
            name: batch[name].to_pylist() for name in (("sequence",) if sequenced else ("partition", "offset"))
        }
        columns["timestamp"] = show_times(batch["timestamp"])
        columns["subject"] = batch["subject"].to_pylist()
        columns["key"] = batch["key"].to_pylist()
        columns["headers"] = [" ".join(map(_show_header, headers)) for headers in list_headers(batch["headers"])]
        columns["value"] = batch["value"].to_pylist()
        cells = {name: [_show(cell) for cell in column] for name, column in columns.items()}
        return self._fit(cells) if self._console.is_terminal else cells

    def _fit(self, cells: dict[str, list[str]]) -> dict[str, list[str]]:
        """Return the cells, with those of subject, key and headers cut to their shares (_CAPS) of the
        width that the numbers and the time leave on the terminal.
        """
        fixed = [max(len(name), *map(cell_len, cells[name])) for name in cells if name not in (*_CAPS, "value")]
        room = self._console.width - sum(fixed) - len(_GAP) * (len(cells) - 1)
        caps = {name: max(len(name), int(room * share)) for name, share in _CAPS.items()}
        return {
            name: [_cut(cell, caps[name]) for cell in column] if name in caps else column
            for name, column in cells.items()
        }

    def _show(self, rows: Iterable[Sequence[str]], style: str) -> None:
        lines = [self._pad(row) for row in rows]
        if not self._console.is_terminal:
            self._write("".join(line + "\n" for line in lines).encode())
            return
        for line in lines:
            text = Text(line, style)
            text.truncate(self._console.width, overflow="ellipsis")
            self._console.print(text, no_wrap=True, crop=False)

    def _pad(self, row: Sequence[str]) -> str:
        *padded, last = zip(self._widths.items(), row, strict=True)
        cells = [
            " " * (width - cell_len(cell)) + cell if name in _RIGHT else set_cell_size(cell, width)
            for (name, width), cell in padded
        ]
        return _GAP.join([*cells, last[1]])


def _show_header(header: tuple[str, bytes | None]) -> str:
    return f"{header[0]}={_show(header[1])}"


def _show(cell: object) -> str:
    """Return the text of a cell on one line, with control characters escaped; UNKNOWN for null."""
    if cell is None:
        return UNKNOWN
    return show_content(cell) if isinstance(cell, bytes) else make_printable(str(cell))


def _cut(text: str, most: int) -> str:
    """Return a text that is at most so many columns wide, with `…` in place of what was cut off."""
    return text if cell_len(text) <= most else set_cell_size(text, most - 1) + "…"
