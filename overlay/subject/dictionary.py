"""Subjects as codes: every record gets a small integer, and every distinct subject is built once.

What. A rule's subject depends on a few fields of the record. The kernel looks up each record's
tuple of field bytes in a hash table and writes the tuple's number. A new tuple goes through
`SubjectRule.build` once and gets the code of its subject. Two tuples can give one subject (a JSON
string may be spelled in several ways), so there are two steps: record → tuple → subject.

Why. A topic has far fewer subjects than records. A decision per subject (is it in the stream, which
consumers want it) costs nothing per record, and Python sees a subject once.

Bounds. A topic whose subjects never repeat would fill memory. Once it has `limit` tuples, or
LIMIT_BYTES bytes of them, the dictionary starts empty at the next `encode`, under a new
`generation`. A caller that keeps something per code must drop it when the generation changes. Codes
are dense from 0; records without a subject get -1 - reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from overlay.arrays import Bool, Bytes, Int, Int32s, Ints, Words
from overlay.kernels import kernel

from .rule import SubjectRule
from .values import Unaddressed

Codes = Int32s

REASONS = tuple(Unaddressed)
"""Code -1 - i means that a record has no subject because of REASONS[i]."""

LIMIT_BYTES = 64 << 20
"""Most bytes of fields that one generation stores."""
_EMPTY = -1
_STORED_ROW = 4  # bytes before each stored field: its size
_GROUP = 8
_LONG = np.uint64(0xFF << 56)


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts in UTF-8 end to end, as arrays for kernels: number i is text[bounds[i]:bounds[i+1]]. In
    a Dictionary, number i is the subject of code i.
    """

    text: Bytes
    bounds: Ints

    @property
    def longest(self) -> int:
        """The bytes of the longest text; 0 if there are no texts."""
        return int(np.diff(self.bounds).max(initial=0))

    def split(self) -> list[bytes]:
        """Return the UTF-8 bytes of each text, in order."""
        whole, bounds = self.text.tobytes(), self.bounds.tolist()
        return [whole[first:end] for first, end in pairwise(bounds)]


class Dictionary:
    """Subject codes for one rule and one topic (and partition, if the rule names it). Not for two
    threads at once.

    `is_wanted(subject)`: whether the subject is one of the stream's; others become
    Unaddressed.OUTSIDE. `limit`: once it has this many distinct tuples of fields (or LIMIT_BYTES
    bytes of them), the next `encode` empties it first.
    """

    def __init__(
        self,
        rule: SubjectRule,
        topic: str,
        partition: int,
        is_wanted: Callable[[str], bool],
        *,
        limit: int = 200_000,
    ) -> None:
        self.generation = 0
        self._rule, self._topic, self._partition = rule, topic, partition
        self._is_wanted, self._limit = is_wanted, limit
        self._clear()

    def _clear(self) -> None:
        self.subjects: list[str] = []
        """The subject of each code."""
        self._codes: dict[str, int] = {}
        self._tuples = 0
        self._table = np.full(1 << 12, _EMPTY, np.int64)
        self._keys = np.empty((1 << 11, 2), np.uint64)
        self._stored_at = np.zeros((1 << 11) + 1, np.int64)
        self._stored = np.empty(1 << 16, np.uint8)
        self._code_of = np.empty(1 << 11, np.int32)
        self._texts = Texts(np.empty(0, np.uint8), np.zeros(1, np.int64))

    @property
    def texts(self) -> Texts:
        """Return the subjects of all codes of this generation, by code, as arrays for kernels."""
        known = self._texts.bounds.size - 1
        if known < len(self.subjects):
            fresh = [subject.encode() for subject in self.subjects[known:]]
            ends = self._texts.bounds[-1] + np.cumsum([len(text) for text in fresh])
            text = np.concatenate((self._texts.text, np.frombuffer(b"".join(fresh), np.uint8)))
            self._texts = Texts(text, np.concatenate((self._texts.bounds, ends)))
        return self._texts

    @property
    def is_full(self) -> bool:
        """Whether the next `encode` empties the dictionary first."""
        return self._tuples >= self._limit or bool(self._stored_at[self._tuples] >= LIMIT_BYTES)

    def encode(self, buf: Bytes, at: Ints, size: Ints) -> Codes:
        """Return the code of each record's subject, int32, one per record; -1 - i if it has none
        because of REASONS[i]. `at`, `size`: position and size in `buf` of each field's bytes, as
        the scan found them, [rule.fields, records]; a negative size means absent or null.

        All codes of one call belong to one generation. If the dictionary is full, it is emptied
        first, and `generation` is raised: codes of earlier calls are then invalid.
        """
        if self.is_full:
            self.generation += 1
            self._clear()
        tuples = np.empty(at.shape[1], np.int32)
        done = 0
        while done < tuples.size:
            known = self._tuples
            done, self._tuples = _intern(
                buf, at, size, done, self._table, self._keys, self._stored_at, self._stored, known, tuples
            )
            for number in range(known, self._tuples):
                self._code_of[number] = self._code(number)
            if done < tuples.size:
                self._grow(int(size[:, done].clip(0).sum()))
        return self._code_of[tuples]

    def _code(self, number: int) -> int:
        """Return the code of the subject that the stored tuple `number` makes; -1 - i if it makes
        none in the stream because of REASONS[i]. A subject that is new is given the next code.
        """
        subject = self._rule.build(self._read(number), self._topic, self._partition)
        if isinstance(subject, Unaddressed):
            return -1 - REASONS.index(subject)
        code = self._codes.get(subject)
        if code is None:
            if not self._is_wanted(subject):
                return -1 - REASONS.index(Unaddressed.OUTSIDE)
            code = self._codes[subject] = len(self.subjects)
            self.subjects.append(subject)
        return code

    def _read(self, number: int) -> list[bytes | None]:
        """Return the bytes of each field of the stored tuple `number`; None for one that is absent or null."""
        raw = self._stored[self._stored_at[number] : self._stored_at[number + 1]].tobytes()
        values: list[bytes | None] = []
        at = 0
        while at < len(raw):
            size = int.from_bytes(raw[at : at + _STORED_ROW], "little", signed=True)
            at += _STORED_ROW
            values.append(None if size < 0 else raw[at : at + size])
            at += max(size, 0)
        return values

    def _grow(self, room: int) -> None:
        """Make room for the next tuple in each array that is full. `room`: bytes of its fields."""
        if (self._tuples + 1) * 2 > self._table.size:
            self._table = np.full(self._table.size * 2, _EMPTY, np.int64)
            _rehash(self._table, self._keys, self._tuples)
        if self._tuples >= self._keys.shape[0]:
            self._keys = np.resize(self._keys, (self._keys.shape[0] * 2, 2))
            self._code_of = np.resize(self._code_of, self._code_of.size * 2)
            self._stored_at = np.resize(self._stored_at, self._keys.shape[0] + 1)
        needed = int(self._stored_at[self._tuples]) + room + _STORED_ROW * len(self._rule.fields)
        if needed > self._stored.size:
            self._stored = np.resize(self._stored, max(needed, self._stored.size * 2))


@kernel(inline="always")
def _mix(state: np.uint64, word: np.uint64) -> np.uint64:
    state = (state ^ word) * np.uint64(0x9E3779B97F4A7C15)
    return state ^ (state >> np.uint64(29))


@kernel
def _digest(buf: Bytes, at: Ints, size: Ints, row: Int) -> np.uint64:
    """Return a hash of the tuple of fields of record `row`: eight bytes at a time, sizes included so
    that ("ab", "c") differs from ("a", "bc"). `buf`, `at`, `size`: as in Dictionary.encode.
    """
    state = np.uint64(0x243F6A8885A308D3)
    for f in range(at.shape[0]):
        state = _mix(state, np.uint64(size[f, row]))
        pos = at[f, row]
        end = pos + size[f, row]
        while pos < end:
            word = np.uint64(0)
            for i in range(min(_GROUP, end - pos)):
                word = (word << np.uint64(8)) | np.uint64(buf[pos + i])
            state = _mix(state, word)
            pos += _GROUP
    return state


@kernel(inline="always")
def _key(buf: Bytes, at: Ints, size: Ints, row: Int) -> tuple[np.uint64, np.uint64]:
    """Return two words that identify the tuple of fields of record `row`: (first, second). `buf`,
    `at`, `size`: as in Dictionary.encode.

    A short tuple is its own key: size and bytes of each field, at most 15 bytes, and their number
    in the top byte of the second word. So equal keys mean equal tuples, without a comparison. Of a
    longer tuple the first word is a hash, and the second is _LONG.
    """
    first, second, filled = np.uint64(0), np.uint64(0), 0
    for f in range(at.shape[0]):
        length = size[f, row]
        filled += 1 + max(length, 0)
        if filled > 15:
            return _digest(buf, at, size, row), _LONG
        pos = at[f, row]
        for i in range(max(length, 0) + 1):
            byte = np.uint64(buf[np.uintp(pos + i - 1)]) if i else np.uint64(length & 0xFF)
            second = (second << np.uint64(8)) | (first >> np.uint64(56))
            first = (first << np.uint64(8)) | byte
    return first, second | (np.uint64(filled) << np.uint64(56))


@kernel
def _is_stored(buf: Bytes, at: Ints, size: Ints, row: Int, stored: Bytes, pos: Int) -> Bool:
    """Return whether the tuple that `_store` put at stored[pos:] equals that of record `row`."""
    for f in range(at.shape[0]):
        length = size[f, row]
        for i in range(_STORED_ROW):
            if stored[pos + i] != np.uint8((length >> (8 * i)) & 0xFF):
                return False
        pos += _STORED_ROW
        first = at[f, row]
        for i in range(length):
            if stored[pos + i] != buf[first + i]:
                return False
        pos += max(length, 0)
    return True


@kernel
def _store(buf: Bytes, at: Ints, size: Ints, row: int, stored: Bytes, pos: int) -> int:
    """Copy sizes and bytes of the tuple of record `row` to stored[pos:]. Return the position after
    it; -1 if there is no room, and then a part of it may be written.
    """
    for f in range(at.shape[0]):
        length = size[f, row]
        if pos + _STORED_ROW + max(length, 0) > stored.size:
            return -1
        for i in range(_STORED_ROW):
            stored[pos + i] = np.uint8((length >> (8 * i)) & 0xFF)
        pos += _STORED_ROW
        first = at[f, row]
        for i in range(length):
            stored[pos + i] = buf[first + i]
        pos += max(length, 0)
    return pos


@kernel
def _intern(
    buf: Bytes, at: Ints, size: Ints, row: int, table: Ints, keys: Words, stored_at: Ints, stored: Bytes, tuples: int,
    out: Int32s,
) -> tuple[int, int]:  # fmt: skip
    """Write to out[i] the number of record i's tuple of fields, for each record from `row` on, and
    store tuples that are new. Return (the row to continue at, how many tuples are stored now).

    `tuples`: how many are stored before. `table`: hash table of their numbers, -1 for a free slot.
    `keys`: the two words of `_key` by number. `stored_at`: by number, where the tuple begins in
    `stored`, and the end of the last. All but `buf`, `at` and `size` are changed.

    Stops early at a record whose new tuple has no room. The caller grows the full array and calls
    again.
    """
    mask = table.size - 1
    while row < out.size:
        first, second = _key(buf, at, size, row)
        slot = np.int64(_mix(first, second) >> np.uint64(20)) & mask
        number = table[slot]
        while number >= 0:
            same = keys[number, 0] == first and keys[number, 1] == second
            if same and (second != _LONG or _is_stored(buf, at, size, row, stored, stored_at[number])):
                break
            slot = (slot + 1) & mask
            number = table[slot]
        if number < 0:
            if (tuples + 1) * 2 > table.size or tuples >= keys.shape[0]:
                return row, tuples
            end = _store(buf, at, size, row, stored, stored_at[tuples])
            if end < 0:
                return row, tuples
            stored_at[tuples + 1] = end
            keys[tuples, 0], keys[tuples, 1] = first, second
            table[slot] = tuples
            number = tuples
            tuples += 1
        out[row] = number
        row += 1
    return row, tuples


@kernel
def _rehash(table: Ints, keys: Words, tuples: Int) -> None:
    mask = table.size - 1
    for number in range(tuples):
        slot = np.int64(_mix(keys[number, 0], keys[number, 1]) >> np.uint64(20)) & mask
        while table[slot] >= 0:
            slot = (slot + 1) & mask
        table[slot] = number
