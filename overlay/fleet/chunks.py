"""`/fleet/chunks`: which chunks of a stream's log a consumer's filter skips, for the status page, on request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from aiohttp import web

from overlay.clock import monotonic
from overlay.errors import OverlayError

KEEP_S = 30.0
"""Seconds for which an answer is used again."""
MOST_KEPT = 16
"""Most answers that are kept."""
MOST_NAME = 255
"""Most characters of a stream's or consumer's name."""


@dataclass(slots=True)
class ChunkLooks:
    """The HTTP route for looks at chunks, of which one runs at a time, to its end even if its request has ended. `draw`: makes
    the answer for a stream and a consumer, as a JSON object; it blocks, and raises OverlayError.
    """

    draw: Callable[[str, str], dict[str, Any]]
    _kept: dict[tuple[str, str], tuple[float, dict[str, Any]]] = field(default_factory=dict)
    """Answers, and when they were made by the monotonic clock; the oldest first."""
    _looking: asyncio.Task[dict[str, Any]] | None = None
    """The look that is under way, or the last one."""

    def add_routes(self, app: web.Application) -> None:
        """Add `/fleet/chunks` to an application."""
        app.router.add_get("/fleet/chunks", self._serve)

    async def _serve(self, request: web.Request) -> web.Response:
        """Answer with the chunks for the consumer that `stream` and `consumer` of the query name, or with `{"error": reason}`
        and status 400, 502, or 503 while another look is under way.
        """
        asked = request.query.get("stream", ""), request.query.get("consumer", "")
        if not all(0 < len(name) <= MOST_NAME for name in asked):
            return _refuse(HTTPStatus.BAD_REQUEST, "say ?stream=STREAM&consumer=NAME")
        if (known := self._find(asked)) is not None:
            return web.json_response(known)
        if self._looking is not None and not self._looking.done():
            return _refuse(
                HTTPStatus.SERVICE_UNAVAILABLE, "another look at chunks is under way. Try again when it is done"
            )
        self._looking = asyncio.create_task(self._look(asked), name="chunks")
        # an error is told here, or if the request has ended to no one
        self._looking.add_done_callback(lambda look: look.cancelled() or look.exception())
        try:
            return web.json_response(await asyncio.shield(self._looking))
        except OverlayError as error:
            return _refuse(HTTPStatus.BAD_GATEWAY, str(error))

    async def _look(self, asked: tuple[str, str]) -> dict[str, Any]:
        """Return what `draw` makes, in a thread of its own, and keep it. Raises OverlayError."""
        found = await asyncio.to_thread(self.draw, *asked)
        self._kept.pop(asked, None)
        self._kept[asked] = monotonic(), found
        if len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return found

    def _find(self, asked: tuple[str, str]) -> dict[str, Any] | None:
        """Return the kept answer for a stream and a consumer, None if there is none or it is too old."""
        made, found = self._kept.get(asked, (0.0, None))
        return found if found is not None and monotonic() - made < KEEP_S else None


def _refuse(status: HTTPStatus, reason: str) -> web.Response:
    return web.json_response({"error": reason}, status=status)
