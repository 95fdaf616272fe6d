"""`/fleet/events`: the picture of the fleet and then what changes in it, as server-sent events for the status page.

A viewer gets the whole picture first, as the event `picture`, and then changes as events `delta` (delta.py). Each
change is found and written as JSON once, however many viewers there are, and nothing is looked at while there is none.
A viewer that takes its events too slowly gets the whole picture again in place of those that wait for it. What viewers
hold is bounded, however slow they are: they share the events, and the slowest one is cut if they hold too much.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from aiohttp import web

from overlay.clock import monotonic
from overlay.logs import get_logger
from overlay.waits import finish_in_thread

from .delta import IndexedPicture, compare, index

log = get_logger(__name__)

EVERY_S = 1.0
"""Seconds between two looks at the picture."""
LOOKS_SHARE = 10
"""A look that took long is followed by a pause of so many times its time."""
BEAT_S = 10.0
"""Seconds without a change after which a viewer is sent a heartbeat."""
SEND_S = 20.0
"""Seconds that a viewer may take to take a slice of what is sent to it, before its connection is cut."""
SLICE = 256 << 10
"""Most bytes that are sent in one go."""
MOST_VIEWERS = 100
MOST_WAITING = 16
"""Most changes that wait for one viewer."""
MOST_WAITING_BYTES = 4 << 20
"""Most bytes of them, as long as it is not a single one."""
MOST_HELD_BYTES = 128 << 20
"""Most bytes of the different messages that are being sent, as long as it is not a single one."""
RETRY_MS = 3_000
"""How long a browser waits until it connects again."""

FAILED = "the picture could not be made. The log of this process says why"
"""What viewers are told then."""

Look = Callable[[], Awaitable[Mapping[str, Any]]]
"""Returns the present picture as a JSON object, {} if there is none."""


@dataclass(slots=True, eq=False)
class Viewer:
    """A page that watches: the events that wait for it. `is_behind`: whether it gets the whole picture next, and no event
    waits.
    """

    transport: asyncio.Transport | None
    is_behind: bool = True
    message: bytes = field(default=b"", repr=False)
    """What is being sent."""
    since: float = 0.0
    """Since when, by the monotonic clock."""
    waiting: deque[bytes] = field(default_factory=deque, repr=False)
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, event: bytes) -> None:
        """Queue an event, or if too many wait, drop all and have the viewer get the whole picture."""
        size = len(event) + sum(map(len, self.waiting))
        if self.waiting and (len(self.waiting) >= MOST_WAITING or size > MOST_WAITING_BYTES):
            self.fall_behind()
        elif not self.is_behind:
            self.waiting.append(event)
        self.wake.set()

    def fall_behind(self) -> None:
        """Drop the events that wait and have the viewer get the whole picture."""
        self.waiting.clear()
        self.is_behind = True
        self.wake.set()

    def take(self) -> bytes:
        """Return the event that waits the longest, b"" if none does."""
        self.wake.clear()
        if len(self.waiting) > 1:
            self.wake.set()
        return self.waiting.popleft() if self.waiting else b""

    async def send(self, response: web.StreamResponse) -> None:
        """Send `message`, SLICE bytes at a time, so that no more than that waits in the connection's buffer. Raises
        TimeoutError if the viewer does not take a slice within SEND_S, and ConnectionError if it is gone.
        """
        for at in range(0, len(self.message), SLICE):
            async with asyncio.timeout(SEND_S):
                await response.write(self.message[at : at + SLICE])
        self.message = b""

    def cut(self) -> None:
        """Cut the connection. What the viewer has not taken is still in its buffer, and the end of the response would
        wait until it is taken.
        """
        if self.transport is not None:
            self.transport.abort()


class Events:
    """The events of one process, for all its viewers. `look`: makes the picture; `absence`: what viewers are told while
    there is none. `every`: seconds between two looks.
    """

    def __init__(self, look: Look, absence: str, every: float = EVERY_S) -> None:
        self._look, self._absence, self._every = look, absence, every
        self._viewers: set[Viewer] = set()
        self._has_viewers = asyncio.Event()
        self._is_closed = False
        self._picture: Mapping[str, Any] | None = None
        """The picture that all viewers have that are not behind; {} if they know that there is none; None before the first
        look."""
        self._tables = IndexedPicture()
        self._whole = b""
        """The event that has the whole picture; empty until it is asked for, and if there is none."""
        self._writing = asyncio.Lock()
        self._trouble = ""
        """Why the last look failed, empty if it did not."""

    def add_routes(self, app: web.Application) -> None:
        """Add `/fleet/events` to an application, which looks at the picture while it runs and there are viewers."""
        app.router.add_get("/fleet/events", self._serve, allow_head=False)
        app.cleanup_ctx.append(self._keep_looking)
        app.on_shutdown.append(self._close)

    async def _keep_looking(self, _: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(self._run(), name="fleet events")
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        """Look at the picture again and again while there are viewers, and tell them what has changed."""
        while True:
            if not self._viewers:
                self._picture, self._tables, self._whole = None, IndexedPicture(), b""
                self._has_viewers.clear()
                await self._has_viewers.wait()
            began = monotonic()
            try:
                self.tell(await self._look())
                self._trouble = ""
            except Exception as error:  # noqa: BLE001 - whatever it is, viewers are told and the next look may do
                self._fail(error)
            await asyncio.sleep(max(self._every, LOOKS_SHARE * (monotonic() - began)))

    def _fail(self, error: Exception) -> None:
        """Tell all viewers that the picture could not be made. Log why, unless the last look failed by the same reason."""
        reason = str(error) or type(error).__name__
        if reason != self._trouble:
            log.exception("the picture for the status page could not be made", reason=reason, of=error)
        self._trouble = reason
        self.tell({})

    def tell(self, picture: Mapping[str, Any]) -> None:
        """Take the present picture, and tell all viewers what has changed. If it is no picture, and this raises, nothing has
        changed."""
        before = self._picture
        if picture is before:
            return
        tables = index(picture)
        delta = compare(self._tables, tables)
        event = _write("delta", delta) if before and picture and delta.keys() - {"time"} else b""
        self._picture, self._tables, self._whole = picture, tables, b""
        for viewer in self._viewers:
            if event:
                viewer.put(event)
            elif before != picture and not (before and picture):
                viewer.fall_behind()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        """Send events to one viewer until it goes, its connection is cut for taking too little, or the process ends. Answers
        with status 503 if there are too many viewers.
        """
        if self._is_closed or len(self._viewers) >= MOST_VIEWERS:
            reason = f"{MOST_VIEWERS} pages watch already, or this process ends. Ask for /fleet instead"
            headers = {"Cache-Control": "no-store", "Retry-After": "60"}
            return web.json_response({"error": reason}, status=HTTPStatus.SERVICE_UNAVAILABLE, headers=headers)
        # X-Accel-Buffering: nginx would keep events back
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        response, viewer = web.StreamResponse(headers=headers), Viewer(request.transport)
        self._viewers.add(viewer)
        self._has_viewers.set()
        try:
            await response.prepare(request)
            await response.write(f"retry: {RETRY_MS}\n\n".encode())
            if self._picture is not None:
                viewer.wake.set()
            while message := await self._wait(viewer):
                self._hold(viewer, message)
                await viewer.send(response)
        except TimeoutError:
            viewer.cut()
        except ConnectionError:
            pass
        finally:
            self._viewers.discard(viewer)
        return response

    def _hold(self, viewer: Viewer, message: bytes) -> None:
        """Note that a message is sent to a viewer. If too many bytes are being sent now, cut the slowest viewers. A message
        counts once, however many viewers it is sent to.
        """
        viewer.message, viewer.since = message, monotonic()
        busy = sorted((each for each in self._viewers if each.message), key=lambda each: each.since)
        for slowest in busy:
            held = {id(each.message): len(each.message) for each in busy}
            if len(held) < 2 or sum(held.values()) <= MOST_HELD_BYTES:
                return
            slowest.cut()
            busy = busy[1:]

    async def _wait(self, viewer: Viewer) -> bytes:
        """Wait for an event for a viewer and return it, after BEAT_S without one a heartbeat; b"" once the process ends."""
        if not self._is_closed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await viewer.wake.wait()
        if self._is_closed:
            return b""
        is_due = viewer.wake.is_set() and self._picture is not None
        event = viewer.take()
        if is_due and viewer.is_behind:
            whole = await self._take_whole(viewer)
            return b"" if self._is_closed else whole
        return event or self._write_beat()

    def _write_beat(self) -> bytes:
        """Return a comment, by which proxies see that the connection lives, and an event by which the page sees the same: a
        change of the time alone, or again that there is no picture. Before the first look there is no event.
        """
        if self._picture is None:
            return b": beat\n\n"
        return b": beat\n\n" + (
            _write("delta", {"time": self._picture["time"]}) if self._picture else self._write_absent()
        )

    def _write_absent(self) -> bytes:
        """Return the event that says that there is no picture."""
        return _write("absent", {"error": FAILED if self._trouble else self._absence})

    async def _take_whole(self, viewer: Viewer) -> bytes:
        """Return the event that has the whole picture, or that says that there is none, for a viewer that is behind. From then
        on changes are put to the viewer. A long picture is written beside the event loop, and once for all viewers.
        """
        async with self._writing:
            viewer.is_behind, picture = False, self._picture
            if self._whole or not picture:
                return self._whole or self._write_absent()
            whole = await finish_in_thread(_write, "picture", picture)
            if picture is self._picture:
                self._whole = whole
            return whole

    async def _close(self, _: web.Application) -> None:
        """End the responses to all viewers."""
        self._is_closed = True
        for viewer in self._viewers:
            viewer.wake.set()
            if viewer.message:
                viewer.cut()


def _write(name: str, body: Mapping[str, Any]) -> bytes:
    """Return a server-sent event. JSON text has no line breaks, so one line of data takes it."""
    return f"event: {name}\ndata: {json.dumps(body, separators=(',', ':'))}\n\n".encode()
