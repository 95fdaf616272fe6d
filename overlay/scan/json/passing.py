"""Moving over a JSON value that the search does not want (search.py): only where it ends.

Brackets are counted and strings are recognised; whether the text between them is JSON is not
checked here. A string ends with a quote, an object and an array with a bracket. A number, `true`,
`false` and `null` have no such mark: each extends to the next blank, comma or closing bracket (so
1_000 is one text, which spells no number). One that reaches the end of the record's value is
MALFORMED, because its last characters may have been cut off. So is one that a quote or an opening
bracket follows at once: `pass_rest` takes these for the beginning of a string or an object, and the
two ways of moving over a text must find the same end.
"""

from __future__ import annotations

import numpy as np

from overlay.arrays import Bytes, Int
from overlay.kernels import kernel
from overlay.scan.states import MALFORMED
from overlay.scan.words import find_quote, skip_digits

IS_BLANK = np.zeros(256, np.bool_)
IS_BLANK[list(b" \n\r\t")] = True
_BEGINS_SCALAR = np.zeros(256, np.bool_)
_BEGINS_SCALAR[list(b"0123456789abcdefghijklmnopqrstuvwxyz.E+-")] = True
_ENDS_SCALAR = np.zeros(256, np.bool_)
_OPENS = np.zeros(256, np.bool_)
_OPENS[list(b'"{[')] = True
_ENDS_SCALAR[list(b' \n\r\t,}]"{[')] = True
IS_BLANK.setflags(write=False)
_BEGINS_SCALAR.setflags(write=False)
_OPENS.setflags(write=False)
_ENDS_SCALAR.setflags(write=False)


@kernel(forceinline=True)
def pass_blanks(buf: Bytes, pos: Int, end: Int) -> Int:
    """Return the position of the first byte from pos on that is not white space, at most `end`."""
    while pos < end and IS_BLANK[buf[np.uintp(pos)]]:
        pos += 1
    return pos


@kernel(forceinline=True)
def pass_value(buf: Bytes, pos: Int, end: Int) -> Int:
    """Return the position after the value at pos, or MALFORMED. Brackets are counted, not matched
    by kind.
    """
    if pos >= end:
        return np.int64(MALFORMED)
    byte = buf[np.uintp(pos)]
    if byte == 0x22:
        return pass_string(buf, pos + 1, end)
    if byte == 0x7B or byte == 0x5B:
        return pass_rest(buf, pos + 1, end, 1)
    return pass_scalar(buf, pos, end)


@kernel(forceinline=True)
def pass_rest(buf: Bytes, pos: Int, end: Int, depth: Int) -> Int:
    """Return the position after the bracket that closes the outermost of `depth` open ones, or
    MALFORMED.
    """
    while pos < end:
        byte = buf[np.uintp(pos)]
        pos += 1
        if byte == 0x22:
            pos = pass_string(buf, pos, end)
            if pos < 0:
                return np.int64(MALFORMED)
        elif byte == 0x7B or byte == 0x5B:  # { [
            depth += 1
        elif byte == 0x7D or byte == 0x5D:  # } ]
            depth -= 1
            if depth == 0:
                return pos
    return np.int64(MALFORMED)


@kernel(forceinline=True)
def pass_string(buf: Bytes, pos: Int, end: Int) -> Int:
    """Return the position after the closing quote of the string whose content begins at pos, or
    MALFORMED if it does not end before `end`.
    """
    while True:
        pos = find_quote(buf, pos, end)
        if pos >= end:
            return np.int64(MALFORMED)
        if buf[np.uintp(pos)] == 0x22:
            return pos + 1
        pos += 2


@kernel(forceinline=True)
def pass_scalar(buf: Bytes, pos: Int, end: Int) -> Int:
    """Return the position after a number, true, false or null; MALFORMED if there is none, if no
    byte follows it, or if a quote or an opening bracket does.
    """
    first = pos
    if pos < end and _BEGINS_SCALAR[buf[np.uintp(pos)]]:
        pos = skip_digits(buf, pos + np.int64(buf[np.uintp(pos)] == 0x2D), end)  # -
        while pos < end and not _ENDS_SCALAR[buf[np.uintp(pos)]]:
            pos += 1
    return pos if first < pos < end and not _OPENS[buf[np.uintp(pos)]] else np.int64(MALFORMED)
