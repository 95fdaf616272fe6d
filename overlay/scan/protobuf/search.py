"""The search in Protobuf messages by a program, whose answers are written as JSON texts.

What. `extract` answers all wanted paths of each record's value in one pass, in the form in which
scan/json/search.py does: a path's answer is the place and size of a JSON text, behind the slice's own
bytes. The rules are Protobuf's. Of a field that stands twice the last counts, and of a message that
stands twice all fields together; a field of a oneof takes the others away; a field with another wire
type than its own is unknown, and unknown fields are passed over. So a message is read to its end.

A field that a message lacks is MISSING if the message can lack it: fields of proto2, those that are
`optional` or in a oneof, and messages. So is a repeated field without items. Any other field has its
default value then. A path that leads through a message that is not there is MISSING.

A fault makes all paths MALFORMED that lead through the message that it is in. UNDECODED is the answer
for a schema or a message type that is not known.

How texts spell values: numbers as digits, a bool as true or false, a string and bytes as a string of
these bytes, an enum as its symbol, or as its number if it has none. A Timestamp is its ms since 1970,
with finer parts cut off. What is not finite is `NaN`, which no property type reads.

Bounds. Every length is compared with what is left of the message around it. A message that no path
leads into is passed over, so only as many are open as the longest path has steps.
"""

from __future__ import annotations

import numpy as np

from overlay.arrays import Bool, Bytes, Int, Ints
from overlay.kernels import kernel
from overlay.scan.borrow import borrow
from overlay.scan.scalars.writing import (
    LEFT,
    MOST,
    spell_left,
    write_boolean,
    write_decimal,
    write_long,
    write_real,
    write_text,
)
from overlay.scan.states import MALFORMED, MISSING, UNDECODED
from overlay.scan.values import FRAME, read_schema_id
from overlay.scan.varint import LOST

from .program import (
    AFTER,
    FIRST,
    FIXED,
    FIXED_SIGNED,
    GROUP,
    IMPLICIT,
    LAST,
    NODE,
    NUMBER,
    OP,
    OTHER,
    REAL,
    ROWS,
    SIGNED,
    SIGNED_32,
    SLOT,
    SYMBOL,
    SYMBOLS,
    SYMBOLS_END,
    TEXT,
    TIME,
    TRUTH,
    UNSIGNED,
    UNSIGNED_32,
    WIRE,
    ZIGZAG,
    Program,
)

DEFAULT = -9
"""Size of a field that has its default value."""
_MOST_INDEXES = 100
_MOST_SECONDS = 9_000_000_000_000_000  # whose ms are a long
_LOW = np.uint64(0xFFFFFFFF)
_INT32_SIGN = 1 << 31


def extract(buf: Bytes, at: Ints, size: Ints, value_slot: int, program: Program, low: int, high: int, end: int) -> None:
    """Write where the JSON text of each path begins (`at`) and how many bytes it has (`size`), for
    the records low:high. Both are [fields, records]; row `value_slot` has the place of the record's
    value, and is read. For a path without a text, the size is MISSING, MALFORMED or UNDECODED.

    The texts are written to `buf` from `end` on, where it has `program.find_room` bytes.
    """
    count = program.nodes.shape[0]
    marks, stack = np.full((2, count), -1, np.int64), np.empty((count, 3), np.int64)
    left = _extract(
        buf, at, size, value_slot, program.nodes, program.rows, program.ids, program.roots, program.places,
        program.bounds, program.is_framed, program.slots, program.numbers, program.symbols, program.symbol_bounds,
        marks, stack, low, high, end,
    )  # fmt: skip
    if left:
        spell_left(buf, at, size, program.slots, low, high)


@kernel
def _extract(
    buf: Bytes, at: Ints, size: Ints, value_slot: Int, nodes: Ints, rows: Ints, ids: Ints, roots: Ints, places: Ints,
    bounds: Ints, is_framed: bool, slots: Ints, numbers: Ints, symbols: Bytes, symbol_bounds: Ints, marks: Ints,
    stack: Ints, low: Int, high: Int, end: Int,
) -> Int:  # fmt: skip
    """Write the texts of all paths, their places and sizes, for the records low:high, as `extract`
    does. Return how many doubles have the size LEFT, for Python to write.

    marks[0]: for each node the last record in which its message was met. marks[1]: the last record in
    which it had a fault. Both are -1 initially. `stack`: room for the messages that are open.
    """
    buf, at, size, nodes, rows = borrow(buf), borrow(at), borrow(size), borrow(nodes), borrow(rows)
    ids, roots, places, bounds, slots = borrow(ids), borrow(roots), borrow(places), borrow(bounds), borrow(slots)
    numbers, symbols, symbol_bounds = borrow(numbers), borrow(symbols), borrow(symbol_bounds)
    marks, stack = borrow(marks), borrow(stack)
    left: Int = np.int64(0)
    for row in range(low, high):
        pos = at[value_slot, row]
        length = size[value_slot, row]
        stop = pos + length
        type: Int = np.int64(0)
        if length < 0:
            type = length
        elif is_framed:
            type, pos = _find_type(buf, pos, stop, ids, places, bounds)
        for i in range(slots.size):
            size[slots[i], row] = MISSING if type >= 0 else type
        if type >= 0:
            _search(buf, pos, stop, nodes, rows, roots[type], row, at, size, marks, stack)
            end, more = _write_all(
                buf, nodes, rows, roots[type], row, at, size, marks, numbers, symbols, symbol_bounds, end
            )
            left += more
    return left


@kernel
def _find_type(buf: Bytes, pos: Int, stop: Int, ids: Ints, places: Ints, bounds: Ints) -> tuple[Int, Int]:
    """Return (the number of the type whose schema id and indexes are in front of the value, the
    position after these). In place of the number: UNDECODED if the type is not known or the value
    is in another known format, MALFORMED if id or indexes cannot be read.
    """
    id = read_schema_id(buf, pos, stop)
    if id < 0:
        return id, pos
    raw, pos = _read_raw(buf, pos + FRAME, stop)
    count = np.int64(raw >> np.uint64(1))
    if pos > stop or raw & np.uint64(1) != np.uint64(0) or count > _MOST_INDEXES:
        return np.int64(MALFORMED), pos
    type = np.int64(np.searchsorted(ids, id))
    if type >= ids.size or ids[type] != id:
        return np.int64(UNDECODED), pos
    after = pos
    for _ in range(count):
        _, after = _read_raw(buf, after, stop)
    if after > stop:
        return np.int64(MALFORMED), pos
    while type < ids.size and ids[type] == id:
        # the indexes are compared only with as many: a schema may have thousands of types
        first = bounds[type]
        if max(count, 1) == bounds[type + 1] - first and _is_place(buf, pos, stop, count, places, first):
            return type, after
        type += 1
    return np.int64(UNDECODED), pos


@kernel
def _is_place(buf: Bytes, pos: Int, stop: Int, count: Int, places: Ints, first: Int) -> Bool:
    """Return whether the `count` indexes at `pos` are those from places[first] on. No indexes mean the first
    message.
    """
    if count == 0:
        is_first: Bool = places[first] == 0
        return is_first
    for i in range(count):
        raw, pos = _read_raw(buf, pos, stop)
        if raw != np.uint64(places[first + i]) << np.uint64(1):
            return False
    return True


@kernel
def _search(
    buf: Bytes, pos: Int, stop: Int, nodes: Ints, rows: Ints, node: Int, row: Int, at: Ints, size: Ints, marks: Ints,
    stack: Ints,
) -> None:  # fmt: skip
    """Write where the bytes of each wanted field of the message pos:stop are, for the root `node`.

    A field without bytes has the size MISSING or DEFAULT. In `marks` are noted the messages that
    were met and those with a fault (see `_extract`). stack[:depth]: for each message that is open,
    its node, the position to continue at, and its end.
    """
    depth = 0
    _enter(nodes, rows, node, row, size, marks)
    while True:
        if pos >= stop:
            if depth == 0:
                return
            depth -= 1
            node, pos, stop = stack[depth, 0], stack[depth, 1], stack[depth, 2]
            continue
        number, wire, begin, pos = _read_field(buf, pos, stop)
        if pos > stop:
            marks[1, node] = row
            continue
        found = _find_row(rows, nodes[node, FIRST], nodes[node, LAST], number, wire)
        if found < 0:
            continue
        if rows[found, GROUP] >= 0:
            _clear_others(nodes, rows, node, found, row, size, marks)
        slot = rows[found, SLOT]
        if slot >= 0:
            at[slot, row], size[slot, row] = begin, pos - begin
        if rows[found, NODE] >= 0:
            stack[depth, 0], stack[depth, 1], stack[depth, 2] = node, pos, stop
            depth += 1
            node, stop, pos = rows[found, NODE], pos, begin
            _enter(nodes, rows, node, row, size, marks)


@kernel
def _enter(nodes: Ints, rows: Ints, node: Int, row: Int, size: Ints, marks: Ints) -> None:
    """Note that record `row` has the message of a node. The first time in a record, give the size
    DEFAULT to those of its wanted fields that it cannot lack.
    """
    if marks[0, node] != row:
        marks[0, node] = row
        for each in range(nodes[node, FIRST], nodes[node, LAST]):
            if rows[each, IMPLICIT] == 1:
                size[rows[each, SLOT], row] = DEFAULT


@kernel
def _clear_others(nodes: Ints, rows: Ints, node: Int, found: Int, row: Int, size: Ints, marks: Ints) -> None:
    """Give the size MISSING to all paths of record `row` that end at or lead through the other fields
    of the oneof of row `found`, and mark the messages of these fields as not met.
    """
    for other in range(nodes[node, FIRST], nodes[node, LAST]):
        if other != found and rows[other, GROUP] == rows[found, GROUP]:
            if rows[other, SLOT] >= 0:
                size[rows[other, SLOT], row] = MISSING
            if rows[other, NODE] >= 0:
                below = rows[other, NODE]
                _answer_below(nodes, rows, below, row, size, MISSING)
                for each in range(below, nodes[below, AFTER]):
                    marks[0, each] = -1


@kernel
def _answer_below(nodes: Ints, rows: Ints, node: Int, row: Int, size: Ints, answer: Int) -> None:
    """Write `answer` as the size of each path of record `row` that leads through the message of a
    node.
    """
    for each in range(nodes[node, FIRST], nodes[node, ROWS]):
        if rows[each, SLOT] >= 0:
            size[rows[each, SLOT], row] = answer


@kernel
def _find_row(rows: Ints, first: Int, last: Int, number: Int, wire: Int) -> Int:
    """Return which of the rows first:last has this field number and wire type, -1 if none has."""
    while first < last and not (rows[np.uintp(first), NUMBER] == number and rows[np.uintp(first), WIRE] == wire):
        first += 1
    return first if first < last else np.int64(-1)


@kernel
def _read_raw(buf: Bytes, pos: Int, stop: Int) -> tuple[np.uint64, Int]:
    """Read a varint at `pos`. Return (its bits, next position), or (0, LOST) if it passes `stop` or
    has more than ten bytes.
    """
    raw = np.uint64(0)
    shift = 0
    while pos < stop and shift < 70:
        byte = np.uint64(buf[np.uintp(pos)])
        pos += 1
        raw |= (byte & np.uint64(0x7F)) << np.uint64(shift)
        if byte < np.uint64(0x80):
            return raw, pos
        shift += 7
    return np.uint64(0), np.int64(LOST)


@kernel
def _read_field(buf: Bytes, pos: Int, stop: Int) -> tuple[Int, Int, Int, Int]:
    """Read the field at `pos`. Return (its number, its wire type, the position of its value, the
    position after the value). The last is beyond `stop` if the field cannot be read before it.
    """
    tag, pos = _read_raw(buf, pos, stop)
    number, wire = np.int64(tag >> np.uint64(3)), np.int64(tag & np.uint64(7))
    if pos > stop or number == 0 or tag > _LOW:
        return np.int64(0), np.int64(0), np.int64(0), np.int64(LOST)
    begin = pos
    if wire == 2:
        length, begin = _read_raw(buf, pos, stop)
        pos = begin + np.int64(length & _LOW) if length <= _LOW else np.int64(LOST)
    elif wire == 3:
        pos = _pass_group(buf, pos, stop)
    else:
        pos = _pass_plain(buf, pos, stop, wire)
    return number, wire, begin, pos


@kernel
def _pass_plain(buf: Bytes, pos: Int, stop: Int, wire: Int) -> Int:
    """Return the position after the value at `pos`, a varint (wire type 0) or 8 or 4 bytes (1, 5),
    which may be beyond `stop`; LOST for another wire type.
    """
    if wire == 0:
        _, pos = _read_raw(buf, pos, stop)
        return pos
    return pos + 8 if wire == 1 else pos + 4 if wire == 5 else np.int64(LOST)


@kernel
def _pass_group(buf: Bytes, pos: Int, stop: Int) -> Int:
    """Return the position after the end of the group whose start ends at `pos`; beyond `stop` if it
    has none.
    """
    depth = 1
    while depth > 0 and pos < stop:
        tag, pos = _read_raw(buf, pos, stop)
        wire = np.int64(tag & np.uint64(7))
        if pos > stop or tag < np.uint64(8) or tag > _LOW:
            return np.int64(LOST)
        if wire == 2:
            length, pos = _read_raw(buf, pos, stop)
            pos = pos + np.int64(length & _LOW) if length <= _LOW else np.int64(LOST)
        elif wire == 3 or wire == 4:
            depth += 1 if wire == 3 else -1
        else:
            pos = _pass_plain(buf, pos, stop, wire)
    return pos if depth == 0 else np.int64(LOST)


@kernel
def _write_all(
    buf: Bytes, nodes: Ints, rows: Ints, root: Int, row: Int, at: Ints, size: Ints, marks: Ints, numbers: Ints,
    symbols: Bytes, symbol_bounds: Ints, end: Int,
) -> tuple[Int, Int]:  # fmt: skip
    """Write the texts of the fields that `_search` has found in record `row` to `buf` from `end`
    on, and their places and sizes. Return (the position after them, how many doubles have the size
    LEFT).
    """
    left: Int = np.int64(0)
    for node in range(root, nodes[root, AFTER]):
        if marks[1, node] == row:
            _answer_below(nodes, rows, node, row, size, MALFORMED)
    for each in range(nodes[root, FIRST], nodes[root, ROWS]):
        slot = rows[each, SLOT]
        if slot < 0 or (size[slot, row] < 0 and size[slot, row] != DEFAULT):
            continue
        if rows[each, OP] == SYMBOL:
            after = _write_symbol(buf, at[slot, row], size[slot, row], rows, each, numbers, symbols, symbol_bounds, end)
        elif size[slot, row] == DEFAULT:
            after = _write_default(buf, rows[each, OP], end)
        else:
            after = _write_value(buf, at[slot, row], size[slot, row], rows[each, OP], end)
        at[slot, row] = end
        if after == LEFT:
            size[slot, row] = LEFT
            left += 1
            end += MOST
        else:
            size[slot, row] = after - end if after >= 0 else after
            end = max(end, after)
    return end, left


@kernel
def _write_default(buf: Bytes, op: Int, at: Int) -> Int:
    """Write the default value of a field (0, false, or the empty string) to `buf` from `at` on, and
    return the position after it.
    """
    if op == TRUTH:
        return write_boolean(0, buf, at)
    return write_text(buf, 0, 0, at) if op == TEXT else write_long(0, buf, at)


@kernel
def _write_value(buf: Bytes, pos: Int, length: Int, op: Int, at: Int) -> Int:
    """Write the value of `length` bytes at `pos` as a text to `buf` from `at` on. Return the
    position after the text, LEFT if Python has to write it, MALFORMED for a Timestamp that cannot
    be read. `op`: how to read it, as in the rows of a program.
    """
    if op == TEXT:
        return write_text(buf, pos, pos + length, at)
    if op == REAL:
        return write_real(buf, pos, length, at)
    if op == TIME:
        return _write_time(buf, pos, pos + length, at)
    if op == OTHER:
        buf[np.uintp(at)], buf[np.uintp(at + 1)] = 0x7B, 0x7D
        return at + 2
    if op in (FIXED, FIXED_SIGNED):
        return _write_fixed(buf, pos, length, op == FIXED_SIGNED, at)
    raw, _ = _read_raw(buf, pos, pos + length)
    if op == TRUTH:
        return write_boolean(np.int64(raw != np.uint64(0)), buf, at)
    if op == UNSIGNED:
        return write_decimal(False, raw, 0, buf, at)
    if op == SIGNED:
        return write_long(np.int64(raw), buf, at)
    if op == SIGNED_32:
        return write_long(_narrow(raw), buf, at)
    if op == ZIGZAG:
        return write_long(_undo_zigzag(raw), buf, at)
    low = raw & _LOW
    return write_long(np.int64(low) if op == UNSIGNED_32 else _undo_zigzag(low), buf, at)


@kernel
def _narrow(raw: np.uint64) -> Int:
    """Return the low 32 bits as a signed number."""
    low = np.int64(raw & _LOW)
    return (low ^ _INT32_SIGN) - _INT32_SIGN


@kernel
def _undo_zigzag(raw: np.uint64) -> Int:
    return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1))


@kernel
def _write_fixed(buf: Bytes, pos: Int, length: Int, signed: bool, at: Int) -> Int:
    """Write the number of `length` bytes (8 or 4) at `pos`, least significant first, as digits to
    `buf` from `at` on, and return the position after them.
    """
    raw = np.uint64(0)
    for i in range(length):
        raw |= np.uint64(buf[np.uintp(pos + i)]) << np.uint64(8 * i)
    if not signed:
        return write_decimal(False, raw, 0, buf, at)
    return write_long(np.int64(raw) if length == 8 else _narrow(raw), buf, at)


@kernel
def _write_symbol(
    buf: Bytes,
    pos: Int,
    length: Int,
    rows: Ints,
    each: Int,
    numbers: Ints,
    symbols: Bytes,
    symbol_bounds: Ints,
    at: Int,
) -> Int:
    """Write the symbol of an enum's value in quotes, or its number if it has no symbol, to `buf`
    from `at` on, and return the position after it. The value has `length` bytes at `pos`; it is 0
    if `length` is DEFAULT. `each`: the field's row.
    """
    number: Int = np.int64(0)
    if length != DEFAULT:
        raw, _ = _read_raw(buf, pos, pos + length)
        number = _narrow(raw)
    first, last = rows[each, SYMBOLS], rows[each, SYMBOLS_END]
    found = first + np.searchsorted(numbers[first:last], number)
    if found >= last or numbers[found] != number:
        return write_long(number, buf, at)
    begin, after = symbol_bounds[found], symbol_bounds[found + 1]
    for i in range(after - begin):
        buf[np.uintp(at + i)] = symbols[np.uintp(begin + i)]
    end: Int = at + after - begin
    return end


@kernel
def _write_time(buf: Bytes, pos: Int, stop: Int, at: Int) -> Int:
    """Write the Timestamp pos:stop as ms since 1970 to `buf` from `at` on, and return the position after it;
    MALFORMED if it has a fault or is more than _MOST_SECONDS from 1970.
    """
    seconds: Int = np.int64(0)
    nanoseconds: Int = np.int64(0)
    while pos < stop:
        number, wire, begin, pos = _read_field(buf, pos, stop)
        if pos > stop:
            return np.int64(MALFORMED)
        if wire == 0 and (number == 1 or number == 2):
            raw, _ = _read_raw(buf, begin, pos)
            if number == 1:
                seconds = np.int64(raw)
            else:
                nanoseconds = _narrow(raw)
    if not -_MOST_SECONDS <= seconds <= _MOST_SECONDS:
        return np.int64(MALFORMED)
    return write_long(seconds * 1000 + nanoseconds // 1_000_000, buf, at)
