"""What an input costs: lines of Python that run, bytes that are allocated at the same time, and processor time.

Lines and bytes are counted, and the same on every machine, however busy it is. Kernels and other code in C run no lines; for
them the processor time of the thread is measured, which other processes take little of. It has budgets that are many times
what a sound input takes: they find what grows faster than the input.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

TRIES = 5
"""Measurements of processor time before a call counts as slow: one may meet a cold cache."""


@dataclass(frozen=True, slots=True)
class Cost:
    lines: int
    bytes: int
    """The most that was allocated at one time."""
    us: int = 0
    """Processor time in microseconds, 0 if it was not measured."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What an input of `n` bytes may cost: a fixed part, and a part for each byte."""

    lines: int
    lines_per_byte: float
    bytes: int
    bytes_per_byte: float
    us: int = 50_000
    us_per_byte: float = 10

    def find_excess(self, cost: Cost, size: int) -> str:
        """Return by what an input of `size` bytes is over the budget, empty if it is not."""
        lines, most = self.lines + self.lines_per_byte * size, self.bytes + self.bytes_per_byte * size
        found = [f"{cost.lines} lines, {lines:.0f} are allowed"] if cost.lines > lines else []
        found += [f"{cost.bytes} bytes, {most:.0f} are allowed"] if cost.bytes > most else []
        most_us = self.us + self.us_per_byte * size
        found += [f"{cost.us} us of the processor, {most_us:.0f} are allowed"] if cost.us > most_us else []
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


def measure_us(function: Callable[[bytes], Any], data: bytes) -> int:
    """Return the processor time of a call in this thread, in microseconds."""
    before = time.thread_time_ns()
    function(data)
    return (time.thread_time_ns() - before) // 1_000


def find_slowness(budget: Budget, function: Callable[[bytes], Any], data: bytes) -> str:
    """Return by what the processor time of a call is over the budget, empty if it is not. A call that is over it is made
    again, and the fastest of TRIES counts.
    """
    excess = ""
    for _ in range(TRIES):
        if not (excess := budget.find_excess(Cost(0, 0, measure_us(function, data)), len(data))):
            break
    return excess


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
