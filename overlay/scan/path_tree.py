"""Paths to fields of values as a tree, which a compiler of a schema walks beside the schema."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from overlay.scan.json.paths import Paths


@dataclass(slots=True)
class PathNode:
    """A place in the tree of wanted paths: the slot of the path that ends here, -1 if none does, and
    the steps that lead on.
    """

    slot: int = -1
    steps: dict[str, PathNode] = field(default_factory=dict)

    def list_slots(self) -> Iterable[int]:
        """Yield the slots of all paths that end here or further on."""
        if self.slot >= 0:
            yield self.slot
        for each in self.steps.values():
            yield from each.list_slots()


def make_tree(paths: Paths) -> PathNode:
    """Return the root of the tree of these paths."""
    root = PathNode()
    for p, slot in enumerate(paths.slots.tolist()):
        node = root
        for step in range(int(paths.starts[p]), int(paths.starts[p + 1])):
            text = paths.text[paths.bounds[step] : paths.bounds[step + 1]].tobytes().decode()
            node = node.steps.setdefault(text, PathNode())
        node.slot = slot
    return root
