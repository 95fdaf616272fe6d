"""The runs of a batch in few bytes: what scan tasks note of the order of their records, and what the driver makes of it.

A fine ledger gives sequences to the partitions in turns of a few records, so a batch may have as many runs as records.
They are kept in pieces: some thousand runs as differences, each column in the smallest integers that hold it, compressed.
The driver opens a few pieces at a time, about one for each partition, and what it finds is in such pieces again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from overlay.arrays import Ints

COLUMNS = 3
"""Columns of runs: the place of the first record, and how many deliveries and wanted records a run has."""
PIECE = 8_192
"""Runs in a piece at most."""

_CODEC = "lz4_raw"
_TYPES = (np.uint8, np.uint16, np.uint32, np.int64)
_HEAD = struct.Struct("<qqqq")


def press(columns: Ints) -> bytes:
    """Return the columns, int64 [columns, rows] of numbers that are not negative, in few bytes."""
    tops = columns.max(axis=1).tolist() if columns.shape[1] else [0] * len(columns)
    codes = [sum(top > np.iinfo(each).max for each in _TYPES[:-1]) for top in tops]
    whole = b"".join(column.astype(_TYPES[code]).tobytes() for column, code in zip(columns, codes, strict=True))
    compressed: bytes = pa.compress(whole, codec=_CODEC, asbytes=True)
    return bytes(codes) + compressed


def open_pressed(data: bytes | memoryview, columns: int, rows: int) -> Ints:
    """Return what `press` was given, with so many columns and rows."""
    types = [_TYPES[code] for code in data[:columns]]
    size = sum(rows * np.dtype(type).itemsize for type in types)
    whole, found, at = (
        pa.decompress(memoryview(data)[columns:], size, codec=_CODEC),
        np.empty((columns, rows), np.int64),
        0,
    )
    for row, type in enumerate(types):
        column: Any = np.frombuffer(whole, type, rows, at)
        found[row] = column
        at += column.nbytes
    return found


class Piece(NamedTuple):
    """Some runs of a task, with ascending places. `first`, `last`: the lowest and the highest place. `size`: how many runs."""

    first: int
    last: int
    size: int
    data: bytes | memoryview

    def open(self) -> Ints:
        """Return the runs: int64 [COLUMNS, runs]."""
        runs = open_pressed(self.data, COLUMNS, self.size)
        runs[0] = self.first + np.cumsum(runs[0])
        return runs


class Runs:
    """The runs that a scan task finds for one consumer, in the order in which it reads."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._parts: list[Ints] = []
        """What is in no piece yet."""
        self._waiting = 0
        """How many runs these are."""
        self._shift: int | None = None
        """Place less offset in the last run; None before the first one."""

    def begin(self) -> None:
        """Go on with another range, whose first record begins a run."""
        self._shift = None

    def add(self, places: Ints, offsets: Ints, delivered: Ints) -> None:
        """Add the wanted records of a slice (int64, ascending): their places in the order, as `find_places` returns them,
        and their offsets. `delivered`: indices of those that are delivered, ascending."""
        if not places.size:
            return
        shifts = places - offsets
        is_first = np.concatenate(([shifts[0] != self._shift], shifts[1:] != shifts[:-1]))
        self._shift = int(shifts[-1])
        starts = np.flatnonzero(is_first)
        # what comes before the first run of the slice goes on the last run before
        bounds = starts if is_first[0] else np.concatenate(([0], starts))
        wanted = np.diff(np.append(bounds, places.size))
        ends = np.searchsorted(delivered, np.append(bounds, places.size))
        runs = np.stack((places[bounds], np.diff(ends), wanted))
        if not is_first[0]:
            self._parts[-1][1:, -1] += runs[1:, 0]
            runs = runs[:, 1:]
        if runs.shape[1]:
            self._parts.append(runs)
            self._waiting += runs.shape[1]
        if self._waiting > 2 * PIECE:
            self._press(self._waiting - 1)  # the last run may go on

    def _press(self, count: int) -> None:
        """Put the first `count` of the waiting runs into pieces."""
        whole = np.concatenate(self._parts, axis=1)
        descents = (np.flatnonzero(whole[0, 1:count] < whole[0, : count - 1]) + 1).tolist()
        for start, stop in zip([0, *descents], [*descents, count], strict=True):
            for at in range(start, stop, PIECE):
                self._pieces.append(_make_piece(whole[:, at : min(stop, at + PIECE)]))
        self._parts = [whole[:, count:].copy()]
        self._waiting -= count

    def to_bytes(self) -> bytes:
        """Return the runs as `read_pieces` reads them. Nothing can be added after this."""
        if self._waiting:
            self._press(self._waiting)
        return b"".join(self._pieces)


def _make_piece(runs: Ints) -> bytes:
    places = runs[0]
    data = press(np.stack((np.diff(places, prepend=places[0]), *runs[1:])))
    return _HEAD.pack(int(places[0]), int(places[-1]), places.size, len(data)) + data


def read_pieces(data: bytes) -> Iterator[Piece]:
    """Yield the pieces in the bytes of `Runs.to_bytes`, which refer to these bytes."""
    view, at = memoryview(data), 0
    while at < len(data):
        first, last, count, size = _HEAD.unpack_from(view, at)
        at += _HEAD.size
        yield Piece(first, last, count, view[at : at + size])
        at += size


@dataclass(frozen=True, slots=True, eq=False)
class Merge:
    """Where the deliveries of one task for one consumer are among all that a batch has for it.

    `firsts`: int64 [4, pieces], of the first run in each piece: its first rank and how many wanted records the task has
    passed before it, among those of the task and among those of the batch. `counts`: how many runs each piece has, int64
    [pieces]. `data`: of each piece, deliveries and wanted records of each run, and by how much both numbers of the batch
    rise with it.
    """

    firsts: Ints = field(repr=False)
    counts: Ints = field(repr=False)
    data: tuple[bytes, ...] = field(repr=False)

    def place(self, ranks: Ints, passed: Ints) -> tuple[Ints, Ints]:
        """Return the ranks of deliveries among all of the batch, and how many wanted records the batch has passed with each,
        from what the task says of both (int64; `passed` is negative where that is not known)."""
        opened = dict[int, Ints]()
        # a rank belongs to the last run that begins there: those before it have no deliveries
        found = self._move(0, ranks, opened)
        return found, np.where(passed < 0, passed, self._move(1, passed - 1, opened) + 1)

    def _move(self, row: int, numbers: Ints, opened: dict[int, Ints]) -> Ints:
        """Return these numbers of the task as those of the batch. `row`: 0 for ranks, 1 for wanted records. `opened`: the
        pieces that were opened before, by number; others are added."""
        moved = np.empty_like(numbers)
        pieces = np.maximum(0, np.searchsorted(self.firsts[row], numbers, side="right") - 1)
        for at in np.unique(pieces).tolist():
            if at not in opened:
                opened[at] = self._open(at)
            own, whole = opened[at][row], opened[at][row + 2]
            mine = pieces == at
            runs = np.maximum(0, np.searchsorted(own, numbers[mine], side="right") - 1)
            moved[mine] = numbers[mine] - own[runs] + whole[runs]
        return moved

    def _open(self, at: int) -> Ints:
        """Return the numbers that `firsts` has, for each run of a piece: int64 [4, runs]."""
        found = open_pressed(self.data[at], 4, int(self.counts[at]))
        sums = np.cumsum(found, axis=1)
        sums[:2] -= found[:2]
        return self.firsts[:, at : at + 1] + sums


def merge_runs(tasks: Mapping[int, bytes]) -> dict[int, Merge]:
    """Return the merges of the tasks that find anything for a consumer, by number; none if their order is that of the
    sequences. `tasks`: the runs of each (`Runs.to_bytes`), by number."""
    streams, last, is_ordered = list[_Stream](), -1, True
    for number in sorted(tasks):
        for piece in read_pieces(tasks[number]):
            is_ordered &= piece.first >= last
            if not streams or streams[-1].task != number or piece.first < last:
                streams.append(_Stream(len(streams), number))
            streams[-1].pieces.append(piece)
            last = piece.last
    if is_ordered:
        return {}
    _merge(streams)
    merges = dict[int, Merge]()
    for number in dict.fromkeys(each.task for each in streams):
        merges[number] = _join([each for each in streams if each.task == number])
    return merges


@dataclass(slots=True)
class _Stream:
    """Runs of a task with ascending places. `number`: of runs with equal places those of a lower number come first.
    `runs`: of the piece that is open, of which those before `at` are merged. `sums`: deliveries and wanted records of all
    that are merged. `firsts`, `counts`, `data`: as in Merge, but from the beginning of the stream.
    """

    number: int
    task: int
    pieces: list[Piece] = field(default_factory=list)
    runs: Ints = field(default_factory=lambda: np.empty((COLUMNS, 0), np.int64))
    at: int = 0
    sums: Ints = field(default_factory=lambda: np.zeros(2, np.int64))
    firsts: list[Ints] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)
    _merged: list[Ints] = field(default_factory=list)
    """What is merged and in no piece of `data` yet: deliveries and wanted records of runs, and how many of both the batch
    has before each, int64 [4, runs]."""
    _waiting: int = 0
    """How many runs these are."""

    @property
    def begin(self) -> tuple[int, int]:
        return self.pieces[0].first, self.number

    @property
    def end(self) -> tuple[int, int]:
        """Where the open piece ends in the order of the batch."""
        return int(self.runs[0, -1]), self.number

    def open(self) -> bool:
        """Open the next piece if none is left of the last one. Return whether there is anything."""
        if self.at == self.runs.shape[1]:
            if not self.pieces:
                return False
            self.runs, self.at = self.pieces.pop(0).open(), 0
        return True

    def take(self, place: int, number: int) -> Ints:
        """Return the runs up to the end of another stream's open piece, int64 [COLUMNS, runs]."""
        side = "right" if self.number <= number else "left"
        stop = int(np.searchsorted(self.runs[0], place, side=side))  # type: ignore[call-overload]
        taken, self.at = self.runs[:, self.at : stop], max(self.at, stop)
        return taken

    def keep(self, runs: Ints, before: Ints) -> None:
        """Keep runs that are merged. `before`: how many deliveries and wanted records the batch has before each, int64
        [2, runs]."""
        if runs.shape[1]:
            self._merged.append(np.concatenate((runs[1:], before)))
            self._waiting += runs.shape[1]
        if self._waiting >= PIECE:
            self.press()

    def press(self) -> None:
        """Put what was kept into a piece."""
        if not self._merged:
            return
        merged = np.concatenate(self._merged, axis=1)
        self._merged.clear()
        self._waiting = 0
        self.firsts.append(np.concatenate((self.sums, merged[2:, 0])))
        self.counts.append(merged.shape[1])
        self.sums = self.sums + merged[:2].sum(axis=1)
        merged[2:] = np.diff(merged[2:], prepend=merged[2:, :1])
        self.data.append(press(merged))


def _merge(streams: Sequence[_Stream]) -> None:
    """Merge all runs of the streams, in the order of their places."""
    waiting = sorted(streams, key=lambda each: each.begin, reverse=True)
    active, total = list[_Stream](), np.zeros((2, 1), np.int64)
    while waiting or active:
        if not active:
            active = [waiting.pop()]
            active[0].open()
        end = min(each.end for each in active)
        while waiting and waiting[-1].begin <= end:
            active.append(waiting.pop())
            active[-1].open()
            end = min(end, active[-1].end)
        active.sort(key=lambda each: each.number)
        parts = [each.take(*end) for each in active]
        whole = np.concatenate(parts, axis=1)
        order = np.argsort(whole[0], kind="stable")
        counts = whole[1:, order]
        before = np.empty_like(counts)
        before[:, order] = total + np.cumsum(counts, axis=1) - counts
        total = total + counts.sum(axis=1, keepdims=True)
        at = 0
        for each, part in zip(active, parts, strict=True):
            each.keep(part, before[:, at : at + part.shape[1]])
            at += part.shape[1]
        active = [each for each in active if each.open()]
    for each in streams:
        each.press()


def _join(streams: Sequence[_Stream]) -> Merge:
    """Return the merge of a task from its streams, in the order in which it reads them."""
    firsts, base = list[Ints](), np.zeros(2, np.int64)
    for each in streams:
        firsts += (np.concatenate((own[:2] + base, own[2:])) for own in each.firsts)
        base = base + each.sums
    counts = np.array([count for each in streams for count in each.counts], np.int64)
    return Merge(np.stack(firsts, axis=1), counts, tuple(data for each in streams for data in each.data))
