"""The search in Avro values by a program, whose answers are written as JSON texts.

What. `extract` answers all wanted paths of each record's value in one pass, in the form in which
scan/json/search.py does. A path's answer is the place and size of a JSON text, so that all who read
such texts (columns, subjects, chunk headers) need not know of Avro. The texts are written behind the
slice's own bytes. MISSING, MALFORMED and UNDECODED mean the same as in JSON. A value is read no
further than its last wanted field, and each path is answered as if it were searched alone: what was
answered before a fault stays, and the paths behind it are MALFORMED. So a cut value answers each path
as the whole value does, or with MALFORMED.

How texts spell values:

| Avro                   | text                                                                      |
|------------------------|---------------------------------------------------------------------------|
| string, bytes, fixed   | a string of these bytes, with quotes and backslashes escaped              |
| enum                   | the symbol as a string; MALFORMED for a number that is no symbol's        |
| int, long              | digits                                                                    |
| timestamp, date        | digits: ms since 1970; finer parts are cut off towards the past           |
| float, double          | the number; `NaN` for what is not finite, which no property type reads    |
| decimal                | the number; `NaN` for one of more than 64 bits                            |
| boolean                | true or false; MALFORMED for a byte that is neither 1 nor 0               |
| null                   | MISSING                                                                   |
| record, array, map     | the brackets alone, which no property type reads                          |

Bounds. Every length is compared with what is left of the value before it is used. A block of items
has no more items than bytes. Blocks and routines that are open are counted, and at most DEEPEST may
be. So neither a broken value nor one made on purpose takes more than time in proportion to its size.
"""

from __future__ import annotations

import numpy as np

from overlay.arrays import Bytes, Int, Ints
from overlay.kernels import kernel
from overlay.scan.borrow import borrow
from overlay.scan.scalars.writing import (
    LEFT,
    MOST,
    spell_left,
    write_boolean,
    write_decimal,
    write_long,
    write_nan,
    write_real,
    write_text,
)
from overlay.scan.states import MALFORMED, MISSING, UNDECODED
from overlay.scan.values import FRAME, read_schema_id
from overlay.scan.varint import LOST
from overlay.scan.varint import read_long as read_varint

from .program import (
    ABSENT,
    AGAIN,
    BOOLEAN,
    CALL,
    CHOOSE,
    DECIMAL,
    DOUBLE,
    END,
    ENUM,
    FIXED,
    FLOAT,
    JUMP,
    LAST_ANSWER,
    LAST_PASSING,
    LONG,
    NUMBERS,
    OP,
    REPEAT,
    SKIP,
    TEXT,
    TIME,
    A,
    B,
    C,
    Program,
)  # fmt: skip

DEEPEST = 256
"""Most blocks of items and routines that are open at once. Behind a value that is nested more
deeply everything is MALFORMED.
"""
_LONG_BITS = 70  # ten bytes
_LARGEST = (1 << 63) - 1


def extract(buf: Bytes, at: Ints, size: Ints, value_slot: int, program: Program, low: int, high: int, end: int) -> None:
    """Write where the JSON text of each path begins (`at`) and how many bytes it has (`size`), for
    the records low:high. Both are [fields, records]; row `value_slot` has the place of the record's
    value, and is read. For a path without a text, the size is MISSING, MALFORMED or UNDECODED.

    The texts are written to `buf` from `end` on, where it has `program.find_room` bytes.
    """
    stack = np.empty(DEEPEST, np.int64)
    left = _extract(
        buf, at, size, value_slot, program.rows, program.ids, program.entries, program.is_framed, program.slots,
        program.symbols, program.bounds, stack, low, high, end,
    )  # fmt: skip
    if left:
        spell_left(buf, at, size, program.slots, low, high)


@kernel
def _extract(
    buf: Bytes, at: Ints, size: Ints, value_slot: Int, rows: Ints, ids: Ints, entries: Ints, is_framed: bool,
    slots: Ints, symbols: Bytes, bounds: Ints, stack: Ints, low: Int, high: Int, end: Int,
) -> Int:  # fmt: skip
    """Write the texts of all paths, their places and sizes, for the records low:high, as `extract`
    does. Return how many doubles have the size LEFT, for Python to write. `stack`: room for the
    blocks and routines that are open.
    """
    buf, at, size, rows, ids, entries = (
        borrow(buf),
        borrow(at),
        borrow(size),
        borrow(rows),
        borrow(ids),
        borrow(entries),
    )
    slots, symbols, bounds, stack = borrow(slots), borrow(symbols), borrow(bounds), borrow(stack)
    left: Int = np.int64(0)
    known: Int = np.int64(0)
    for row in range(low, high):
        pos = at[value_slot, row]
        length = size[value_slot, row]
        stop = pos + length
        if length < 0:
            _settle(slots, row, size, length)
            continue
        if is_framed:
            known = _find_schema(buf, pos, stop, ids, known)
            if known < 0:
                _settle(slots, row, size, known)
                known = np.int64(0)
                continue
            pos += FRAME
        # what the search does not reach is malformed
        _settle(slots, row, size, MALFORMED)
        end, more = _follow(buf, pos, stop, rows, entries[known], row, at, size, symbols, bounds, stack, end)
        left += more
    return left


@kernel
def _settle(slots: Ints, row: Int, size: Ints, answer: Int) -> None:
    """Write `answer` as the size of each path of record `row`."""
    for i in range(slots.size):
        size[slots[i], row] = answer


@kernel
def _find_schema(buf: Bytes, pos: Int, stop: Int, ids: Ints, known: Int) -> Int:
    """Return the number of the schema whose id is in front of the value, first looking at number
    `known`. UNDECODED if there is no such schema or the value is in another known format, MALFORMED
    if it has no id.
    """
    id = read_schema_id(buf, pos, stop)
    if id < 0 or (known < ids.size and ids[known] == id):
        return known if id >= 0 else id
    found = np.int64(np.searchsorted(ids, id))
    return found if found < ids.size and ids[found] == id else np.int64(UNDECODED)


@kernel
def _follow(
    buf: Bytes, pos: Int, stop: Int, rows: Ints, pc: Int, row: Int, at: Ints, size: Ints, symbols: Bytes, bounds: Ints,
    stack: Ints, end: Int,
) -> tuple[Int, Int]:  # fmt: skip
    """Follow the program from its row `pc` on over the value pos:stop of record `row`. Write the
    texts of the answers to `buf` from `end` on, and their places and sizes to `at` and `size`.
    Return (the position after the texts, how many doubles have the size LEFT).
    """
    left: Int = np.int64(0)
    depth: Int = np.int64(0)
    while pos <= stop:
        op, a = rows[np.uintp(pc), OP], rows[np.uintp(pc), A]
        if op <= LAST_PASSING:
            pos = _pass(buf, pos, stop, op, a)
            pc += 1
        elif op <= LAST_ANSWER:
            pos, after = _answer(buf, pos, stop, rows, pc, symbols, bounds, end)
            if pos <= stop:
                at[a, row] = end
                if after == LEFT:
                    size[a, row] = LEFT
                    left += 1
                    after = end + MOST
                else:
                    size[a, row] = after - end if after >= 0 else after
                end = max(end, after)
            pc += 1
        elif op == CHOOSE:
            branch, pos = _read(buf, pos, stop)
            if not 0 <= branch < a:
                break
            pc = rows[np.uintp(pc + 1 + branch), A]
        elif op == JUMP:
            pc = a
        elif op == END:
            break
        else:
            pc, pos, depth = _turn(buf, pos, stop, rows, pc, stack, depth)
    return end, left


@kernel(forceinline=True)
def _read(buf: Bytes, pos: Int, stop: Int) -> tuple[Int, Int]:
    """Read a zigzag varint at `pos`. Return (value, next position), or (0, LOST) if it passes `stop`
    or has more than ten bytes.
    """
    if pos < stop and buf[np.uintp(pos)] < 0x80:  # most are one byte
        raw = np.int64(buf[np.uintp(pos)])
        return (raw >> 1) ^ -(raw & 1), pos + 1
    return read_varint(buf, pos, stop, _LONG_BITS)


@kernel(forceinline=True)
def _measure(buf: Bytes, pos: Int, stop: Int) -> tuple[Int, Int]:
    """Read the size of a text at `pos`. Return (size, the position where the text begins), or (0,
    LOST) if the text passes `stop`.
    """
    length, pos = _read(buf, pos, stop)
    if length < 0 or length > stop - pos:
        return np.int64(0), np.int64(LOST)
    return length, pos


@kernel(forceinline=True)
def _pass(buf: Bytes, pos: Int, stop: Int, op: Int, count: Int) -> Int:
    """Return the position after `count` bytes, numbers or sized texts; LOST if they pass `stop`."""
    if op == SKIP:
        return pos + count if count <= stop - pos else np.int64(LOST)
    while count > 0 and pos <= stop:
        if op == NUMBERS:
            _, pos = _read(buf, pos, stop)
        else:
            length, pos = _measure(buf, pos, stop)
            pos += length
        count -= 1
    return pos


@kernel
def _turn(buf: Bytes, pos: Int, stop: Int, rows: Ints, pc: Int, stack: Ints, depth: Int) -> tuple[Int, Int, Int]:
    """Carry out the program's row `pc`, which enters or leaves a block of items or a routine. Return
    (the next row, the position, how many blocks and routines are open); LOST as the position if the
    value cannot be read on.

    stack[:depth]: the items that are left in each open block, and the row after the call of each
    open routine.
    """
    op, a = rows[np.uintp(pc), OP], rows[np.uintp(pc), A]
    if op == AGAIN:
        stack[depth - 1] -= 1
        return (a + 1, pos, depth) if stack[depth - 1] > 0 else (a, pos, depth - 1)
    if op not in (REPEAT, CALL):
        return stack[depth - 1], pos, depth - 1
    entry = pc + 1  # of a routine that is called, and of an item
    if op == REPEAT:
        entry, pos, count = _open_block(buf, pos, stop, rows, pc)
        if entry != pc + 1:
            return entry, pos, depth
        entry = count
    if depth >= stack.size:
        return pc, np.int64(LOST), depth
    stack[depth] = entry
    return (pc + 1 if op == REPEAT else a), pos, depth + 1


@kernel
def _open_block(buf: Bytes, pos: Int, stop: Int, rows: Ints, pc: Int) -> tuple[Int, Int, Int]:
    """Read the head of the next block of the array or map at the REPEAT row `pc`. Return (the next
    row, the position, the number of items). The next row is pc + 1 for the block's items, pc if the
    block was passed over as a whole, or the row behind the array. The number counts only for pc + 1.
    """
    count, pos = _read(buf, pos, stop)
    if count == 0 or pos > stop:
        return rows[np.uintp(pc), A], pos, count
    if count < 0:
        # a block that tells its size
        length, pos = _measure(buf, pos, stop)
        return pc, pos + length, count
    if rows[np.uintp(pc), B] == 1:
        return pc, pos, count
    # each item has a byte or more
    return pc + 1, pos if count <= stop - pos else np.int64(LOST), count


@kernel
def _answer(
    buf: Bytes, pos: Int, stop: Int, rows: Ints, pc: Int, symbols: Bytes, bounds: Ints, end: Int
) -> tuple[Int, Int]:
    """Read the value at `pos` as the program's row `pc` says, and write its text to `buf` from `end`
    on. Return (the position after the value, LOST if it cannot be read; the position after the
    text).

    The second is MISSING or MALFORMED if there is no text, and LEFT if Python has to write it.
    """
    op, b, c = rows[np.uintp(pc), OP], rows[np.uintp(pc), B], rows[np.uintp(pc), C]
    if op in (TEXT, FIXED):
        length = b
        if op == TEXT:
            length, pos = _measure(buf, pos, stop)
        if length > stop - pos:
            return np.int64(LOST), end
        return pos + length, write_text(buf, pos, pos + length, end)
    if op in (LONG, TIME, ENUM):
        number, pos = _read(buf, pos, stop)
        if pos > stop:
            return pos, end
        if op == ENUM:
            return pos, _write_symbol(number, b, c, symbols, bounds, buf, end)
        return pos, write_long(number, buf, end) if op == LONG else _write_time(number, b, c, buf, end)
    if op in (DOUBLE, FLOAT, BOOLEAN):
        length = np.int64(8) if op == DOUBLE else np.int64(4) if op == FLOAT else np.int64(1)
        if length > stop - pos:
            return np.int64(LOST), end
        return pos + length, _write_plain(buf, pos, op, end)
    if op == DECIMAL:
        length = c
        if c < 0:
            length, pos = _measure(buf, pos, stop)
        if length > stop - pos:
            return np.int64(LOST), end
        return pos + length, _write_unscaled(buf, pos, pos + length, b, end)
    if op == ABSENT:
        return pos, np.int64(MISSING)
    buf[np.uintp(end)] = b
    buf[np.uintp(end + 1)] = b + 2  # the closing bracket is two further in ASCII
    return pos, end + 2


@kernel
def _write_time(number: Int, each: Int, parts: Int, buf: Bytes, at: Int) -> Int:
    """Write a time as ms since 1970 to `buf` from `at` on, and return the position after it: `number`
    divided by `parts`, rounded down, times `each`. MALFORMED if that is no long.
    """
    whole, most = number // parts, _LARGEST // each
    return write_long(whole * each, buf, at) if -most <= whole <= most else np.int64(MALFORMED)


@kernel
def _write_symbol(number: Int, first: Int, count: Int, symbols: Bytes, bounds: Ints, buf: Bytes, at: Int) -> Int:
    """Write the symbol `number` of an enum to `buf` from `at` on, and return the position after it;
    MALFORMED if the enum has no such symbol. Its `count` symbols begin at number `first` in
    `symbols`.
    """
    if not 0 <= number < count:
        return np.int64(MALFORMED)
    begin, after = bounds[first + number], bounds[first + number + 1]
    for i in range(after - begin):
        buf[np.uintp(at + i)] = symbols[np.uintp(begin + i)]
    end: Int = at + after - begin
    return end


@kernel
def _write_plain(buf: Bytes, pos: Int, op: Int, at: Int) -> Int:
    """Write the boolean, float or double whose bytes begin at `pos` to `buf` from `at` on. Return
    the position after the text, LEFT for a float or double that Python has to write, MALFORMED for
    a byte that is no boolean.
    """
    if op == BOOLEAN:
        truth = np.int64(buf[np.uintp(pos)])
        return write_boolean(truth, buf, at) if truth <= 1 else np.int64(MALFORMED)
    return write_real(buf, pos, 8 if op == DOUBLE else 4, at)


@kernel
def _write_unscaled(buf: Bytes, pos: Int, stop: Int, scale: Int, at: Int) -> Int:
    """Write a decimal to `buf` from `at` on, and return the position after it; `NaN` for one of more
    than 64 bits. `scale`: its digits after the point. Its unscaled value is pos:stop, in two's
    complement with the most significant byte first.
    """
    minus = pos < stop and buf[np.uintp(pos)] >= 0x80
    filler = 0xFF if minus else 0
    while stop - pos > 8 and buf[np.uintp(pos)] == filler:
        pos += 1
    if stop - pos > 8:
        return write_nan(buf, at)
    raw = np.uint64(0xFFFFFFFFFFFFFFFF) if minus else np.uint64(0)
    for i in range(pos, stop):
        raw = raw << np.uint64(8) | np.uint64(buf[np.uintp(i)])
    if minus != (raw >> np.uint64(63) != np.uint64(0)):
        return write_nan(buf, at)
    return write_decimal(minus, ~raw + np.uint64(1) if minus else raw, -scale, buf, at)
