r"""The meaning of JSON strings: escapes undone, without an object per string.

These kernels get the bytes between the quotes; `end` is the closing quote. Two `\u` escapes that
are the halves of one character (RFC 8259, section 7) are put together. Half a character alone is
written as three bytes, which no valid UTF-8 has, so that a reader of text finds it to be invalid.
"""

from __future__ import annotations

import numpy as np

from overlay.arrays import Bool, Bytes, Int
from overlay.kernels import kernel
from overlay.scan.words import find_quote

WRONG = -1  # a backslash before a character to which JSON gives no meaning


@kernel
def is_key(buf: Bytes, pos: Int, end: Int, text: Bytes, first: Int, last: Int) -> Bool:
    """Return whether the key between its quotes at pos:end spells text[first:last], escapes taken
    into account.
    """
    spelled = np.empty(4, np.uint8)
    while pos < end:
        if buf[np.uintp(pos)] == 0x5C:
            count, pos = read_escape(buf, pos + 1, end, spelled, 0)
        else:
            spelled[0] = buf[np.uintp(pos)]
            count, pos = 1, pos + 1
        for i in range(max(count, 0)):
            if first >= last or text[np.uintp(first)] != spelled[i]:
                return False
            first += 1
        if count == WRONG:
            return False
    return first == last


@kernel
def unescape(buf: Bytes, pos: Int, end: Int, out: Bytes, at: Int) -> Int:
    """Write the string pos:end to `out` from `at` on, with its escapes undone. Return the position
    after it in `out`, or WRONG for an escape that JSON does not have or a quote without a
    backslash.

    What is written is never longer than the string's spelling.
    """
    while True:
        stop = find_quote(buf, pos, end)
        for i in range(stop - pos):
            out[np.uintp(at + i)] = buf[np.uintp(pos + i)]
        at += stop - pos
        if stop >= end:
            return np.int64(at)
        if buf[np.uintp(stop)] == 0x22:
            return np.int64(WRONG)
        count, pos = read_escape(buf, stop + 1, end, out, at)
        if count == WRONG:
            return np.int64(WRONG)
        at += count


@kernel
def read_escape(buf: Bytes, pos: Int, end: Int, out: Bytes, at: Int) -> tuple[Int, Int]:
    """Write the character that the escape at pos spells to `out` as UTF-8; pos is after the
    backslash. Return (how many bytes were written, or WRONG; the position after the escape).
    """
    byte = buf[np.uintp(pos)] if pos < end else np.uint8(0)
    if byte == 0x75:  # u
        code = _read_unit(buf, pos + 1, end)
        pos += 5
        if 0xD800 <= code < 0xDC00 and pos + 1 < end and buf[np.uintp(pos)] == 0x5C and buf[np.uintp(pos + 1)] == 0x75:
            low = _read_unit(buf, pos + 2, end)
            if 0xDC00 <= low < 0xE000:
                return _write(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00), out, at), pos + 6
        return _write(code, out, at), pos
    meaning = np.int64(WRONG)
    if byte == 0x22 or byte == 0x5C or byte == 0x2F:
        meaning = np.int64(byte)
    for spelled, meant in ((0x62, 8), (0x66, 12), (0x6E, 10), (0x72, 13), (0x74, 9)):
        if byte == spelled:
            meaning = np.int64(meant)
    return _write(meaning, out, at), pos + 1


@kernel
def _read_unit(buf: Bytes, pos: Int, end: Int) -> Int:
    """Return the value of four hexadecimal digits at pos, or WRONG."""
    if pos + 4 > end:
        return np.int64(WRONG)
    code = np.int64(0)
    for i in range(4):
        byte = np.int64(buf[np.uintp(pos + i)])
        digit = byte - 0x30 if byte <= 0x39 else (byte | 0x20) - 0x57
        if digit < 0 or digit > 15 or (byte > 0x39 and digit < 10):
            return np.int64(WRONG)
        code = code * 16 + digit
    return code


@kernel
def _write(code: Int, out: Bytes, at: Int) -> Int:
    """Write a code point as UTF-8 to `out`. Return how many bytes it has. If `code` is WRONG, write
    nothing and return WRONG.
    """
    if code < 0:
        return np.int64(WRONG)
    if code < 0x80:
        out[np.uintp(at)] = code
        return np.int64(1)
    count = 2 if code < 0x800 else 3 if code < 0x10000 else 4
    out[np.uintp(at)] = ((0xF00 >> count) & 0xFF) | (code >> (6 * (count - 1)))
    for i in range(1, count):
        out[np.uintp(at + i)] = 0x80 | ((code >> (6 * (count - 1 - i))) & 0x3F)
    return np.int64(count)
