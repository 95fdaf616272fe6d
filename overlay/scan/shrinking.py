"""When buffers that have grown for a large batch become small again."""

from __future__ import annotations

from dataclasses import dataclass

SMALL_SLICES = 64
"""After so many slices in a row that needed no more than the initial size, a buffer gets it back. To
make the buffer large again costs page faults, so one small slice among large ones is not enough.
"""


@dataclass(slots=True)
class Shrinking:
    """Tells when a buffer that has grown gets its `initial` size again."""

    initial: int
    _small: int = 0
    """Slices in a row for which the initial size was enough."""

    def is_due(self, size: int, used: int) -> bool:
        """Return whether a buffer of this size is to be replaced by one of the initial size. Call once
        for each slice, when it is not read any more. `used`: what the slice needed.
        """
        self._small = self._small + 1 if used <= self.initial < size else 0
        if self._small < SMALL_SLICES:
            return False
        self._small = 0
        return True
