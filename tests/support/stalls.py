"""Times in which a test's process, its broker or its service got no processor: what was measured then says nothing."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
import urllib.error
import urllib.request
from types import TracebackType
from typing import Self

from confluent_kafka.admin import AdminClient

TICK_S = 0.02
STALL_S = 0.2
ANSWER_S = 60
NOWHERE = "stalls-nowhere"
"""No topic: its metadata are short."""


class Stalls:
    """A thread for the length of a `with` block that wakes up again and again, and then asks the broker at `bootstrap` and the
    service at `url`, if they are given. A service that is not there is no stall.

    `seen`: begin and end of each round that was late by STALL_S or more, in ms since 1970.
    """

    def __init__(self, bootstrap: str = "", url: str = "") -> None:
        self.seen: list[tuple[int, int]] = []
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}) if bootstrap else None
        self._url = url
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stalls", daemon=True)

    @property
    def longest_ms(self) -> int:
        return max((end - begin for begin, end in self.seen), default=0)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        is_over = False
        while not is_over:
            began, wall_ms = time.monotonic(), int(time.time() * 1000)
            is_over = self._is_over.wait(TICK_S)
            if self._admin is not None:
                self._admin.list_topics(NOWHERE, ANSWER_S)
            if self._url:
                with (
                    contextlib.suppress(urllib.error.URLError, http.client.HTTPException, OSError),
                    urllib.request.urlopen(self._url, timeout=ANSWER_S),
                ):
                    pass
            if (late_s := time.monotonic() - began) >= STALL_S:
                self.seen.append((wall_ms, wall_ms + int(late_s * 1000)))
