"""Times in which a test's process got no processor: what was measured meanwhile tells nothing of the product."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

TICK_S = 0.01


class Stalls:
    """A thread for the length of a `with` block that wakes up again and again. `longest_s`: by how much it was late at most."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stalls", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        before = time.monotonic()
        while not self._is_over.wait(TICK_S):
            now = time.monotonic()
            self.longest_s, before = max(self.longest_s, now - before - TICK_S), now
        self.longest_s = max(self.longest_s, time.monotonic() - before - TICK_S)
