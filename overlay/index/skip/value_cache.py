"""The value cache: reads properties in place, and remembers what was computed for recent values.

What. A kernel goes over the bytes of values without making a column of them. It adds their terms to
a chunk's set and widens the chunk's bounds (zones.py). Values repeat, within a chunk and between
chunks. So for each of the last few thousand values it keeps the results, in a line of 64 bytes:

    words 0-3  the value, zeros behind it; the last byte is its size + 1
    words 4-5  the hash of its term
    word 6     the number that it spells, as 64 bits
    word 7     the number of the chunk that had it last, times 4, plus what the value is (UNREAD to
               LEFT)

A value that its chunk has already is skipped after one look. A value of an earlier chunk is added
without being read again. Values of more than SHORT bytes are read each time, since long values
seldom repeat. When the lines are used up, all of them are cleared.

Memory access. While a slice is decoded, some megabytes pass through the CPU cache and displace the
value cache. A loop that branches on each loaded line waits for each of these loads. So values are
processed in blocks, by short loops, one of which only touches the lines: the processor then has
many loads in flight at once. That halves the time.

LEFT are values that are not read here: doubles with so many digits that Python has to read them,
and JSON strings with escapes, which need memory. properties.py reads them as columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from overlay.arrays import Bytes, Int, Int32s, Ints, UInt16s, Words
from overlay.kernels import kernel
from overlay.scan.decode import Records
from overlay.scan.scalars.numbers import read_boolean, read_double, read_long
from overlay.scan.scalars.times import read_timestamp
from overlay.scan.states import GOOD, HARD
from overlay.scan.texts import is_utf8
from overlay.scan.words import find_quote, load
from overlay.subject.dictionary import Codes

from .murmur import hash128, hash_short
from .term_set import TermSet, find_room, insert
from .terms import Hashes, canonical_double
from .zones import DOUBLES, INTEGERS, KEY_TEXT, KEYS, make_key, widen

TYPES = ("string", "binary", "long", "double", "boolean", "timestamp")
_STRING, _BINARY, _LONG, _DOUBLE, _BOOLEAN, _TIMESTAMP = range(6)
_ORDERS = np.array([KEYS, KEYS, INTEGERS, DOUBLES, INTEGERS, INTEGERS])
_ORDERS.setflags(write=False)

SHORT = 31
"""Bytes of the longest value that has a line; enough for any timestamp of RFC 3339."""
_UNREAD, _NULL, _READ, _LEFT = range(4)

_BITS = 13  # at most half of the places are used, so that a free one is near
_LINE = np.uintp(8)
_HASH, _NUMBER, _STATE = np.uintp(4), np.uintp(6), np.uintp(7)
_ONE, _TWO, _THREE = np.uintp(1), np.uintp(2), np.uintp(3)
_KIND = np.uint64(3)
_BLOCK = 256

_ODD, _OTHER = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
_MASKS.setflags(write=False)

# Columns of a property's settings, and of a chunk's words after the bounds.
_SLOT, _TYPE, _IS_JSON, _LEAST, _HAS_TERMS, _HAS_ZONE = range(6)
_CHUNK, HAS_NULL, HAS_LEFT = 5, 6, 7

_NO_TABLE, _NO_HASHES = np.empty(0, np.int32), np.empty((0, 2), np.uint64)


class Wanted(NamedTuple):
    """A property to read: its type and format, and what its values are used for."""

    type: str
    is_json: bool
    least: int
    """Bytes that a value needs; a shorter one counts as NULL."""
    seed: int
    """Seed of its terms."""
    has_terms: bool
    has_zone: bool


class ValueCache:
    """The reader of some properties for the chunks of a stream. It keeps what it computed for
    recent values of all chunks. Not for two threads at once.
    """

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self._about = np.array(
            [(-1, TYPES.index(each.type), each.is_json, each.least, each.has_terms, each.has_zone) for each in wanted],
            np.int64,
        ).reshape(-1, 6)
        self._seeds = np.array([each.seed for each in wanted], np.uint64)
        self._places = np.zeros((len(wanted), 1 << _BITS), np.uint16)
        self._lines = np.zeros((len(wanted), (1 << _BITS - 1) * int(_LINE)), np.uint64)
        self._chunks = 0

    def begin(self) -> Words:
        """Begin a new chunk, to which no value has been added yet. Return its words, [properties,
        8], for `take` to fill: the bounds as zones.widen has them, and flags.

        The flags at HAS_NULL and HAS_LEFT say whether there was a NULL, and a value that was not
        read here (LEFT).
        """
        self._chunks += 1
        words = np.zeros((len(self._about), 8), np.uint64)
        words[:, _CHUNK] = self._chunks
        return words

    def take(self, records: Records, rows: slice, codes: Codes, slots: Ints, words: Words, terms: TermSet) -> None:
        """Read the properties of those of the records `rows` that have a code >= 0. Their terms are
        added to `terms` (unless it is full), and `words` (see `begin`) get their bounds and flags.

        `codes`: subject codes, one per record of `rows`. `slots`: the row of each property among
        the fields of the records, -1 for one that is always LEFT.
        """
        self._about[:, _SLOT] = slots
        arrays = (
            records.buf, records.at[:, rows], records.size[:, rows], codes,
            self._about, self._seeds, self._places, self._lines, words,
        )  # fmt: skip
        count = len(self._about) * codes.size
        done = terms.fill(_take, count, *arrays)
        if done < count:
            _take(*arrays, done, _NO_TABLE, _NO_HASHES, 0)


@kernel
def _take(
    buf: Bytes, at: Ints, size: Ints, codes: Codes, about: Ints, seeds: Words, places: UInt16s, lines: Words,
    words: Words, row: int, table: Int32s, hashes: Hashes, count: int,
) -> tuple[int, int]:  # fmt: skip
    """Read the values of all properties, one property after the other, as a kernel of TermSet.fill.
    `row`, where to begin: the property's number times the number of records, plus the record's
    number. Without a table (size 0) no terms are added. Return the row to continue at, and the
    number of terms in the table.
    """
    keys, rows = np.empty((_BLOCK, 5), np.uint64), np.empty(_BLOCK, np.int64)
    records = codes.size
    while row < about.shape[0] * records and (table.size == 0 or find_room(table, count) > 0):
        number, first = row // records, row % records
        this, slot = about[number], about[number, _SLOT]
        if slot < 0:
            words[number, HAS_LEFT] = 1
            row += records
            continue
        last = first + min(_BLOCK, records - first, find_room(table, count) if table.size else _BLOCK)
        count = _take_block(
            buf, at[slot], size[slot], codes, this, seeds[number], places[number], lines[number], words[number],
            first, last, keys, rows, table, hashes, count,
        )  # fmt: skip
        row += last - first
    return row, count


@kernel
def _take_block(
    buf: Bytes, at: Ints, size: Ints, codes: Codes, this: Ints, seed: np.uint64, places: UInt16s, lines: Words,
    words: Words, first: int, last: int, keys: Words, rows: Ints, table: Int32s, hashes: Hashes, count: int,
) -> int:  # fmt: skip
    """Read one property of the records first:last. Add the values to the table of terms and to
    `words`: bounds, HAS_NULL and HAS_LEFT. `this`: the property's settings, by column (_SLOT to
    _HAS_ZONE).

    The hash set `table` must have room for their terms. Return how many terms it has then: `count`
    and the new ones.
    """
    if lines[0] + np.uint64(_BLOCK) >= np.uint64(lines.size) // _LINE:
        _forget(places, lines)
    # keep only the values that are new to the chunk, then touch what the loop below will load
    values = _list_values(buf, at, size, codes, this[_LEAST], first, last, words, keys, rows)
    fresh = _sift(values, places, lines, words, keys, rows)
    _touch_terms(fresh, keys, lines, table)
    type, is_json, has_terms = this[_TYPE], this[_IS_JSON] != 0, this[_HAS_TERMS] != 0
    for i in range(fresh):
        pos, length, line = at[rows[i]], size[rows[i]], np.uintp(keys[i, 0])
        kind = lines[line + _STATE] & _KIND
        # a long value has no line: line 0 is scratch, so it is read each time
        if kind == _UNREAD or line == 0:
            kind = np.uint64(_read(buf, pos, length, type, is_json, has_terms, seed, lines, line))
            lines[line + _STATE] |= kind
        if kind == _NULL:
            words[HAS_NULL] = 1
        elif kind == _LEFT:
            words[HAS_LEFT] = 1
        else:
            if has_terms and table.size:
                _, count = insert(table, hashes, count, lines[line + _HASH], lines[line + _HASH + _ONE])
            if this[_HAS_ZONE]:
                high, low = lines[line + _NUMBER], np.uint64(0)
                if type == _STRING:
                    high, low = _make_key(buf, pos + is_json, length - 2 * is_json)
                widen(words, high, low, _ORDERS[type])
    return count


@kernel
def _forget(places: UInt16s, lines: Words) -> None:
    for place in range(places.size):
        places[place] = 0
    lines[0] = 0


@kernel
def _list_values(
    buf: Bytes, at: Ints, size: Ints, codes: Codes, least: int, first: int, last: int, words: Words, keys: Words,
    rows: Ints,
) -> int:  # fmt: skip
    """List those of the records first:last that have a subject and a value: their numbers in
    `rows`; in `keys` the four words of the value (zeros if it is long) and its place in the hash
    table. For a missing value, or one shorter than `least` bytes, HAS_NULL is set in `words`. Return
    how many are listed.
    """
    count = 0
    for i in range(first, last):
        if codes[i] < 0:
            continue
        if size[i] < least:
            words[HAS_NULL] = 1
            continue
        a = b = c = d = np.uint64(0)
        # each branch loads all its words: with a common load before both, all of them were always
        # loaded
        if size[i] <= 16:
            a, b = _load(buf, at[i], size[i])
            d = np.uint64(size[i] + 1) << np.uint64(56)
        elif size[i] <= SHORT:
            a, b = _load(buf, at[i], 16)
            c, d = _load(buf, at[i] + 16, size[i] - 16)
            d |= np.uint64(size[i] + 1) << np.uint64(56)
        mixed = (a ^ c) * _ODD ^ (b ^ d) * _OTHER
        keys[count, 0], keys[count, 1], keys[count, 2], keys[count, 3] = a, b, c, d
        keys[count, 4] = (mixed ^ (mixed >> np.uint64(32))) * _ODD >> np.uint64(64 - _BITS)
        rows[count] = i
        count += 1
    return count


@kernel
def _sift(values: int, places: UInt16s, lines: Words, words: Words, keys: Words, rows: Ints) -> int:
    """Keep those of the listed records (`values` many) whose value is new to the chunk or too long
    for a line: their numbers in `rows`, and in keys[:, 0] where the value's line begins in `lines`,
    0 for a long value. Return how many are kept.
    """
    touched = np.uint64(0)
    for i in range(values):
        touched ^= lines[np.uintp(places[np.uintp(keys[i, 4])]) * _LINE + _STATE]
    lines[1] = touched  # stored, or the compiler would drop the loads
    chunk = words[_CHUNK] << np.uint64(2)
    fresh = 0
    for i in range(values):
        line = np.uintp(0)
        if keys[i, 3]:
            line = _find(keys[i, 0], keys[i, 1], keys[i, 2], keys[i, 3], np.uintp(keys[i, 4]), places, lines)
        state = lines[line + _STATE]
        if line and state & ~_KIND == chunk:
            continue
        lines[line + _STATE] = chunk | (state & _KIND)
        rows[fresh], keys[fresh, 0] = rows[i], line
        fresh += 1
    return fresh


@kernel(forceinline=True)
def _find(
    a: np.uint64, b: np.uint64, c: np.uint64, d: np.uint64, place: np.uint64, places: UInt16s, lines: Words
) -> np.uint64:
    """Return where the line of a value begins in `lines`. A value without a line gets a new one,
    with the state _UNREAD. The caller ensures that there is room for it: nothing checks that here.

    a to d: the words of the value. `place`: where the search in the hash table `places` begins.
    """
    while places[place]:
        line = np.uintp(places[place]) * _LINE
        # one branch instead of four, since it nearly always goes the same way
        if ((lines[line] ^ a) | (lines[line + _ONE] ^ b) | (lines[line + _TWO] ^ c) | (lines[line + _THREE] ^ d)) == 0:
            return line
        place = (place + _ONE) & np.uintp((1 << _BITS) - 1)
    lines[0] += np.uint64(1)
    places[place] = lines[0]
    line = np.uintp(lines[0]) * _LINE
    lines[line], lines[line + _ONE], lines[line + _TWO], lines[line + _THREE] = a, b, c, d
    lines[line + _STATE] = _UNREAD
    return line


@kernel
def _touch_terms(fresh: int, keys: Words, lines: Words, table: Int32s) -> None:
    touched = np.int32(0)
    if table.size:
        for i in range(fresh):
            touched ^= table[np.uintp(lines[np.uintp(keys[i, 0]) + _HASH]) & np.uintp(table.size - 1)]
    lines[1] = touched


@kernel(forceinline=True)
def _load(buf: Bytes, pos: Int, size: Int) -> tuple[np.uint64, np.uint64]:
    """Return the bytes buf[pos : pos + size], at most 16, as two little-endian words, padded with
    zeros.
    """
    if pos + 16 <= buf.size:
        first, second = load(buf, pos), load(buf, pos + 8)
        return first & _MASKS[min(size, 8)], second & _MASKS[max(size - 8, 0)]
    first = second = np.uint64(0)
    for i in range(size):
        byte = np.uint64(buf[np.uintp(pos + i)]) << np.uint64(8 * (i & 7))
        if i < 8:
            first |= byte
        else:
            second |= byte
    return first, second


@kernel
def _make_key(buf: Bytes, pos: Int, size: Int) -> tuple[np.uint64, np.uint64]:
    first, second = _load(buf, pos, min(size, KEY_TEXT))
    return make_key(first, second, size)


@kernel
def _read(
    buf: Bytes, pos: Int, size: Int, type: Int, is_json: bool, has_terms: bool, seed: np.uint64, lines: Words,
    line: np.uint64,
) -> Int:  # fmt: skip
    """Read the value buf[pos : pos + size] as TYPES[type], and write it into its line, which begins
    at lines[line]: the hash of its term at _HASH, with `seed`, if `has_terms`; its number at
    _NUMBER, unless it is a text. `is_json`: the bytes are JSON, so a text has quotes.

    Return _NULL if it is not readable as its type, _LEFT if it has to be read elsewhere
    (properties.py), else _READ.
    """
    if type <= _BINARY:  # texts
        if is_json:
            if size < 2 or buf[np.uintp(pos)] != 0x22 or buf[np.uintp(pos + size - 1)] != 0x22:
                return _NULL
            pos, size = pos + 1, size - 2
            if find_quote(buf, pos, pos + size) < pos + size:
                return _LEFT
        if type == _STRING and not is_utf8(buf, pos, pos + size):
            return _NULL
        if has_terms:
            lines[line + _HASH], lines[line + _HASH + _ONE] = hash128(buf, pos, size, seed)
        return _READ
    # numbers: the term is hashed from eight bytes, of a boolean from one
    state, number = _read_number(buf, pos, pos + size, type, is_json)
    if state != GOOD:
        return _LEFT if state == HARD else _NULL
    lines[line + _NUMBER] = number
    if has_terms:
        term = canonical_double(np.uint64(number).view(np.float64)) if type == _DOUBLE else number
        hash = hash_short(term, np.uint64(0), 1 if type == _BOOLEAN else 8, seed)
        lines[line + _HASH], lines[line + _HASH + _ONE] = hash
    return _READ


@kernel
def _read_number(buf: Bytes, pos: Int, end: Int, type: Int, is_json: bool) -> tuple[Int, np.uint64]:
    """Return (state, 64 bits of the number that buf[pos:end] spells). The state is GOOD, HARD if
    the number has to be read elsewhere, or another one if this is no such number.
    """
    if type == _LONG:
        number, state = read_long(buf, pos, end, is_json)
        return state, np.uint64(number)
    if type == _DOUBLE:
        double, state = read_double(buf, pos, end, is_json)
        return state, np.float64(double).view(np.uint64)
    if type == _BOOLEAN:
        truth, state = read_boolean(buf, pos, end, is_json)
        return state, np.uint64(truth)
    number, state = read_timestamp(buf, pos, end, is_json)
    return state, np.uint64(number)
