"""Texts and byte strings of many records put end to end, in the layout of Arrow's variable-size
columns.

Strings must be UTF-8 (RFC 3629: no surrogates, no overlong forms, nothing above U+10FFFF), because
readers of Arrow trust a string column without checking.
"""

from __future__ import annotations

import numpy as np

from overlay.arrays import Bool, Bytes, Int, Int32s, Ints
from overlay.kernels import kernel

from .json.spelling import unescape
from .states import ABSENT, BAD, GOOD, NOT_UTF8, judge_size
from .words import is_ascii


@kernel
def is_utf8(buf: Bytes, pos: Int, end: Int) -> Bool:
    """Return whether pos:end is valid UTF-8."""
    if is_ascii(buf, pos, end):
        return True
    while pos < end:
        lead = buf[np.uintp(pos)]
        more = 0 if lead < 0x80 else 1 if 0xC2 <= lead < 0xE0 else 2 if 0xE0 <= lead < 0xF0 else 3
        if 0x80 <= lead < 0xC2 or lead > 0xF4 or pos + more >= end:
            return False
        low = 0xA0 if lead == 0xE0 else 0x90 if lead == 0xF0 else 0x80
        high = 0x9F if lead == 0xED else 0x8F if lead == 0xF4 else 0xBF
        for i in range(1, more + 1):
            byte = buf[np.uintp(pos + i)]
            if byte < low or byte > high:
                return False
            low, high = 0x80, 0xBF
        pos += more + 1
    return True


@kernel
def is_null(buf: Bytes, pos: Int, end: Int) -> Bool:
    """Return whether the JSON text pos:end is null."""
    return (
        end - pos == 4
        and buf[np.uintp(pos)] == 0x6E
        and buf[np.uintp(pos + 1)] == 0x75
        and buf[np.uintp(pos + 2)] == 0x6C
        and buf[np.uintp(pos + 3)] == 0x6C
    )


@kernel
def join(
    buf: Bytes, at: Ints, size: Ints, is_json: Bool, is_text: Bool, offsets: Int32s, data: Bytes, states: Bytes
) -> None:
    """Copy the slices at[i]:at[i]+size[i] of `buf` end to end into `data`, and write to `offsets`
    where each begins (one more for the end) and to `states` the state of each. A slice that is not
    GOOD takes no bytes.

    `data` has room for all of them. `is_json`: they are JSON texts, of which only strings are good;
    their escapes are undone. `is_text`: they must be UTF-8.
    """
    end: Int = np.int64(0)
    for i in range(size.size):
        offsets[i] = end
        if size[i] < 0:
            states[i] = judge_size(size[i])
            continue
        first, last = at[i], at[i] + size[i]
        after = _take_json(buf, first, last, data, end) if is_json else _take(buf, first, last, data, end)
        if after < 0:
            states[i] = ABSENT if is_null(buf, first, last) else BAD
        elif is_text and not is_utf8(data, end, after):
            states[i] = NOT_UTF8
        else:
            states[i] = GOOD
            end = after
    offsets[size.size] = end


@kernel
def _take(buf: Bytes, first: Int, last: Int, data: Bytes, end: Int) -> Int:
    for i in range(last - first):
        data[np.uintp(end + i)] = buf[np.uintp(first + i)]
    return end + last - first


@kernel
def _take_json(buf: Bytes, first: Int, last: Int, data: Bytes, end: Int) -> Int:
    if last - first < 2 or buf[np.uintp(first)] != 0x22 or buf[np.uintp(last - 1)] != 0x22:
        return np.int64(-1)
    return unescape(buf, first + 1, last - 1, data, end)
