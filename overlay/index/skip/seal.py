"""Sealing: the slices that the scan of a partition yields become chunk headers.

Where a chunk ends. After the first record batch with which it has `chunk_records` committed records
or `chunk_bytes` bytes of the log. Chunks never split a batch, since a batch is the least that can
be fetched, and they cover everything between records: control batches, aborted records, gaps. Only
a batch that cannot be read is left out, so that every reader of that part of the log meets it,
whatever the reader searches for. Nothing at or past the last stable offset is sealed, because the
fetcher does not deliver it.

Age. When a chunk has held records for `chunk_age`, its header is written as it is, and the chunk
keeps growing. The next header begins at the same offset, has the same key in the index topic and
replaces the first one. So a quiet topic is indexed within seconds and still ends with full chunks,
whose filters were made for exactly their terms. Joining filters later (merge.py) would rule out
less.

Cost. A pass over the codes and timestamps of a slice, some nanoseconds a record. The work per
subject is done once per chunk, for subjects that occur. For properties see value_cache.py.
"""

from __future__ import annotations

import numpy as np

from overlay.arrays import Int32s, Ints
from overlay.kernels import kernel
from overlay.match import Addressed
from overlay.scan import Malformed
from overlay.scan.header import Batches

from . import bloom
from .chunk_header import Header
from .contents import Contents, Vocabulary
from .subject_counts import SubjectCounts
from .term_set import TermSet

_NS_PER_MS = 1_000_000


class Sealer:
    """Makes the chunk headers of one partition, from offset `position` on. Not for two threads at
    once.
    """

    def __init__(self, contents: Contents, topic: str, partition: int, position: int) -> None:
        self.position = position
        """Offset at which the next slice begins."""
        self._contents, self._topic, self._partition = contents, topic, partition
        self._draft = _Draft(contents, position, SubjectCounts(), TermSet(contents.limit))

    def add(self, piece: Addressed | Malformed, batches: Batches, now: int) -> list[Header]:
        """Add the next slice of decoded records to the growing chunk, and return the headers of the
        chunks that it fills. A batch that cannot be read (Malformed) ends the growing chunk before
        it; then the result is what `flush` returns.

        `batches`: those of the fetch that the slice is from, as scan.header.split finds them.
        `now`: ms since 1970, for `age`. Slices must be passed in order, without gaps, as soon as
        they arrive, and must have been decoded with contents.fields.
        """
        if isinstance(piece, Malformed):
            return self._pass_over(piece)
        offsets, after = piece.records.offset, piece.records.next_offset
        ends, sizes = (np.empty(batches.size, np.int64) for _ in range(2))
        # separate columns: numba takes far longer to recognise an array of records than this kernel
        # runs
        spans = batches["base_offset"], batches["last_offset"], batches["at"], batches["end"]
        low, high, is_whole = _measure(*spans, self.position, after, offsets, ends, sizes)
        batches, ends, sizes = batches[low:high], ends[low:high], sizes[low:high]
        vocabulary = self._contents.vocabulary(piece.dictionary)
        full = []
        row, first = 0, 0
        while (last := self._find_end(ends, sizes, row, first)) < batches.size:
            self._draft.add(piece, vocabulary, row, int(ends[last]), batches[first : last + 1], now)
            full.append(self._draft.seal(self._topic, self._partition))
            row, first = int(ends[last]), last + 1
            self._draft = self._draft.begin(int(batches[last]["last_offset"]) + 1)
        self._draft.add(piece, vocabulary, row, len(piece.records), batches[first:], now)
        self._draft.is_whole = is_whole
        self.position = after
        return full

    def _find_end(self, ends: Ints, sizes: Ints, row: int, first: int) -> int:
        """Return the index, in `ends` and `sizes`, of the batch with which the growing chunk is
        full; their length if none fills it. `ends`, `sizes`: the slice's records and bytes up to
        the end of each batch. The chunk takes its records from `row` on and batches from `first` on.
        """
        index, draft = self._contents.index, self._draft
        before = int(sizes[first - 1]) if first else 0
        by_records = int(ends.searchsorted(row + index.chunk_records - draft.records))
        by_bytes = int(sizes.searchsorted(before + index.chunk_bytes - draft.bytes))
        return max(min(by_records, by_bytes), first)

    @property
    def has_more(self) -> bool:
        """Whether the growing chunk has records that no returned header covers."""
        return self._draft.since is not None

    def age(self, now: int) -> list[Header]:
        """Return the header of the growing chunk, in a list, if its oldest record that no returned
        header covers came chunk_age ago or earlier; otherwise an empty list, also while only a part
        of the last batch was added. The chunk goes on growing. `now`: ms since 1970.
        """
        since = self._draft.since
        if since is None or now - since < self._contents.index.chunk_age // _NS_PER_MS:
            return []
        return self.flush()

    def flush(self) -> list[Header]:
        """Return the header of the growing chunk if it has records that no returned header covers,
        in a list; otherwise an empty list, also while only a part of the last batch was added. The
        chunk goes on growing; its next header replaces this one.
        """
        if not self._draft.records or not self._draft.is_whole or self._draft.since is None:
            return []
        self._draft.since = None
        return [self._draft.seal(self._topic, self._partition)]

    def _pass_over(self, piece: Malformed) -> list[Header]:
        """End the growing chunk before a batch that cannot be read, and begin a new one after it.
        Return what `flush` does for the ended one.
        """
        sealed = self.flush()
        self.position = max(piece.next_offset, self.position)
        self._draft = self._draft.begin(self.position)
        return sealed


class _Draft:
    """The growing chunk. `subject_counts` and `terms` are handed on from chunk to chunk, to reuse
    their memory.
    """

    def __init__(self, contents: Contents, first_offset: int, subject_counts: SubjectCounts, terms: TermSet) -> None:
        self.records = self.bytes = 0
        self.next_offset = first_offset
        self.is_whole = True
        """Whether it ends at the end of a batch."""
        self.since: int | None = None
        """Arrival of the first record that no returned header covers, in ms since 1970; None if
        there is none.
        """
        self._contents, self._first_offset = contents, first_offset
        self._subject_counts, self._terms = subject_counts, terms
        self._exact = True
        self._epoch = self._crc = -1
        self._extents = contents.properties.begin()

    def begin(self, first_offset: int) -> _Draft:
        """Return the draft of the next chunk, from `first_offset` on. It takes over the memory, so
        this draft must not be used any more.
        """
        self._subject_counts.clear()
        self._terms.clear()
        return _Draft(self._contents, first_offset, self._subject_counts, self._terms)

    def add(self, piece: Addressed, vocabulary: Vocabulary, low: int, high: int, batches: Batches, now: int) -> None:
        """Add records low:high of a slice, and `batches`: those of the fetch that end within the
        chunk and were not added yet. `now`: when the records arrived, ms since 1970.
        """
        if high > low:
            self.since = now if self.since is None else self.since
            self.records += high - low
            codes, times = piece.codes[low:high], piece.records.timestamp[low:high]
            self._subject_counts.add(codes, times, vocabulary, self._terms)
            self._contents.add_values(piece, low, high, self._terms)
            self._contents.properties.add(piece, low, high, self._extents, self._terms)
        if batches.size:
            self._add_batches(batches)

    def _add_batches(self, batches: Batches) -> None:
        base, last_offset = batches["base_offset"], batches["last_offset"]
        size, has_all = _sum(base, last_offset, batches["at"], batches["end"], batches["count"], self.next_offset)
        last = batches[-1]
        self.bytes += size
        self._exact = self._exact and has_all
        self.next_offset = int(last["last_offset"]) + 1
        self._epoch, self._crc = int(last["leader_epoch"]), int(last["crc"])

    def seal(self, topic: str, partition: int) -> Header:
        """Return the header of all records and batches added so far. More may be added afterwards."""
        contents = self._contents
        places = contents.config_fingerprint.zones
        self._subject_counts.put(self._terms)
        return Header(
            topic, partition, self._first_offset, self.next_offset, self.records, self._subject_counts.addressed, self.bytes,
            *self._subject_counts.times, self._epoch, self._crc, self._exact, contents.config_fingerprint.subject,
            tuple(sorted(contents.config_fingerprint.terms.values())),
            bloom.make(self._terms.hashes, contents.index.bloom_bytes),
            self._subject_counts.count(),
            {places[name]: zone for name, zone in contents.properties.find_zones(self._extents).items()},
        )  # fmt: skip


@kernel
def _measure(
    base: Ints, last: Ints, at: Ints, end: Ints, position: int, after: int, offsets: Ints, ends: Ints, sizes: Ints
) -> tuple[int, int, bool]:
    """Find the batches that end at offsets from `position` to `after` - 1. Return the number of the
    first one, that after the last one, and whether no batch is cut by `after`.

    Write to `ends`, at the number of each of these batches, how many of the slice's records (with
    `offsets`) there are up to its end, and to `sizes` the bytes in the log from the first of these
    batches to its end.
    """
    low = 0
    while low < last.size and last[low] < position:
        low += 1
    row, size, high = 0, 0, low
    while high < last.size and last[high] < after:
        while row < offsets.size and offsets[row] <= last[high]:
            row += 1
        size += end[high] - at[high]
        ends[high], sizes[high] = row, size
        high += 1
    return low, high, high == last.size or base[high] >= after


@kernel
def _sum(base: Ints, last: Ints, at: Ints, end: Ints, count: Int32s, position: int) -> tuple[int, bool]:
    """Return the bytes of consecutive batches, and whether no offset is missing from `position` to
    the end of the last one, as compaction would cause. Control records and aborted ones are not
    missing. A batch that begins below `position` counts with all its bytes. Without batches:
    (0, True).
    """
    size, has_all = 0, True
    for i in range(base.size):
        size += end[i] - at[i]
        has_all = has_all and base[i] <= position and count[i] == last[i] - base[i] + 1
        position = last[i] + 1
    return size, has_all
