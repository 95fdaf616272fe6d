"""The text between two JSON values, remembered from one document to the next.

From the end of a value to the beginning of the next there are blanks, a comma, a key and a colon.
Their meaning depends only on these bytes and on the object that they are in. So bytes that equal
those at the same turn of an earlier document mean the same. Comparing them, a word at a time, takes
a third of the time of reading them. A template is a place in the same buffer and what was found
there. A document of another shape is read as if there were no templates, and leaves its own.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from overlay.arrays import Bool, Bytes, Int, Ints
from overlay.kernels import kernel
from overlay.scan.words import WORD, load

from .passing import IS_BLANK

TURNS: Final = 64
"""Members of a document that may have a template; later ones have none."""

# columns of a template
NODE: Final = 0  # whose object it was in, negative if it began the object
AT: Final = 1
SIZE: Final = 2  # 0 if there is no template
CHILD: Final = 3  # what the key means
_COLUMNS: Final = 4


def make_templates() -> Ints:
    """Return an array [TURNS, columns] in which no template is stored yet. Use it for one buffer,
    one tree of paths and one thread.
    """
    return np.zeros((TURNS, _COLUMNS), np.int64)


@kernel(forceinline=True)
def recall(buf: Bytes, pos: Int, end: Int, templates: Ints, turn: Int, node: Int, is_first: Bool) -> Int:
    """Return how many bytes at pos equal the template of this turn (the turn-th member read in the
    document) and are followed by the first character of a value. 0 if they differ, or if there is
    no template for this node and place in its object.
    """
    row = np.uintp(turn)
    if turn >= TURNS or templates[row, NODE] != _place(node, is_first):
        return np.int64(0)
    size = templates[row, SIZE]
    if size == 0 or pos + size >= end or IS_BLANK[buf[np.uintp(pos + size)]]:
        return np.int64(0)
    return size if _are_equal(buf, pos, templates[row, AT], size) else np.int64(0)


@kernel(forceinline=True)
def remember(templates: Ints, turn: Int, node: Int, is_first: Bool, at: Int, size: Int, child: Int) -> None:
    """Store the bytes at:at+size, which were read at this turn, as its template; `child` is what
    their key means. Does nothing for turns from TURNS on.
    """
    if turn < TURNS:
        templates[turn, NODE] = _place(node, is_first)
        templates[turn, AT] = at
        templates[turn, SIZE] = size
        templates[turn, CHILD] = child


@kernel(forceinline=True)
def _place(node: Int, is_first: Bool) -> Int:
    return -1 - node if is_first else node


@kernel(forceinline=True)
def _are_equal(buf: Bytes, one: Int, other: Int, size: Int) -> Bool:
    """Return whether the `size` bytes at two places are the same; both are inside the buffer."""
    i = 0
    while i + WORD <= size and load(buf, one + i) == load(buf, other + i):
        i += WORD
    if size >= WORD and size - i < WORD:
        # compare the rest with a word that ends where the text ends
        return i == size or load(buf, one + size - WORD) == load(buf, other + size - WORD)
    while i < size and buf[np.uintp(one + i)] == buf[np.uintp(other + i)]:
        i += 1
    return i == size
