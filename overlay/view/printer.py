"""Printers of record batches, one for each format of `overlay read`."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Protocol

import pyarrow as pa

from overlay.client import SCHEMA

from .lines import JSON_COLUMNS, RAW_COLUMNS, write_json, write_raw


class Printer(Protocol):
    """A printer of batches.

    What `print` has written has reached the output when it returns, for programs that follow the
    output.
    """

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the batches need."""

    def print(self, batch: pa.RecordBatch) -> None: ...

    def close(self) -> None:
        """Write the end of the output. The output itself stays open."""


class Lines:
    """A printer of each batch as lines of text."""

    def __init__(self, out: IO[bytes], columns: tuple[str, ...], write: Callable[[pa.RecordBatch], bytes]) -> None:
        self.columns, self._out, self._write = columns, out, write

    def print(self, batch: pa.RecordBatch) -> None:
        self._out.write(self._write(batch))
        self._out.flush()

    def close(self) -> None:
        pass


class Table:
    """A printer of records as a table, fitted to a terminal if there is one (grid.py)."""

    def __init__(self, out: IO[bytes]) -> None:
        # the other formats do not wait for rich
        from .console import make_console
        from .grid import GRID_COLUMNS, Grid

        self.columns = GRID_COLUMNS
        self._out, self._grid = out, Grid(make_console(), out.write)

    def print(self, batch: pa.RecordBatch) -> None:
        self._grid.print(batch)
        self._out.flush()

    def close(self) -> None:
        pass


class Ipc:
    """A printer in Arrow's streaming format. `close` ends the stream, which is then complete even without a record."""

    columns = tuple(SCHEMA.names)

    def __init__(self, out: IO[bytes]) -> None:
        self._out, self._writer = out, pa.ipc.new_stream(out, SCHEMA)

    def print(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)
        self._out.flush()

    def close(self) -> None:
        self._writer.close()
        self._out.flush()


class Count:
    """A printer that only counts the records, and prints their number when it is closed."""

    columns = ()

    def __init__(self, out: IO[bytes]) -> None:
        self._out, self._count = out, 0

    def print(self, batch: pa.RecordBatch) -> None:
        self._count += batch.num_rows

    def close(self) -> None:
        self._out.write(f"{self._count}\n".encode())
        self._out.flush()


_PRINTERS: dict[str, Callable[[IO[bytes]], Printer]] = {
    "table": Table,
    "json": lambda out: Lines(out, JSON_COLUMNS, write_json),
    "raw": lambda out: Lines(out, RAW_COLUMNS, write_raw),
    "arrow-ipc": Ipc,
    "count": Count,
}


def open_printer(form: str, out: IO[bytes]) -> Printer:
    """Return a printer for `table`, `json`, `raw`, `arrow-ipc` or `count`. Raises KeyError for another word."""
    return _PRINTERS[form](out)
