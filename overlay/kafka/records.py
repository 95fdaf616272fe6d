"""Records of small topics as Python objects: control records, state records, records of other
writers.

Every batch is read by the project's own decoder. A batch that cannot be read is yielded as a value
(Malformed) and never raised. So is a batch that decompresses to more than the decoder's arena
takes.
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

from .fetcher import Fetched


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

    def __init__(self, headers: Sequence[str] = (), *, most_bytes: int | None = None) -> None:
        """Make a reader for the named headers. `most_bytes`: limit of one decompressed batch; None
        for the decoder's own limit.
        """
        self._headers = tuple(headers)
        plan = make_plan(tuple(Field(FieldKind.HEADER, name) for name in self._headers))
        arena = None if most_bytes is None else Arena(min(4 << 20, most_bytes), most_bytes)
        self._decoder = Decoder(plan, arena=arena)

    def read(self, fetched: Fetched, position: int, stop: int = NO_STOP) -> Iterator[StoredRecord | Malformed]:
        """Yield the records with position <= offset < stop in order, and a Malformed for each batch
        that cannot be read.
        """
        for piece in self._decoder.decode(fetched.data, position, stop=stop, aborted=fetched.aborted):
            if isinstance(piece, Malformed):
                yield piece
            elif len(piece):
                yield from self._read_piece(piece)

    def _read_piece(self, piece: Records) -> Iterator[StoredRecord]:
        key_at, key_size, at, size, _ = columns = [np.empty(len(piece), np.int64) for _ in range(5)]
        open_bodies(piece.buf, piece.body, piece.end, *columns)
        for row in range(len(piece)):
            found = {
                name: piece.buf[start : start + length].tobytes()
                for slot, name in enumerate(self._headers)
                if (start := int(piece.at[slot, row])) >= 0 and (length := int(piece.size[slot, row])) >= 0
            }
            yield StoredRecord(
                int(piece.offset[row]),
                int(piece.timestamp[row]),
                _cut(piece, key_at[row], key_size[row]),
                _cut(piece, at[row], size[row]),
                found,
            )


def _cut(piece: Records, at: np.int64, size: np.int64) -> bytes | None:
    return piece.buf[at : at + size].tobytes() if size >= 0 else None
