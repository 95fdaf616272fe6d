"""The only module that reads clocks: the wall clock for times that others see, the monotonic clock
for time spans.
"""

from __future__ import annotations

import time


def now_ms() -> int:
    """Return milliseconds since 1970, the unit of Kafka's timestamps."""
    return time.time_ns() // 1_000_000


def now_ns() -> int:
    """Return nanoseconds since 1970, the unit of JetStream's times."""
    return time.time_ns()


def monotonic() -> float:
    """Return seconds since a moment that differs between processes. Changes of the wall clock do
    not affect it.
    """
    return time.monotonic()
