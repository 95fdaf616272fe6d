"""Record slices that are kept: copies of selected rows of a decoded slice, whose buffer is reused."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from overlay.arrays import Bytes, Ints
from overlay.kernels import kernel
from overlay.scan.decode import Records
from overlay.subject.dictionary import Codes, Texts

from .addressing import Addressed

_NO_FIELDS: Ints = np.empty((0, 0), np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class RecordSlice:
    """Some records of one partition in offset order, with stream sequences and subjects.

    It owns its memory, so it may be kept and shared. `codes`: for each record the number of its
    subject in `texts`, which has only subjects of these records (after `join` one may be there
    twice). `sequences`: the stream sequence of each record, int64, ascending.
    """

    records: Records
    codes: Codes
    texts: Texts
    partition: int
    sequences: Ints

    def __len__(self) -> int:
        return self.sequences.size

    @property
    def size(self) -> int:
        """Bytes of memory that it takes."""
        return self.records.buf.size + self.texts.text.size + 44 * len(self)

    def measure(self, rows: Ints) -> Ints:
        """Return how many bytes each of these rows (row numbers) counts for pace and max_bytes:
        those of its subject, and of key, value and headers as they are encoded in the log.
        """
        bounds = self.texts.bounds
        codes = self.codes[rows]
        return self.records.end[rows] - self.records.body[rows] + bounds[codes + 1] - bounds[codes]


def keep(slice_: Addressed, rows: Ints, sequences: Ints) -> RecordSlice:
    """Return a copy of these rows that outlives the decoded slice. `rows`: row numbers, ascending,
    each of a record with a subject. `sequences`: the stream sequence of each of `rows`, ascending;
    it is kept, not copied.
    """
    source = slice_.records
    sizes = source.end[rows] - source.body[rows]
    end = np.cumsum(sizes)
    body = end - sizes
    buf = np.empty(int(end[-1]) if end.size else 0, np.uint8)
    _gather(source.buf, source.body[rows], body, end, buf)
    texts, codes = _shrink(slice_.texts, slice_.codes[rows])
    records = _place(source, buf, source.offset[rows], source.timestamp[rows], body, end)
    return RecordSlice(records, codes, texts, slice_.partition, sequences)


def join(first: RecordSlice, second: RecordSlice) -> RecordSlice:
    """Return a new slice with the records of both, which are of one partition. All offsets and
    sequences of `second` must be higher than those of `first`; that is not checked.
    """
    one, two = first.records, second.records
    at, code = one.buf.size, first.texts.bounds.size - 1
    records = _place(
        two,
        np.concatenate((one.buf, two.buf)),
        np.concatenate((one.offset, two.offset)),
        np.concatenate((one.timestamp, two.timestamp)),
        np.concatenate((one.body, two.body + at)),
        np.concatenate((one.end, two.end + at)),
    )
    bounds = np.concatenate((first.texts.bounds, second.texts.bounds[1:] + first.texts.bounds[-1]))
    merged = Texts(np.concatenate((first.texts.text, second.texts.text)), bounds)
    texts, codes = _shrink(merged, np.concatenate((first.codes, second.codes + np.int32(code))))
    return RecordSlice(records, codes, texts, first.partition, np.concatenate((first.sequences, second.sequences)))


def _place(like: Records, buf: Bytes, offset: Ints, timestamp: Ints, body: Ints, end: Ints) -> Records:
    return replace(
        like, buf=buf, offset=offset, timestamp=timestamp, body=body, end=end, at=_NO_FIELDS, size=_NO_FIELDS,
        next_offset=int(offset[-1]) + 1 if offset.size else 0,
    )  # fmt: skip


def _shrink(texts: Texts, codes: Codes) -> tuple[Texts, Codes]:
    """Return those of `texts` that occur in `codes`, and `codes` renumbered to them (int32).

    A dictionary has the subjects of the whole topic, a slice only a few of them.
    """
    used, own = np.unique(codes, return_inverse=True)
    sizes = texts.bounds[used + 1] - texts.bounds[used]
    bounds = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
    text = np.empty(int(bounds[-1]), np.uint8)
    _gather(texts.text, texts.bounds[used], bounds[:-1], bounds[1:], text)
    return Texts(text, bounds), own.astype(np.int32)


@kernel
def _gather(buf: Bytes, first: Ints, at: Ints, end: Ints, out: Bytes) -> None:
    for i in range(first.size):
        size = end[i] - at[i]
        target, source = out[at[i] : at[i] + size], buf[first[i] : first[i] + size]
        for k in range(size):
            target[k] = source[k]
