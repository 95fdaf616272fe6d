"""Wanted JSON paths, as the tree by which search.py walks documents.

A tree's nodes are rows of integers in preorder. So a subtree is a range, and the next child of a
node begins where the subtree of the one before ends. It is one array of integers instead of one per
column, since kernels pay for every array that is passed on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from overlay.arrays import Bytes, Ints
from overlay.kernels import kernel

FIRST: Final = 0  # its key is text[FIRST:LAST]
LAST: Final = 1
AFTER: Final = 2  # the subtree of node n is n:AFTER
CHILDREN: Final = 3  # how many
SLOT: Final = 4  # its row in the plan's arrays, -1 if it only leads to others
MASK: Final = 5  # bit `digest` of each child's key
_COLUMNS: Final = 6


@dataclass(frozen=True, slots=True)
class Paths:
    """Wanted paths, distinct and with at least one step.

    The steps are end to end in `text`, step i at bounds[i]:bounds[i+1]. Path p has the steps
    starts[p]:starts[p+1], and slots[p] is its row in the plan's arrays.
    """

    text: Bytes
    bounds: Ints
    starts: Ints
    slots: Ints
    nodes: Ints = field(init=False, repr=False, compare=False)
    """The paths as a tree, [nodes, columns]. Node 0 is the document."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", _plant(self))

    @property
    def count(self) -> int:
        return self.slots.size


@kernel(forceinline=True)
def digest(byte: int | np.int64, length: int | np.int64) -> int | np.int64:
    """Return six bits of a key's first byte and length. The first byte of an empty key is the quote
    after it.
    """
    return (byte ^ (length << 2)) & 63


@dataclass(slots=True)
class _Node:
    first: int = 0
    last: int = 0
    slot: int = -1
    children: dict[bytes, _Node] = field(default_factory=dict)


def _plant(paths: Paths) -> Ints:
    root = _Node()
    for p, slot in enumerate(paths.slots.tolist()):
        node = root
        for step in range(int(paths.starts[p]), int(paths.starts[p + 1])):
            first, last = int(paths.bounds[step]), int(paths.bounds[step + 1])
            node = node.children.setdefault(paths.text[first:last].tobytes(), _Node(first, last))
        node.slot = slot
    return _list_preorder(root)


def _list_preorder(root: _Node) -> Ints:
    rows: list[list[int]] = []
    stack: list[tuple[_Node, int]] = [(root, -1)]  # a node, and its row once its subtree is listed
    while stack:
        node, row = stack.pop()
        if row >= 0:
            rows[row][AFTER] = len(rows)
            continue
        stack.append((node, len(rows)))
        stack.extend((child, -1) for child in reversed(node.children.values()))
        rows.append([node.first, node.last, 0, len(node.children), node.slot, _mask(node)])
    return np.array(rows, np.int64).reshape(-1, _COLUMNS)


def _mask(node: _Node) -> int:
    mask = 0
    for key in node.children:
        mask |= 1 << int(digest(key[0] if key else 0x22, len(key)))
    return mask - (1 << 64) if mask >> 63 else mask  # as the int64 of the same bits
