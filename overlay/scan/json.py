"""Fields of JSON values, found in the bytes without parsing the document into objects.

`extract` looks for each wanted path in each record's value and notes where its JSON text lies: strings with their quotes,
objects and arrays whole. It reads no further than it must: what stands behind the wanted field is not looked at, so a document
is malformed only as far as it was read. Of keys that stand twice in an object the first counts. A text that ends too early
or has another character where the grammar (RFC 8259) wants a certain one gives MALFORMED; a path that is not there, or
leads through something that is no object, gives MISSING.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba as nb
import numpy as np
import numpy.typing as npt

from .header import Bytes
from .kernel import MISSING

MALFORMED = -2  # the size of a field whose document cannot be read up to it


@dataclass(frozen=True, slots=True)
class Paths:
    """Wanted paths as kernels take them: steps end to end in `text`, step i at bounds[i]:bounds[i+1], the steps of path p
    being starts[p]:starts[p+1], and slots[p] its row in the plan's arrays."""

    text: Bytes
    bounds: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]

    @property
    def count(self) -> int:
        return self.slots.size


def extract(
    buf: Bytes,
    at: npt.NDArray[np.int64],
    size: npt.NDArray[np.int64],
    value_slot: int,
    paths: Paths,
    low: int,
    high: int,
) -> None:
    """For the records low:high write where each path's text lies; `at` and `size` are [fields, records]."""
    _extract(buf, at, size, value_slot, paths.text, paths.bounds, paths.starts, paths.slots, low, high)


@nb.njit(cache=True, nogil=True)
def _extract(buf, at, size, value_slot, text, bounds, starts, slots, low, high):  # type: ignore[no-untyped-def]
    for row in range(low, high):
        begin = at[value_slot, row]
        length = size[value_slot, row]
        for p in range(slots.size):
            if length < 0:
                size[slots[p], row] = MISSING
            else:
                at[slots[p], row], size[slots[p], row] = _find(
                    buf, begin, begin + length, text, bounds, starts[p], starts[p + 1]
                )


@nb.njit(cache=True, nogil=True)
def _find(buf, pos, end, text, bounds, step, last):  # type: ignore[no-untyped-def]
    """Where the value at path steps step:last lies: (position, size), or (pos, MISSING | MALFORMED)."""
    pos = _blank(buf, pos, end)
    while step < last:
        if pos >= end:
            return pos, MALFORMED
        if buf[pos] != 0x7B:  # {
            return pos, MISSING
        pos = _enter(buf, pos + 1, end, text, bounds[step], bounds[step + 1])
        if pos < 0:
            return np.int64(0), pos
        step += 1
    after = _pass(buf, pos, end)
    if after < 0:
        return pos, MALFORMED
    return pos, after - pos


@nb.njit(cache=True, nogil=True)
def _enter(buf, pos, end, text, first, last):  # type: ignore[no-untyped-def]
    """Position of the value of the key text[first:last] in the object whose `{` ends at pos; MISSING or MALFORMED."""
    pos = _blank(buf, pos, end)
    if pos < end and buf[pos] == 0x7D:  # }
        return MISSING
    while pos < end and buf[pos] == 0x22:  # "
        key = pos + 1
        pos = _pass(buf, pos, end)
        if pos < 0:
            return MALFORMED
        wanted = _is_key(buf, key, pos - 1, text, first, last)
        pos = _blank(buf, pos, end)
        if pos >= end or buf[pos] != 0x3A:  # :
            return MALFORMED
        pos = _blank(buf, pos + 1, end)
        if wanted:
            return pos
        pos = _pass(buf, pos, end)
        if pos < 0:
            return MALFORMED
        pos = _blank(buf, pos, end)
        if pos >= end:
            return MALFORMED
        if buf[pos] == 0x7D:
            return MISSING
        if buf[pos] != 0x2C:  # ,
            return MALFORMED
        pos = _blank(buf, pos + 1, end)
    return MALFORMED


@nb.njit(inline="always", cache=True, nogil=True)
def _blank(buf, pos, end):  # type: ignore[no-untyped-def]
    while pos < end and (buf[pos] == 0x20 or buf[pos] == 0x0A or buf[pos] == 0x0D or buf[pos] == 0x09):
        pos += 1
    return pos


@nb.njit(cache=True, nogil=True)
def _pass(buf, pos, end):  # type: ignore[no-untyped-def]
    """Position after the value at pos, or MALFORMED. Brackets are counted, not matched by kind."""
    if pos >= end:
        return MALFORMED
    if buf[pos] == 0x22:
        return _pass_string(buf, pos + 1, end)
    if buf[pos] != 0x7B and buf[pos] != 0x5B:
        return _pass_scalar(buf, pos, end)
    depth = 0
    while pos < end:
        byte = buf[pos]
        pos += 1
        if byte == 0x22:
            pos = _pass_string(buf, pos, end)
            if pos < 0:
                return MALFORMED
        elif byte == 0x7B or byte == 0x5B:  # { [
            depth += 1
        elif byte == 0x7D or byte == 0x5D:  # } ]
            depth -= 1
            if depth == 0:
                return pos
    return MALFORMED


@nb.njit(inline="always", cache=True, nogil=True)
def _pass_string(buf, pos, end):  # type: ignore[no-untyped-def]
    while pos < end:
        if buf[pos] == 0x22:
            return pos + 1
        pos += 2 if buf[pos] == 0x5C else 1  # backslash
    return MALFORMED


@nb.njit(cache=True, nogil=True)
def _pass_scalar(buf, pos, end):  # type: ignore[no-untyped-def]
    """A number, true, false or null: its characters up to a separator. At least one is needed."""
    first = pos
    while pos < end:
        byte = buf[pos]
        named = (0x30 <= byte <= 0x39) or (0x61 <= byte <= 0x7A) or byte == 0x2E or byte == 0x45
        if not (named or byte == 0x2B or byte == 0x2D):  # + -
            break
        pos += 1
    return pos if pos > first else MALFORMED


@nb.njit(cache=True, nogil=True)
def _is_key(buf, pos, end, text, first, last):  # type: ignore[no-untyped-def]
    """Whether the key between its quotes at pos:end says text[first:last], escapes taken into account."""
    while pos < end and first < last and buf[pos] != 0x5C:
        if buf[pos] != text[first]:
            return False
        pos += 1
        first += 1
    if pos >= end or buf[pos] != 0x5C:
        return pos == end and first == last
    return _is_escaped_key(buf, pos, end, text, first, last)


@nb.njit(cache=True, nogil=True)
def _is_escaped_key(buf, pos, end, text, first, last):  # type: ignore[no-untyped-def]
    spelled = np.empty(4, np.uint8)
    while pos < end:
        if buf[pos] == 0x5C:
            count, pos = _unescape(buf, pos + 1, end, spelled)
        else:
            spelled[0] = buf[pos]
            count, pos = 1, pos + 1
        for i in range(count):
            if first >= last or text[first] != spelled[i]:
                return False
            first += 1
    return first == last


@nb.njit(cache=True, nogil=True)
def _unescape(buf, pos, end, out):  # type: ignore[no-untyped-def]
    """The character behind a backslash, as UTF-8 in `out`: (bytes, next position)."""
    byte = buf[pos] if pos < end else np.uint8(0)
    if byte != 0x75:  # u
        out[0] = byte
        for spelling, meaning in ((0x62, 8), (0x66, 12), (0x6E, 10), (0x72, 13), (0x74, 9)):
            if byte == spelling:
                out[0] = meaning
        return 1, pos + 1
    code = _hex(buf, pos + 1, end)
    pos += 5
    if 0xD800 <= code < 0xDC00 and pos + 1 < end and buf[pos] == 0x5C and buf[pos + 1] == 0x75:
        low = _hex(buf, pos + 2, end)
        if 0xDC00 <= low < 0xE000:
            return _utf8(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00), out), pos + 6
    return _utf8(code, out), pos


@nb.njit(cache=True, nogil=True)
def _hex(buf, pos, end):  # type: ignore[no-untyped-def]
    """Four hexadecimal digits at pos; what is no digit counts as zero, and the key then differs from any that is wanted."""
    code = 0
    for i in range(4):
        byte = np.int64(buf[pos + i]) if pos + i < end else 0
        digit = byte - 0x30 if byte <= 0x39 else (byte | 0x20) - 0x57
        code = code * 16 + (digit if 0 <= digit < 16 else 0)
    return code


@nb.njit(cache=True, nogil=True)
def _utf8(code, out):  # type: ignore[no-untyped-def]
    if code < 0x80:
        out[0] = code
        return 1
    if code < 0x800:
        out[0], out[1] = 0xC0 | (code >> 6), 0x80 | (code & 0x3F)
        return 2
    if code < 0x10000:
        out[0], out[1], out[2] = 0xE0 | (code >> 12), 0x80 | ((code >> 6) & 0x3F), 0x80 | (code & 0x3F)
        return 3
    out[0], out[1] = 0xF0 | (code >> 18), 0x80 | ((code >> 12) & 0x3F)
    out[2], out[3] = 0x80 | ((code >> 6) & 0x3F), 0x80 | (code & 0x3F)
    return 4
