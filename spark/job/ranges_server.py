"""The driver's side of the ranges source: a thread that answers Spark's questions (ranges_source.py)."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from types import TracebackType

from .ranges import RangesReader

CLOSE_S = 5.0
"""How long closing waits for the question that is being answered. Later its thread ends by itself."""


class RangesServer:
    """A server on a socket that only this user can open. `address`: the socket's path.

    Questions are answered one after the other, as Spark asks them.
    """

    def __init__(self, reader: RangesReader) -> None:
        self._answers: dict[str, Callable[..., object]] = {
            "initialOffset": reader.initialOffset,
            "getDefaultReadLimit": reader.getDefaultReadLimit,
            "latestOffset": reader.latestOffset,
            "reportLatestOffset": reader.reportLatestOffset,
            "prepareForTriggerAvailableNow": reader.prepareForTriggerAvailableNow,
            "find_text": reader.find_text,
        }
        self._folder = tempfile.TemporaryDirectory(prefix="overlay-ranges-")
        self.address = str(Path(self._folder.name, "socket"))
        self._listener = Listener(self.address, "AF_UNIX")
        self._thread = threading.Thread(target=self._serve, name="ranges", daemon=True)
        self._thread.start()

    def __enter__(self) -> RangesServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Answer no further question, and remove the socket."""
        with Client(self.address, "AF_UNIX") as line:
            line.send(None)
        self._thread.join(CLOSE_S)
        self._listener.close()
        self._folder.cleanup()

    def _serve(self) -> None:
        while True:
            with self._listener.accept() as line:
                try:
                    asked = line.recv()
                except (EOFError, OSError):  # Spark has ended the process that was about to ask
                    continue
                if asked is None:
                    return
                self._answer(line, *asked)

    def _answer(self, line: Connection[object, object], question: str, arguments: tuple[object, ...]) -> None:
        answer: object = None
        error: tuple[str, str, str] | None = None
        try:
            answer = self._answers[question](*arguments)
        except Exception as failed:  # noqa: BLE001 - raised again in the process that asks
            error = type(failed).__module__, type(failed).__name__, str(failed)
        try:
            line.send((answer, error))
        except OSError:  # the process that asked has ended
            return
