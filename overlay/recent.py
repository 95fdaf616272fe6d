"""A mapping that keeps what was used last."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """A cache without a size of its own: `put` is told how many entries to keep. Not thread-safe."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Key) -> Value | None:
        """Return the value of a key, which counts as used now; None if there is none."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def put(self, key: Key, value: Value, most: int) -> None:
        """Set the value of a key, which counts as used now. Drop the entries that were not used for the longest time until
        there are at most `most`.
        """
        self._kept[key] = value
        self._kept.move_to_end(key)
        while len(self._kept) > most:
            self._kept.popitem(last=False)

    def clear(self) -> None:
        """Drop all entries."""
        self._kept.clear()
