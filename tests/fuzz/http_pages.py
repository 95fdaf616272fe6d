"""Requests to the HTTP pages as strangers may send them: host name, authorization, token of administrators, query and body.

They go to the real application, from behind the parser of aiohttp: a header or a query may be any text, as it may there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from typing import Any, cast
from unittest import mock

from aiohttp import StreamReader, web
from aiohttp.http import HttpVersion11, RawRequestMessage
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from overlay.config import HttpConfig
from overlay.errors import OverlayError
from overlay.fleet.actions import HEADER, Actions, Requests
from overlay.fleet.chunks import ChunkLooks
from overlay.fleet.live import LivePicture
from overlay.worker.access import make_guard
from overlay.worker.http import Reports, make_app

TOKEN, ADMIN_TOKEN = "a-token-of-sixteen", "another-one-of-sixteen"
ROUTES = (("GET", "/readyz"), ("GET", "/fleet/chunks"), ("POST", "/actions"))
ANSWERS = {
    *(HTTPStatus.OK, HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.CONFLICT),
    *(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE),
}

CONNECTION: Any = mock.Mock(_reading_paused=False, ssl_context=None, peername=("127.0.0.1", 50_000))
"""Of all requests: what reads from it has the body already, and nothing is written to it."""


class Refusing:
    """Carries out no action: each is refused as the service may refuse it."""

    def __getattr__(self, name: str) -> Any:
        def refuse(*_: object) -> None:
            raise OverlayError(name)

        return refuse


class Still:
    """What a worker tells of itself: nothing."""

    def report(self) -> Mapping[str, Any]:
        return {"service": {}, "streams": [], "consumers": []}

    def report_readiness(self) -> Mapping[str, Any]:
        return {"ready": True, "reasons": []}

    async def look(self) -> Mapping[str, Any]:
        return {}


@cache
def open_pages() -> tuple[asyncio.AbstractEventLoop, web.Application]:
    """Return the application, and the loop that answers its requests."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    app = make_app(None, cast(Reports, Still()))
    http = HttpConfig(token=TOKEN, hosts=("overlay.example",))
    app.middlewares.append(make_guard(http, "127.0.0.1"))
    Actions(lambda: ADMIN_TOKEN, cast(Requests, Refusing()), mock.Mock(LivePicture, picture=None)).add_routes(app)
    ChunkLooks(lambda stream, consumer: {"chunks": []}).add_routes(app)
    logging.getLogger("aiohttp").setLevel(logging.CRITICAL)
    app.freeze()
    return loop, app


def ask(method: str, path: str, query: str, headers: Mapping[str, str], body: bytes) -> int:
    """Return the status of the answer."""
    loop, app = open_pages()
    payload = StreamReader(CONNECTION, 1 << 16, loop=loop)
    payload.feed_data(body)
    payload.feed_eof()
    url, given = URL.build(path=path, query_string=query, encoded=True), CIMultiDictProxy(CIMultiDict(headers))
    message = RawRequestMessage(method, path, HttpVersion11, given, (), False, None, False, False, url)
    task = cast("asyncio.Task[None]", None)
    request = web.Request(message, payload, CONNECTION, CONNECTION, task, loop)
    return int(loop.run_until_complete(app._handle(request)).status)


def read_request(data: bytes, split: bytes) -> None:
    """Have all of ROUTES asked. `split`: what is between the parts of an input."""
    texts = [part.decode("utf-8", "surrogateescape") for part in data.split(split, 4)]
    texts += [""] * (5 - len(texts))
    host, authorization, token, query, body = texts
    headers = {"Host": host, "Authorization": authorization, HEADER: token}
    for method, path in ROUTES:
        answer = ask(method, path, query, headers, body.encode("utf-8", "surrogateescape"))
        assert answer in ANSWERS, f"{method} {path}: {answer}"


def list_requests(split: bytes) -> list[bytes]:
    """Return requests that pass all checks, and others."""
    query = b"stream=FLIGHTS&consumer=late%2Djfk"
    bodies = (
        b'{"action": "pause", "stream": "S", "consumer": "c", "seconds": 60}',
        b'{"action": "reset", "stream": "S", "to": "start", "dry_run": true}', b'{"action": "drain", "worker": "w"}', b"",
    )  # fmt: skip
    bearer, basic = b"Bearer " + TOKEN.encode(), b"Basic dTphLXRva2VuLW9mLXNpeHRlZW4="
    return [
        split.join((host, scheme, ADMIN_TOKEN.encode(), query, body))
        for host, scheme in ((b"[::1]:8222", bearer), (b"overlay.example", basic), (b"evil.example", bearer))
        for body in bodies
    ]
