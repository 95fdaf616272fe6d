"""Fields of JSON values, found in the bytes without parsing the document into objects.

What. `extract` searches all wanted paths in each record's value in one pass and records where their
JSON texts are: strings with their quotes, objects and arrays whole. Each path is answered as if it
were searched alone, and the document is read no further than needed. Text after the field is not
looked at, so a document is malformed for a path only as far as it had to be read for it. If an
object has a key twice, the first counts. A text that ends too early, or has a character that the
grammar (RFC 8259) does not allow there, gives MALFORMED; inside values that are passed over the
grammar is not checked. A path that does not exist, or leads through something that is no object,
gives MISSING. A number, `true`, `false` or `null` inside an object that ends with the record's
value is MALFORMED, since it may have been cut. So a cut document answers each path as the whole
document does, or with MALFORMED. In a value of another known format (scan/values.py) every path is
UNDECODED.

How. The wanted paths are a tree whose nodes are in preorder, so that a node's subtree is a range.
The pass goes through the object of one node at a time. A wanted key is either an answer, or leads
to a node with children: then the pass enters its value and returns to the outer object at the
value's end. It leaves an object as soon as all children of its node are answered, and the document
as soon as all paths are.

There are two ways to move over a value: `pass_value` counts brackets and knows strings, and the
pass itself also checks keys, colons and commas. If the strict way fails inside a nested object, the
paths below it are MALFORMED, and the outer object continues after the value as `pass_value` sees
it: a path is never malformed because of what another path had to read.

Most of the time is spent finding the ends of strings and keys, so that is done a word at a time
(scan/words.py). A key is compared only if its first byte and length are those of some wanted key of the
same object (the MASK of its node). Documents of one stream mostly have the same keys in the same
places: the text between two values is first compared with the text there in an earlier document
(templates.py), and read only if it differs. The inner loops end by their condition, not by a break:
numba then sees that it need not count references (scan/borrow.py).
"""

from __future__ import annotations

import numpy as np

from overlay.arrays import Bool, Bytes, Int, Ints
from overlay.kernels import kernel
from overlay.scan.borrow import borrow
from overlay.scan.states import MALFORMED, MISSING, UNDECODED
from overlay.scan.values import Encoding, recognise
from overlay.scan.words import find_quote

from .passing import pass_blanks, pass_rest, pass_string, pass_value
from .paths import AFTER, CHILDREN, FIRST, LAST, MASK, SLOT, Paths, digest
from .spelling import is_key
from .templates import CHILD, make_templates, recall, remember

__all__ = ["Paths", "extract"]

# no path wants the member.
_CLOSED = 0
_OTHER = -9


def extract(buf: Bytes, at: Ints, size: Ints, value_slot: int, paths: Paths, low: int, high: int) -> None:
    """Write where the JSON text of each path begins (`at`) and how many bytes it has (`size`), for
    the records low:high. Both are [fields, records]; row `value_slot` has the place of the record's
    value, and is read. For a path without a text, the size is MISSING, MALFORMED or UNDECODED.
    """
    # Made here, since a kernel may borrow only arrays of its caller (scan/borrow.py); and anew per call,
    # since two threads may extract.
    last_met = np.full(paths.nodes.shape[0], -1, np.int64)
    frames = np.zeros((4, paths.nodes.shape[0]), np.int64)
    _extract(buf, at, size, value_slot, paths.text, paths.nodes, last_met, frames, make_templates(), low, high)


@kernel
def _extract(
    buf: Bytes, at: Ints, size: Ints, value_slot: Int, text: Bytes, nodes: Ints, met: Ints, frames: Ints,
    templates: Ints, low: Int, high: Int,
) -> None:  # fmt: skip
    """Write where the JSON text of each path begins (`at`) and its bytes (`size`; MISSING,
    MALFORMED or UNDECODED without a text), for the records low:high, as `extract` does.

    `text`, `nodes`: of the paths. `met`: for each node of the tree the last record in which its key
    was found, initially -1. `frames`: room for `_search`.
    """
    buf, at, size, text, nodes, met, frames, templates = (
        borrow(buf), borrow(at), borrow(size), borrow(text), borrow(nodes), borrow(met), borrow(frames),
        borrow(templates),
    )  # fmt: skip
    for row in range(low, high):
        begin = at[value_slot, row]
        length = size[value_slot, row]
        pos = pass_blanks(buf, begin, begin + length)
        if length < 0:
            _settle(nodes, 0, row, size, length)
        elif pos >= begin + length:
            _settle(nodes, 0, row, size, MALFORMED)
        elif buf[np.uintp(pos)] != 0x7B:  # {
            _settle(nodes, 0, row, size, _judge(buf, begin, pos, begin + length))
        else:
            _search(buf, pos + 1, begin + length, text, nodes, row, at, size, met, frames, templates)


@kernel
def _judge(buf: Bytes, begin: Int, pos: Int, end: Int) -> Int:
    """Return the size to write for every path of a value begin:end that is not an object:
    UNDECODED, MISSING or MALFORMED. Its first character that is not blank is at pos.
    """
    if recognise(buf, begin, end) != Encoding.JSON:
        return UNDECODED
    return MISSING if _BEGINS[buf[np.uintp(pos)]] else MALFORMED


@kernel
def _settle(nodes: Ints, node: Int, row: Int, size: Ints, answer: Int) -> None:
    """Write `answer` as the size of each path of record `row` that ends at the node or below it."""
    for n in range(node, nodes[node, AFTER]):
        if nodes[n, SLOT] >= 0:
            size[nodes[n, SLOT], row] = answer


@kernel
def _settle_unmet(nodes: Ints, node: Int, row: Int, size: Ints, met: Ints, answer: Int) -> None:
    """Write `answer` as the size of each path that ends at or leads through a child of the node whose key was not
    found in this record's object.
    """
    child = node + 1
    while child < nodes[node, AFTER]:
        if met[child] != row:
            _settle(nodes, child, row, size, answer)
        child = nodes[child, AFTER]


@kernel
def _search(
    buf: Bytes, pos: Int, end: Int, text: Bytes, nodes: Ints, row: Int, at: Ints, size: Ints, met: Ints, frames: Ints,
    templates: Ints,
) -> None:  # fmt: skip
    """Write place and size of all paths for one document, whose opening `{` ends at pos.

    frames[:, d]: the node whose object is being read at depth d, where the object begins, how many
    of the node's children are still to be found, and whether the next member is the first.
    """
    depth: Int = 0
    turn: Int = 0
    frames[0, 0], frames[1, 0], frames[2, 0], frames[3, 0] = 0, pos - 1, nodes[0, CHILDREN], 1
    while True:
        node = frames[0, depth]
        child, pos, turn = _seek(buf, pos, end, text, nodes, node, frames[3, depth] == 1, row, met, templates, turn)
        frames[3, depth] = 0
        if child > 0:
            met[child] = row
            frames[2, depth] -= 1
            if nodes[child, CHILDREN] > 0 and pos < end and buf[np.uintp(pos)] == 0x7B:
                depth += 1
                frames[0, depth], frames[1, depth], frames[2, depth], frames[3, depth] = (
                    child, pos, nodes[child, CHILDREN], 1,
                )  # fmt: skip
                pos += 1
                continue
            pos = _answer(buf, pos, end, text, nodes, child, row, at, size, frames[2, depth] > 0)
            if frames[2, depth] == 0 and depth == 0:
                return
            if pos >= 0 and frames[2, depth] > 0:
                continue
            child = np.int64(1) if pos >= 0 else np.int64(MALFORMED)
        depth, pos = _leave(buf, pos, end, text, nodes, row, at, size, met, frames, depth, child)
        if depth < 0:
            return


@kernel
def _answer(
    buf: Bytes, pos: Int, end: Int, text: Bytes, nodes: Ints, child: Int, row: Int, at: Ints, size: Ints, needed: Bool
) -> Int:
    """Write place and size for the paths that end at a member, whose value at pos is not searched further, and the
    size MISSING for those that lead through it (MALFORMED if the text ends at pos). Return the position after the
    value, or MALFORMED.

    If no path asks for the value and the position after it is not `needed`, the value is not read, and pos itself is
    returned.
    """
    if nodes[child, CHILDREN] > 0:
        _settle(nodes, child, row, size, MISSING if pos < end else MALFORMED)
    slot = nodes[child, SLOT]
    if slot < 0 and not needed:
        return pos
    after = pass_value(buf, pos, end)
    if slot >= 0:
        at[slot, row] = pos
        size[slot, row] = after - pos if after >= 0 else MALFORMED
    return after


@kernel
def _leave(
    buf: Bytes, pos: Int, end: Int, text: Bytes, nodes: Ints, row: Int, at: Ints, size: Ints, met: Ints, frames: Ints,
    depth: Int, why: Int,
) -> tuple[Int, Int]:  # fmt: skip
    """Leave the object at `depth`, and outer ones, up to one that has children of its node still to
    find. Return (its depth, the position in it), or depth -1 if there is none. Writes place and
    size of each object left that a path asks for, and the sizes of the paths in them that were not
    found.

    `why`: _CLOSED with pos after the `}`, MALFORMED, or any node if all children were found and pos
    is still inside.
    """
    awaited = _find_awaited(nodes, frames, depth)
    while True:
        node = frames[0, depth]
        # children that were not met are answered now; then stop, if no outer object needs more
        if why <= _CLOSED:
            _settle_unmet(nodes, node, row, size, met, MISSING if why == _CLOSED else MALFORMED)
        if depth < awaited:
            return np.int64(-1), pos
        begin = frames[1, depth]
        depth -= 1
        # find the end of this object: from its beginning if reading it failed, else from pos
        slot = nodes[node, SLOT]
        if why == MALFORMED:
            pos = pass_value(buf, begin, end)
        elif why != _CLOSED:
            pos = pass_rest(buf, pos, end, 1)
        if slot >= 0:
            at[slot, row] = begin
            size[slot, row] = pos - begin if pos >= 0 else MALFORMED
        # the outer object is read on, or left as well
        if pos < 0:
            why = np.int64(MALFORMED)
        elif frames[2, depth] > 0:
            return depth, pos
        else:
            why = np.int64(1)


@kernel
def _find_awaited(nodes: Ints, frames: Ints, depth: Int) -> Int:
    """Return the least depth of an object whose end has to be found, because a path asks for the
    object itself or the object around it is read on; depth + 1 if there is none.
    """
    at = 0
    while at < depth and frames[2, at] == 0 and nodes[frames[0, at + 1], SLOT] < 0:
        at += 1
    return at + 1


@kernel
def _seek(
    buf: Bytes, pos: Int, end: Int, text: Bytes, nodes: Ints, node: Int, is_first: Bool, row: Int, met: Ints,
    templates: Ints, turn: Int,
) -> tuple[Int, Int, Int]:  # fmt: skip
    """Find the next member that a path wants and that is not in `met` yet. Return (its node, the position of its value, the new
    turn).

    pos is after the object's `{` or after a value; `turn` counts the members of the document that
    were read. At the object's end the first two are _CLOSED and the position after `}`; both are
    MALFORMED if the text is.
    """
    while True:
        known = recall(buf, pos, end, templates, turn, node, is_first)
        if known > 0:
            child = templates[np.uintp(turn), CHILD]
            pos += known
        else:
            begin = pos
            child, pos = _read_key(buf, pos, end, text, nodes, node, is_first)
            if child in (_CLOSED, MALFORMED):
                return child, pos, turn
            remember(templates, turn, node, is_first, begin, pos - begin, child)
        turn += 1
        is_first = False
        if child > 0 and met[child] != row:
            return child, pos, turn
        pos = pass_value(buf, pos, end)
        if pos < 0:
            return np.int64(MALFORMED), np.int64(MALFORMED), turn


@kernel
def _read_key(buf: Bytes, pos: Int, end: Int, text: Bytes, nodes: Ints, node: Int, is_first: Bool) -> tuple[Int, Int]:
    """Read the next member's key. Return (the node's child that it names, or _OTHER if no path
    wants it; the position of the member's value).

    Returns (_CLOSED, position after `}`) if there is no other member, or (MALFORMED, MALFORMED).
    """
    pos = pass_blanks(buf, pos, end)
    if pos >= end:
        return np.int64(MALFORMED), np.int64(MALFORMED)
    byte = buf[np.uintp(pos)]
    if byte == 0x7D:  # }
        return np.int64(_CLOSED), pos + 1
    if not is_first:
        if byte != 0x2C:  # ,
            return np.int64(MALFORMED), np.int64(MALFORMED)
        pos = pass_blanks(buf, pos + 1, end)
    if pos >= end or buf[np.uintp(pos)] != 0x22:
        return np.int64(MALFORMED), np.int64(MALFORMED)
    key = pos + 1
    pos = find_quote(buf, key, end)
    is_plain = pos < end and buf[np.uintp(pos)] == 0x22
    pos = pos + 1 if is_plain else pass_string(buf, pos, end)
    if pos < 0:
        return np.int64(MALFORMED), np.int64(MALFORMED)
    child = _match(buf, key, pos - 1, text, nodes, node, is_plain)
    pos = pass_blanks(buf, pos, end)
    if pos >= end or buf[np.uintp(pos)] != 0x3A:  # :
        return np.int64(MALFORMED), np.int64(MALFORMED)
    return child, pass_blanks(buf, pos + 1, end)


@kernel(forceinline=True)
def _match(buf: Bytes, key: Int, end: Int, text: Bytes, nodes: Ints, node: Int, is_plain: Bool) -> Int:
    """Return the child of the node that the key key:end names, or _OTHER. `is_plain`: the key has
    no escapes.
    """
    length = end - key
    if is_plain:
        bit = np.uint64(digest(np.int64(buf[np.uintp(key)]), length))
        if not (np.uint64(nodes[node, MASK]) >> bit) & np.uint64(1):
            return np.int64(_OTHER)
    return _compare(buf, key, end, text, nodes, node, is_plain)


@kernel
def _compare(buf: Bytes, key: Int, end: Int, text: Bytes, nodes: Ints, node: Int, is_plain: Bool) -> Int:
    child = node + 1
    last = nodes[node, AFTER]
    while child < last and not _is_named(buf, key, end, text, nodes, child, is_plain):
        child = nodes[child, AFTER]
    return child if child < last else np.int64(_OTHER)


@kernel(forceinline=True)
def _is_named(buf: Bytes, key: Int, end: Int, text: Bytes, nodes: Ints, child: Int, is_plain: Bool) -> Bool:
    first, last = nodes[child, FIRST], nodes[child, LAST]
    if not is_plain:
        return is_key(buf, key, end, text, first, last)
    size = end - key
    if last - first != size:
        return False
    i = 0
    while i < size and buf[np.uintp(key + i)] == text[np.uintp(first + i)]:
        i += 1
    return i == size


_BEGINS = np.zeros(256, np.bool_)  # first characters of values that are not objects
_BEGINS[list(b'["-0123456789tfn')] = True
_BEGINS.setflags(write=False)
