"""The one place that reads clocks: the wall clock for times that others see, the monotonic clock for spans."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Milliseconds since 1970, as Kafka's timestamps count."""
    return time.time_ns() // 1_000_000


def now_ns() -> int:
    """Nanoseconds since 1970, as JetStream's times count."""
    return time.time_ns()


def monotonic() -> float:
    """Seconds since some moment, which differs between processes. Changes of the wall clock do not move it."""
    return time.monotonic()
