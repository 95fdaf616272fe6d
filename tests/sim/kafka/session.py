"""A connection as a broker sees it, and an answer that may come later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Session:
    """A connection to one broker. `closed` is set by either side; `on_close` is called when the broker ends it."""

    __slots__ = ("broker", "client_id", "closed", "held", "on_close")

    def __init__(self, broker: int, client_id: str) -> None:
        self.broker = broker
        self.client_id = client_id
        self.closed = False
        self.on_close: list[Callable[[], None]] = []
        self.held: set[Answer] = set()
        """Answers that the broker still owes."""


class Answer:
    """A broker's answer. `response` is None while the broker holds it, and for ever if `is_silent` (acks=0)."""

    __slots__ = ("_callbacks", "is_silent", "request", "response", "session")

    def __init__(self, session: Session, request: Any) -> None:
        self.session = session
        self.request = request
        self.response: Any = None
        self.is_silent = False
        self._callbacks: list[Callable[[], None]] | None = None

    @property
    def is_held(self) -> bool:
        """Whether the response comes later."""
        return self.response is None and not self.is_silent

    def done(self, callback: Callable[[], None]) -> None:
        """Call back as soon as there is a response: at once if it is there already."""
        if self.response is not None:
            callback()
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def give(self, *fields: Any) -> None:
        """Answer, with the fields of the response. A session that was closed meanwhile hears nothing."""
        if self.response is not None or self.session.closed:
            return
        self.session.held.discard(self)
        self.response = self.request.RESPONSE_TYPE(*fields)
        callbacks, self._callbacks = self._callbacks, None
        if callbacks:
            for callback in callbacks:
                callback()
