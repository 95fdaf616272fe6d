"""What is going on, on standard error: one line that is written over on a terminal, a line each elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO


class Progress:
    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._terminal = self._out.isatty()

    def say(self, text: str) -> None:
        """Show what is being done."""
        if self._terminal:
            self._out.write(f"\r\x1b[2K{text}")
        else:
            self._out.write(f"{text}\n")
        self._out.flush()

    def keep(self, text: str) -> None:
        """Show what is done, and leave it there."""
        self.clear()
        self._out.write(f"{text}\n")
        self._out.flush()

    def count(self, what: str) -> Callable[[int], None]:
        """A function that shows how many of something are done."""

        def show(done: int) -> None:
            if self._terminal:
                self.say(f"{what}: {done:,}")

        self.say(what)
        return show

    def clear(self) -> None:
        if self._terminal:
            self._out.write("\r\x1b[2K")
            self._out.flush()
