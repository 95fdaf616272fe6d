"""HTTP for operators: the status page of this worker, /metrics, /healthz and /readyz, and /service, /streams and
/consumers for the CLI."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from overlay import ports
from overlay.config import HttpConfig
from overlay.default_folder import SERVICE_FILE
from overlay.errors import OverlayError
from overlay.fleet.events import Events
from overlay.fleet.page import PageScope, add_page
from overlay.metrics import Metrics
from overlay.waits import finish_in_thread

from .access import load_tls, make_guard, watch_certificate
from .metrics_page import MetricsPage
from .own_picture import KEEP_S

NO_PICTURE = "the worker cannot tell how it is"


class Reports(Protocol):
    """What a worker tells of itself."""

    def report(self) -> Mapping[str, Any]:
        """Return the bodies of /service, /streams and /consumers, by the keys `service`, `streams`
        and `consumers`."""
        ...

    def report_readiness(self) -> Mapping[str, Any]:
        """Return {"ready": bool, "reasons": [...]}."""
        ...

    async def look(self) -> Mapping[str, Any]:
        """Return what the worker knows as the JSON object that `/fleet` of `overlay fleet run` answers."""
        ...

    async def set_gauges(self) -> None:
        """Set the gauges that no event sets."""
        ...


def make_app(metrics: Metrics | None, reports: Reports) -> web.Application:
    """Return the application with all routes, which does not listen yet. Without `metrics` it has
    no /metrics. It lets every request in: `start_http` adds the checks of host name and token."""

    async def serve_health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def serve_ready(_: web.Request) -> web.Response:
        """Answer with readiness and its reasons as JSON, with status 503 if the service is not
        ready."""
        found = reports.report_readiness()
        return web.json_response(found, status=200 if found["ready"] else 503)

    def serve_part(part: str) -> Callable[[web.Request], Any]:
        """Return a handler that answers with the value of key `part` of the report, as JSON."""

        async def serve(_: web.Request) -> web.Response:
            return web.json_response(reports.report()[part])

        return serve

    async def serve_picture(_: web.Request) -> web.Response:
        text = await finish_in_thread(json.dumps, await reports.look())
        return web.json_response(text=text, headers={"Cache-Control": "no-store"})

    app = web.Application() if metrics is None else make_metrics_app(metrics, reports)
    add_page(app, PageScope.WORKER)
    app.router.add_get("/fleet", serve_picture)
    Events(reports.look, NO_PICTURE, KEEP_S).add_routes(app)
    app.router.add_get("/healthz", serve_health)
    app.router.add_get("/readyz", serve_ready)
    app.router.add_get("/service", serve_part("service"))
    app.router.add_get("/streams", serve_part("streams"))
    app.router.add_get("/consumers", serve_part("consumers"))
    return app


def make_metrics_app(metrics: Metrics, reports: Reports) -> web.Application:
    """Return an application with /metrics alone, which does not listen yet. It lets every request in:
    `start_http` adds the checks of host name and token."""
    page = MetricsPage(metrics, reports.set_gauges)

    async def serve_metrics(_: web.Request) -> web.Response:
        return web.Response(body=await page.read(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/metrics", serve_metrics)
    return app


async def start_pages(
    metrics: Metrics, reports: Reports, http: HttpConfig, file: str = SERVICE_FILE
) -> tuple[list[web.AppRunner], int]:
    """Begin to listen with all pages at http.listen, but with /metrics at http.metrics_listen alone if that
    is set. Return the runners, whose `cleanup` ends them, and the real port of http.listen. `file`: as of
    `start_http`. Raises OverlayError as that; then nothing listens."""
    if http.metrics_address is None:
        runner, port = await start_http(make_app(metrics, reports), http, http.address, file=file)
        return [runner], port
    runner, port = await start_http(make_app(None, reports), http, http.address, file=file)
    try:
        app = make_metrics_app(metrics, reports)
        beside, _ = await start_http(app, http, http.metrics_address, field="http.metrics_listen", file=file)
    except BaseException:
        await runner.cleanup()
        raise
    return [runner, beside], port


async def start_http(
    app: web.Application,
    http: HttpConfig,
    address: tuple[str, int],
    field: str = "http.listen",
    file: str = SERVICE_FILE,
) -> tuple[web.AppRunner, int]:
    """Begin to listen at a host and port, with the token and TLS of `http`; port 0 lets the system choose
    one. Return the runner, whose `cleanup` ends it, and the real port. Raises OverlayError if it cannot
    listen there, or if the certificate or the token cannot be used.

    `field`: which field of overlay.yaml has the address, and `file`: where that is, for that error, which also names a
    port that is free if this one is taken.
    """
    tls = load_tls(http)
    app.middlewares.append(make_guard(http, address[0]))
    if tls is not None:
        app.cleanup_ctx.append(watch_certificate(http, tls))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, *address, ssl_context=tls)
    try:
        await site.start()
    except OSError as error:
        await runner.cleanup()
        near = ports.find_near(*address) if error.errno == errno.EADDRINUSE else None
        other = f", such as to {ports.write_address(address[0], near)}" if near is not None else ""
        raise OverlayError(
            f"{ports.write_address(*address)}: cannot listen there: {error}. Change {field} in {file}{other}"
        ) from error
    return runner, runner.addresses[0][1]
