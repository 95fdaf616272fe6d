"""The only module that reads clocks for the service: the wall clock for times that others see, the
monotonic clock for time spans. Clients, commands and the demo measure spans by time.monotonic
itself.
"""

from __future__ import annotations

import time


def now_ms() -> int:
    """Return the wall clock's milliseconds since 1970 UTC, the unit of Kafka's timestamps."""
    return time.time_ns() // 1_000_000


def now_ns() -> int:
    """Return the wall clock's nanoseconds since 1970 UTC, the unit of JetStream's times."""
    return time.time_ns()


def monotonic() -> float:
    """Return seconds since an arbitrary moment, for time spans within one process. Changes of the
    wall clock do not affect it.
    """
    return time.monotonic()
