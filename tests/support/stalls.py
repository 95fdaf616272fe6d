"""Times in which a test's process, or its broker, got no processor: what was measured then tells nothing of the product."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from confluent_kafka.admin import AdminClient

TICK_S = 0.01
ANSWER_S = 60
NOWHERE = "stalls-nowhere"
"""No topic: its metadata are short."""


class Stalls:
    """A thread for the length of a `with` block that wakes up again and again, and then asks the broker, if there is one,
    for some metadata. `longest_s`: by how much it was late at most, with the answer.
    """

    def __init__(self, bootstrap: str = "") -> None:
        self.longest_s = 0.0
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}) if bootstrap else None
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
            if self._admin is not None:
                self._admin.list_topics(NOWHERE, ANSWER_S)
            now = time.monotonic()
            self.longest_s, before = max(self.longest_s, now - before - TICK_S), now
        self.longest_s = max(self.longest_s, time.monotonic() - before - TICK_S)
