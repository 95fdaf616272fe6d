"""The one place that reads the wall clock."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Milliseconds since 1970, as Kafka's timestamps count."""
    return time.time_ns() // 1_000_000


def now_ns() -> int:
    """Nanoseconds since 1970, as JetStream's times count."""
    return time.time_ns()
