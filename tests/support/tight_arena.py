"""An arena that leaves exactly the room for texts that was asked for."""

from __future__ import annotations

import numpy as np

from overlay.arrays import Bytes
from overlay.scan.codec import Arena

_BEHIND = 64
"""Bytes behind the room, which nothing may write to."""
_POISON = 0xA5


class TightArena(Arena):
    """An arena whose buffer ends where the room for texts ends, so that kernels which check bounds notice a byte more.
    Kernels that check none write into what `check` looks at.
    """

    def __init__(self) -> None:
        super().__init__()
        self._behind = np.full(_BEHIND, _POISON, np.uint8)

    def reserve(self, at: int, room: int) -> Bytes:
        self.check()
        whole = np.full(at + room + _BEHIND, _POISON, np.uint8)
        whole[:at] = self.buf[:at]
        self.buf, self._behind = whole[: at + room], whole[at + room :]
        return self.buf

    def check(self) -> None:
        """Fail if more was written than there was room for."""
        assert (self._behind == _POISON).all(), "texts were written behind their room"
