"""The chunk headers of one partition as arrays, so that the planner can ask a million chunks at
once.

A row is a chunk; rows are in offset order and do not overlap. Headers arrive in the order in which
they were written, and a later one always wins: a chunk that grew is written again under its first
offset, merged chunks are written as one, a log that was cut is summarised again. An older header
that a newer one overlaps is dropped as a whole.

A header is believed only as far as it was made from the current config (config_fingerprint.py). If
the subjects were different, other records belonged to the stream: then `might_contain` is True, and
`zone` and `subject_counts` are unknown. The same holds for a property that was not listed or had
another source.

Memory is bounded: some 100 bytes a chunk, its Bloom filter, 4 bytes for each of its counts by
subject, 17 or 33 for each zone. Beyond `bloom_budget` bytes of filters, the largest are folded to
half their size (bloom.py): then they rule out less, but still lose nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from overlay.arrays import AnyArray, Bytes, Doubles, Flags, Int32s, Ints, Structs, UInt16s, Words
from overlay.index.pending.counts import Choice, Counts
from overlay.kafka.log_position import LogPosition
from overlay.kernels import kernel
from overlay.ragged import Ragged
from overlay.subject import Pattern

from . import bloom
from .chunk_header import AddressCounts, Header
from .config_fingerprint import ConfigFingerprint
from .encode import BLOOM_AT, TERMS_AT, ZONES_AT, Block, encode, parse_values, read_indexed
from .murmur import hash128
from .terms import Term, as_hashes
from .zones import TYPES, Zone

BLOOM_BUDGET = 256 << 20

_COPIED = (
    "first_offset",
    "next_offset",
    "bytes",
    "min_time",
    "max_time",
    "records",
    "addressed",
    "epoch",
    "crc",
    "hashes",
)
_COLUMNS: dict[str, npt.DTypeLike] = {
    **dict.fromkeys(_COPIED, np.int64),
    "epoch": np.int32,
    "hashes": np.uint8,
    "exact": np.bool_,
    "current": np.bool_,
    "counted": np.bool_,
    "schema": np.int32,
}
_NULL, _VALUE, _KNOWN = 1, 2, 4
_ZONE_SIZE = 38
_COUNTED = 2


class Chunks:
    """The chunk headers of one partition. Not for two threads at once.

    The arrays that are properties have one item per chunk, and hold until the chunks change.
    """

    def __init__(self, config_fingerprint: ConfigFingerprint, *, bloom_budget: int = BLOOM_BUDGET) -> None:
        self._config_fingerprint, self._budget = config_fingerprint, bloom_budget
        self._first, self._end = 0, 0  # rows in use; the memory of those before is not freed yet
        self._columns: dict[str, AnyArray] = {name: np.empty(0, dtype) for name, dtype in _COLUMNS.items()}
        for name in config_fingerprint.zones:
            shape, dtype = (
                ((0, 2), np.uint64)
                if config_fingerprint.types[name] == "string"
                else ((0,), _find_storage(config_fingerprint, name))
            )
            self._columns |= {f"{side} {name}": np.empty(shape, dtype) for side in ("min", "max")}
            self._columns[f"zone {name}"] = np.empty(0, np.uint8)
        self._blooms = Ragged(np.uint8)
        self._counts = Counts()
        self._schemas: dict[tuple[int, ...], int] = {}

    def __len__(self) -> int:
        return self._end - self._first

    def _column(self, name: str) -> AnyArray:
        return self._columns[name][self._first : self._end]

    @property
    def first_offset(self) -> Ints:
        return self._column("first_offset")

    @property
    def next_offset(self) -> Ints:
        return self._column("next_offset")

    @property
    def records(self) -> Ints:
        """Committed records of each chunk, whether or not they have a subject in the stream."""
        return self._column("records")

    @property
    def addressed(self) -> Ints:
        """Number of records with a subject in the stream, by chunk. It counts by the current
        subjects only where `current` is set.
        """
        return self._column("addressed")

    def count_addresses(self, rows: int | None = None) -> AddressCounts:
        """Return what the first `rows` chunks (None: all) say of records without a subject. Chunks that are not `current`
        are left out.
        """
        now = self.current[:rows]
        lacking = np.where(now, self.records[:rows] - self.addressed[:rows], 0)
        at = np.flatnonzero(lacking)
        last = (int(self.first_offset[at[-1]]), int(self.next_offset[at[-1]])) if at.size else None
        return AddressCounts(int(self.records[:rows][now].sum()), int(lacking.sum()), last)

    @property
    def bytes(self) -> Ints:
        """Bytes of the batches of each chunk in the log, compressed."""
        return self._column("bytes")

    @property
    def min_time(self) -> Ints:
        """Smallest timestamp of each chunk in ms since 1970, -1 if unknown."""
        return self._column("min_time")

    @property
    def max_time(self) -> Ints:
        """Largest timestamp of each chunk in ms since 1970, -1 if unknown."""
        return self._column("max_time")

    @property
    def epoch(self) -> Int32s:
        """Leader epoch of the last batch of each chunk."""
        return self._column("epoch")

    @property
    def crc(self) -> Ints:
        """CRC of the last batch of each chunk, -1 if unknown."""
        return self._column("crc")

    @property
    def exact(self) -> Flags:
        """Whether no offset of each chunk was missing when it was sealed."""
        return self._column("exact")

    @property
    def current(self) -> Flags:
        """Whether each chunk was made with the current config of subjects and filter values."""
        return self._column("current")

    @property
    def made(self) -> Flags:
        """Whether each chunk was made from the whole current config: subjects, filter values, and
        all properties with terms or zones. Other chunks have to be made again.
        """
        made = self.current.copy()
        for name in self._config_fingerprint.terms:
            made &= self.covers(name)
        for name in self._config_fingerprint.zones:
            zone = self.zone(name)
            made &= zone.known if zone is not None else False
        return made

    @property
    def nbytes(self) -> int:
        """Return the bytes in memory, without the table of subjects."""
        return sum(column.nbytes for column in self._columns.values()) + self._blooms.nbytes + self._counts.nbytes

    def find(self, offset: int) -> int:
        """Return the row of the chunk whose offsets include this one, -1 if there is none."""
        row = int(np.searchsorted(self.first_offset, offset, side="right")) - 1
        return row if row >= 0 and offset < self.next_offset[row] else -1

    def log_position(self, row: int) -> LogPosition:
        """Return the next offset after a chunk, with leader epoch and CRC of the chunk's last batch."""
        return LogPosition(int(self.next_offset[row]), int(self.epoch[row]), int(self.crc[row]))

    def covers(self, name: str) -> Flags:
        """Return for each chunk whether its Bloom filter has the terms of property `name` as the
        property is declared now, for records of the stream's current subjects.
        """
        wanted = self._config_fingerprint.terms.get(name)
        has = np.array([wanted in schema for schema in self._schemas], np.bool_)
        return has[self._column("schema")] & self.current if has.any() else np.zeros(len(self), np.bool_)

    def might_contain(self, terms: Sequence[Term], among: Flags | None = None) -> Flags:
        """Return for each chunk whether it may contain all of the terms; False is certain. A term
        that a chunk's filter does not cover counts as contained. Chunks outside `among` are False
        without a test.
        """
        answer = np.ones(len(self), np.bool_) if among is None else among.copy()
        for property in dict.fromkeys(term.property for term in terms):
            known = self.covers(property) if property else self.current
            tested = answer & known
            hashes = as_hashes(*(term for term in terms if term.property == property))
            bloom.test(self._blooms.data, self._blooms.starts[self._first :], self._column("hashes"), hashes, tested)
            answer &= tested | ~known
        return answer

    def false_positives(self, among: Flags) -> Doubles:
        """Return the share of absent terms that each filter lets through, 0 to 1; 1 if there is no
        filter. Only the chunks `among` have an item in the result.
        """
        answer = np.ones(int(np.count_nonzero(among)))
        rows = np.flatnonzero(among)
        bloom.measure(self._blooms.data, self._blooms.starts[self._first :], self._column("hashes"), rows, answer)
        return answer

    def zone(self, name: str) -> Zone | None:
        """Return the zones (bounds and NULLs) of a property, one item per chunk, `known` where a
        chunk has one; None if no chunk has one of the property as it is declared now.
        """
        if name not in self._config_fingerprint.zones:
            return None
        flags = self._column(f"zone {name}")
        known = (flags & _KNOWN != 0) & self.current
        if not known.any():
            return None
        low, high = self._column(f"min {name}"), self._column(f"max {name}")
        return Zone(self._config_fingerprint.types[name], low, high, flags & _NULL != 0, flags & _VALUE != 0, known)

    @property
    def counted(self) -> Flags:
        """Whether the counts by subject of each chunk are known."""
        return self._column("counted")

    def subject_counts(self, patterns: Sequence[Pattern]) -> tuple[Ints, Flags]:
        """Return for each chunk how many records match one of the patterns, as counted at sealing,
        and whether that is known.
        """
        return self.count_subjects(Choice(patterns)), self.counted

    def count_subjects(self, choice: Choice, low: int = 0, high: int | None = None) -> Ints:
        """Return for each chunk low <= row < high how many records have a subject that `choice` has
        chosen; 0 if unknown. By default the chunks up to the last one.

        Use a `choice` with one Chunks object only: it remembers that object's subjects by number.
        """
        rows = self._first + low, self._end if high is None else self._first + high
        return self._counts.count(choice.learn(self._counts.subjects), *rows)

    def sum_subjects(self, choice: Choice, among: Flags, low: int, high: int) -> dict[str, int]:
        """Return how many records each chosen subject has in some of the chunks low <= row < high,
        as counted at sealing; only subjects that have some.

        `among`: one flag for each of these chunks. A chunk whose counts are unknown has none.
        """
        wanted = choice.learn(self._counts.subjects)
        return self._counts.sum(wanted, among, self._first + low, self._first + high)

    def list_subjects(self, choice: Choice, low: int, high: int) -> tuple[Ints, UInt16s, Sequence[str]]:
        """Return the chosen subjects of the chunks low <= row < high, as three parts: bounds [rows
        + 1], the subject numbers of all rows end to end, and all subjects by number.

        A chunk whose subjects are unknown has none.
        """
        subjects = self._counts.subjects
        return *self._counts.list(choice.learn(subjects), self._first + low, self._first + high), subjects

    def append(self, header: Header) -> None:
        """Add one header. Chunks that it overlaps are removed."""
        self.extend(parse_values([encode(header)[1]]), np.zeros(1, np.int64))

    def extend(self, block: Block, rows: Ints) -> None:
        """Add headers in the order of the index topic. Chunks that a later header overlaps are
        removed. `rows`: row numbers in `block`, all of this partition and without flaws.
        """
        if not rows.size:
            return
        heads = block.heads[rows]
        first, after = heads["first_offset"], heads["next_offset"]
        end = int(self.next_offset[-1]) if len(self) else 0
        in_order = bool((first[1:] >= after[:-1]).all())
        touching = bool((first[1:] == after[:-1]).all())
        if touching and first[0] < end <= after[-1]:
            self._truncate(int(np.searchsorted(self.next_offset, first[0], side="right")))
            end = 0
        self._add(block, rows, heads)
        if not in_order or first[0] < end:
            held = slice(self._first, self._end)
            kept = np.empty(len(self), np.int64)
            count = _settle(self._columns["first_offset"][held], self._columns["next_offset"][held], kept)
            self._take(kept[:count] + self._first)

    def truncate(self, offset: int) -> None:
        """Remove the chunks that end above `offset`, where the log was cut."""
        self._truncate(int(np.searchsorted(self.next_offset, offset, side="right")))

    def drop(self, offset: int) -> None:
        """Remove the chunks that end at or below `offset`, the log start now."""
        self._first += int(np.searchsorted(self.next_offset, offset, side="right"))
        if self._first > max(len(self), 1024):
            self._take(np.arange(self._first, self._end))

    def _truncate(self, row: int) -> None:
        self._end = self._first + row
        self._blooms.truncate(self._end)
        self._counts.truncate(self._end)

    def _take(self, kept: Ints) -> None:
        for name, column in self._columns.items():
            self._columns[name] = column[kept]
        self._blooms.take(kept)
        self._counts.take(kept)
        self._first, self._end = 0, kept.size

    def _add(self, block: Block, rows: Ints, heads: Structs) -> None:
        """Append headers after all rows, even if they are not the last in offset order. The caller
        then puts the rows in order.
        """
        begin, end = self._end, self._end + rows.size
        if end > self._columns["exact"].shape[0]:
            self._grow(end)
        self._end = end
        for name in _COPIED:
            self._column(name)[-rows.size :] = heads[name]
        new = slice(begin, end)
        current = heads["scope"] == self._config_fingerprint.subject
        self._columns["current"][new] = current
        self._columns["exact"][new] = heads["flags"] & 1 != 0
        self._columns["counted"][new] = self._counts.add(block, rows, current & (heads["flags"] & _COUNTED != 0))
        self._columns["schema"][new] = self._find_schemas(block, rows)
        for name, property in self._config_fingerprint.zones.items():
            self._add_zone(block, rows, name, property, new)
        sizes = heads["bloom"].astype(np.int64)
        _copy(block.buf, block.at[rows, BLOOM_AT], sizes, self._blooms.extend(sizes))
        while self._blooms.used > self._budget and self._fold():
            pass

    def _grow(self, rows: int) -> None:
        room = max(rows, self._end * 3 // 2)
        for name, column in self._columns.items():
            larger = np.empty((room, *column.shape[1:]), column.dtype)
            larger[: self._end] = column[: self._end]
            self._columns[name] = larger

    def _find_schemas(self, block: Block, rows: Ints) -> Int32s:
        """Return for each row a number that stands for the set of properties whose terms are in its
        filter. The number is the index of the set in `_schemas`, to which new sets are added.
        """
        prints = np.empty(rows.size, np.uint64)
        _fingerprint(block.buf, block.at[rows, TERMS_AT], block.heads["indexed"][rows].astype(np.int64), prints)
        _, examples, which = np.unique(prints, return_index=True, return_inverse=True)
        sets = [read_indexed(block, int(rows[example])) for example in examples]
        return np.array([self._schemas.setdefault(one, len(self._schemas)) for one in sets], np.int32)[which]

    def _add_zone(self, block: Block, rows: Ints, name: str, property: int, new: slice) -> None:
        type = self._config_fingerprint.types[name]
        raw = np.zeros((2, rows.size, 16), np.uint8)
        counts = block.heads["zones"][rows].astype(np.int64)
        flags = self._columns[f"zone {name}"][new]
        _find_zones(block.buf, block.at[rows, ZONES_AT], counts, property, TYPES.index(type), raw[0], raw[1], flags)
        for side, one in zip(("min", "max"), raw, strict=True):
            column = self._columns[f"{side} {name}"]
            little = (
                one[:, :8].copy().view(column.dtype.newbyteorder("<"))[:, 0] if type != "string" else one.view(">u8")
            )
            column[new] = little

    def _fold(self) -> bool:
        """Fold the largest filters to half their size, to save memory. Return False if all have
        minimum size already and nothing changed.
        """
        largest = int(np.diff(self._blooms.starts[: self._end + 1]).max(initial=0))
        if largest <= bloom.MIN_BYTES:
            return False
        bloom.fold_all(self._blooms.data, self._blooms.starts[: self._end + 1], largest)
        self._blooms.shrink()
        return True


def _find_storage(config_fingerprint: ConfigFingerprint, name: str) -> type[np.generic]:
    return np.float64 if config_fingerprint.types[name] == "double" else np.int64


@kernel
def _settle(first: Ints, after: Ints, kept: Ints) -> int:
    """Find the rows that remain if each row, in the order of writing, replaces the earlier ones
    that it overlaps. Write them to `kept` in offset order and return how many there are. `first`,
    `after`: first and next offset of each row.
    """
    count = 0
    for row in range(first.size):
        place = count
        while place > 0 and first[kept[place - 1]] >= first[row]:
            place -= 1
        beyond = place
        while beyond < count and first[kept[beyond]] < after[row]:
            beyond += 1
        while place > 0 and after[kept[place - 1]] > first[row]:
            place -= 1
        moved = count - beyond
        if place + 1 > beyond:
            for i in range(moved - 1, -1, -1):
                kept[place + 1 + i] = kept[beyond + i]
        else:
            for i in range(moved):
                kept[place + 1 + i] = kept[beyond + i]
        kept[place] = row
        count = place + 1 + moved
    return count


@kernel
def _copy(buf: Bytes, at: Ints, sizes: Ints, out: Bytes) -> None:
    put = 0
    for i in range(at.size):
        for j in range(sizes[i]):
            out[put + j] = buf[at[i] + j]
        put += sizes[i]


@kernel
def _fingerprint(buf: Bytes, at: Ints, counts: Ints, out: Words) -> None:
    for i in range(at.size):
        out[i], _ = hash128(buf, at[i], 4 * counts[i], np.uint64(0))


@kernel
def _find_zones(
    buf: Bytes, at: Ints, counts: Ints, property: int, type: int, low: Bytes, high: Bytes, flags: Bytes
) -> None:
    """Read the zone of one property from each header: its bounds into low[i] and high[i] (16 bytes
    each), its flags with _KNOWN into flags[i]. A header without the zone gets the flags 0.

    `at`: where the zones of each header begin in `buf`. `counts`: how many each has.
    """
    for i in range(at.size):
        flags[i] = 0
        for j in range(counts[i]):
            pos = at[i] + _ZONE_SIZE * j
            found = np.int64(0)
            for k in range(4):
                found |= np.int64(buf[pos + k]) << (8 * k)
            if found != property or buf[pos + 4] != type:
                continue
            flags[i] = buf[pos + 5] | np.uint8(_KNOWN)
            for k in range(16):
                low[i, k] = buf[pos + 6 + k]
                high[i, k] = buf[pos + 22 + k]
