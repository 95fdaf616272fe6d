"""The console that commands print on."""

from __future__ import annotations

from rich.console import Console

PIPED_WIDTH = 10_000
"""Columns without a terminal: wide enough that no line is broken."""


def make_console() -> Console:
    """Return a console for stdout. Without a terminal it is so wide that no line is broken."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPED_WIDTH)
