"""The jobs of one program: a query for each stream, which do not end each other, and streams that come while it runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from overlay.clock import monotonic
from overlay.config import load
from overlay.errors import OverlayError
from overlay.logs import get_logger

from .job.folder import list_streams
from .job.ranges import find_digest

log = get_logger(__name__)

LOOK_S = 1
RETRY_S = 30.0
"""Seconds after which the job of a stream that has come later is started again, if it could not be."""

Start = Callable[[str], AbstractContextManager[StreamingQuery]]
"""Starts the job of a stream, which is stopped at the end of the block. Raises OverlayError."""


@dataclass(slots=True)
class Jobs:
    """The jobs of a program, one for each stream. `start`: starts one. `errors`: those that have failed, each with its own
    error.
    """

    start: Start
    stack: ExitStack
    errors: dict[str, Exception] = field(default_factory=dict)
    _running: dict[str, StreamingQuery] = field(default_factory=dict)

    def add(self, stream: str) -> None:
        """Start the job of a stream. Its error is kept."""
        try:
            self._running[stream] = self.stack.enter_context(self.start(stream))
        except OverlayError as error:
            self.errors[stream] = error

    def look(self) -> bool:
        """Wait a moment, and return whether any job runs. The error of one that has failed is kept."""
        for stream, query in tuple(self._running.items()):
            try:
                if not query.awaitTermination(LOOK_S):
                    continue
            except StreamingQueryException as error:
                self.errors[stream] = error
            del self._running[stream]
        return bool(self._running)


def run_once(jobs: Jobs, enough: threading.Event) -> None:
    """Wait until all jobs have ended, whether or not some of them fail, or until `enough`."""
    while jobs.look() and not enough.is_set():
        pass


def run_on(jobs: Jobs, enough: threading.Event, streams: StreamWatch | None) -> None:
    """Wait until a job fails or until `enough`. Meanwhile start the jobs of streams that get their first consumer with `engine:
    spark`; None for `streams` starts none. One that cannot be started is logged and tried again: it ends no other.
    """
    while jobs.look() and not jobs.errors and not enough.is_set():
        for stream in streams.find_new() if streams is not None else ():
            jobs.add(stream)
            if error := jobs.errors.pop(stream, None):
                log.error("the job of a stream does not start; it is tried again", stream=stream, reason=str(error))
                assert streams is not None
                streams.put_off(stream)


@dataclass(slots=True)
class StreamWatch:
    """Looks in a config folder for streams that have got consumers with `engine: spark`. `known`: those that have a job, or
    were put off.
    """

    folder: Path
    known: set[str]
    _digest: str = ""
    _retry: dict[str, float] = field(default_factory=dict)
    """When to try the streams again that could not be started, monotonic seconds."""
    _refused: str = ""
    """A digest of the folder that cannot be read, empty if it can."""
    _look_at: float = 0.0
    """When to try that again, monotonic seconds: a changed overlay.yaml has no part in the digest."""

    def find_new(self) -> list[str]:
        """Return the streams whose job is to be started now, sorted: those that are new, and those that were put off. A folder
        that is being changed is looked at later, and one that cannot be read, because of a mistake in overlay.yaml, after
        RETRY_S: it is logged, and the jobs go on.
        """
        due = {stream for stream, at in self._retry.items() if monotonic() >= at}
        digest = find_digest(self.folder)
        if not digest or (digest == self._digest and not due):
            return []
        if digest == self._refused and monotonic() < self._look_at:
            return []
        try:
            there = set(list_streams(load(self.folder)))
        except OverlayError as error:
            if digest != self._refused:
                log.error("the folder cannot be read; the jobs go on, and none is started", reason=str(error))
            self._refused, self._look_at = digest, monotonic() + RETRY_S
            return []
        self._digest, self._refused = digest, ""
        # of a stream without consumers no job is to be started, until it gets one
        self.known -= self._retry.keys() - there
        new = (there - self.known) | (due & there)
        self.known |= new
        self._retry = {stream: at for stream, at in self._retry.items() if stream in there - new}
        return sorted(new)

    def put_off(self, stream: str) -> None:
        """Try the stream again after RETRY_S."""
        self._retry[stream] = monotonic() + RETRY_S


def await_sigterm() -> threading.Event:
    """Return an event that SIGTERM sets. A signal handler may not call Java: it could run in the middle of another call."""
    enough = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: enough.set())
    return enough
