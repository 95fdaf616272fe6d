"""What an input costs, counted: lines of Python that run, and bytes that are allocated at the same time.

Both are the same on every machine, however busy it is. Time in C code is not counted; where an input could cost much of it
without lines or bytes (a number of a million digits), a limit of length comes before, and is tested by itself.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any


@dataclass(frozen=True, slots=True)
class Cost:
    lines: int
    bytes: int
    """The most that was allocated at one time."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What an input of `n` bytes may cost: a fixed part, and a part for each byte."""

    lines: int
    lines_per_byte: float
    bytes: int
    bytes_per_byte: float

    def find_excess(self, cost: Cost, size: int) -> str:
        """Return by what an input of `size` bytes is over the budget, empty if it is not."""
        lines, most = self.lines + self.lines_per_byte * size, self.bytes + self.bytes_per_byte * size
        found = [f"{cost.lines} lines, {lines:.0f} are allowed"] if cost.lines > lines else []
        found += [f"{cost.bytes} bytes, {most:.0f} are allowed"] if cost.bytes > most else []
        return "; ".join(found)


def measure(function: Callable[[bytes], Any], data: bytes) -> Cost:
    """Return what a call costs. Raises what the function raises."""
    return Cost(count_lines(function, data), measure_bytes(function, data))


def count_lines(function: Callable[[bytes], Any], data: bytes) -> int:
    """Return how many lines of Python a call runs, those of libraries included."""
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(data)
    finally:
        sys.settrace(before)
    return lines


def measure_bytes(function: Callable[[bytes], Any], data: bytes) -> int:
    """Return the most bytes that a call has allocated at one time."""
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        function(data)
        _, peak = tracemalloc.get_traced_memory()
        return peak - before
    finally:
        if not was_tracing:
            tracemalloc.stop()
