"""Wait for a condition with a deadline, instead of sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], deadline_s: float, what: str) -> T:
    """Call `condition` until it returns something true, and return that. Fails with `what` after `deadline_s`.

    The last look is begun after the deadline. One that began before may have been held up on its way, and tells nothing of the
    time since.
    """
    end = time.monotonic() + deadline_s
    while True:
        is_late = time.monotonic() > end
        if answer := condition():
            return answer
        if is_late:
            raise AssertionError(f"after {deadline_s} s still not: {what} (last answer: {answer!r})")
        time.sleep(0.02)
