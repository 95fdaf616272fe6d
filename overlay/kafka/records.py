"""Records of small topics as Python objects: control records, state records, records of other
writers.

Every batch is read by the project's own decoder, or without kernels (scan/rows.py) by a command that
has to answer at once. A batch that cannot be read is yielded as a value (Malformed) and never
raised. So is a batch that decompresses to more than the decoder's arena takes, or that has more
records than the reader's limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from overlay.field import Field, FieldKind
from overlay.scan import Decoder, Malformed, Records, make_plan
from overlay.scan.codec import Arena
from overlay.scan.decode import NO_STOP
from overlay.scan.kernel import open_bodies
from overlay.scan.rows import read_rows

from .fetched import Fetched

ROWS_AT_ONCE = 2_000
"""Rows of which Python numbers are made in one go: an event loop does not wait for all of a batch."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """One record. `timestamp`: ms since 1970. `headers`: the last value of each header that was
    asked for; null values are left out.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes] = field(default_factory=dict)


class RowReader:
    """A reader of fetches, record by record, with its own buffers. Not for two threads at once."""

    def __init__(
        self, headers: Sequence[str] = (), *, most_bytes: int | None = None, most_records: int | None = None
    ) -> None:
        """Make a reader for the named headers. `most_bytes`: limit of one decompressed batch; None
        for the decoder's own limit. `most_records`: limit of its records, as in Decoder.
        """
        self._headers = tuple(headers)
        plan = make_plan(tuple(Field(FieldKind.HEADER, name) for name in self._headers))
        self._decoder = Decoder(plan, arena=_make_arena(most_bytes), most_records=most_records)

    def read(self, fetched: Fetched, position: int, stop: int = NO_STOP) -> Iterator[StoredRecord | Malformed]:
        """Yield the records with position <= offset < stop in order, and a Malformed in the place of
        each batch that cannot be read. Records of aborted transactions and transaction markers are
        left out.
        """
        for piece in self._decoder.decode(fetched.data, position, stop=stop, aborted=fetched.aborted):
            if isinstance(piece, Malformed):
                yield piece
            else:
                for first in range(0, len(piece), ROWS_AT_ONCE):
                    yield from self._read_rows(piece, first, min(first + ROWS_AT_ONCE, len(piece)))

    def _read_rows(self, piece: Records, first: int, last: int) -> Iterator[StoredRecord]:
        part = slice(first, last)
        columns = [np.empty(last - first, np.int64) for _ in range(5)]
        open_bodies(piece.buf, piece.body[part], piece.end[part], *columns)
        columns = [piece.offset[part], piece.timestamp[part], *columns[:4]]
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for row, (offset, timestamp, key_at, key_size, at, size) in enumerate(rows, first):
            found = {
                name: piece.buf[start : start + length].tobytes()
                for slot, name in enumerate(self._headers)
                if (start := int(piece.at[slot, row])) >= 0 and (length := int(piece.size[slot, row])) >= 0
            }
            yield StoredRecord(offset, timestamp, _cut(piece, key_at, key_size), _cut(piece, at, size), found)


def _cut(piece: Records, at: int, size: int) -> bytes | None:
    return piece.buf[at : at + size].tobytes() if size >= 0 else None


class PlainReader:
    """A reader as RowReader, without kernels, for commands and for a few records. It makes Python objects
    of all records of a batch in one go. A service reads its own state and the control topic with
    kernels, so that no batch, which any client may write to the control topic, holds up its event loop.
    """

    def __init__(
        self, headers: Sequence[str] = (), *, most_bytes: int | None = None, most_records: int | None = None
    ) -> None:
        """Make a reader for the named headers. `most_bytes`, `most_records`: as in RowReader."""
        self._most_records = most_records
        self._names = {name.encode(): name for name in headers}
        self._arena = _make_arena(most_bytes) or Arena()

    def read(self, fetched: Fetched, position: int, stop: int = NO_STOP) -> Iterator[StoredRecord | Malformed]:
        """Yield the records with position <= offset < stop in order, and a Malformed in the place of
        each batch that cannot be read, as `RowReader.read` does.
        """
        rows = read_rows(
            fetched.data,
            position,
            stop=stop,
            aborted=fetched.aborted,
            arena=self._arena,
            most_records=self._most_records,
        )
        for row in rows:
            if isinstance(row, Malformed):
                yield row
            else:
                last = {self._names[name]: value for name, value in row.headers if name in self._names}
                headers = {name: value for name, value in last.items() if value is not None}
                yield StoredRecord(row.offset, row.timestamp, row.key, row.value, headers)


def _make_arena(most_bytes: int | None) -> Arena | None:
    return None if most_bytes is None else Arena(min(4 << 20, most_bytes), most_bytes)
