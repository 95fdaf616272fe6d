"""The service's door for operators: /metrics, /healthz, /readyz, and /service, /streams and /consumers for the CLI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from overlay.errors import OverlayError
from overlay.metrics import Metrics

Report = Callable[[], dict[str, Any]]


def make_app(metrics: Metrics, report: Report) -> web.Application:
    """`report()` gives {"ready": bool, "reasons": [...], "service": {...}, "streams": [...], "consumers": [...]}."""

    async def serve_metrics(_: web.Request) -> web.Response:
        report()  # sets the gauges
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def serve_health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def serve_ready(_: web.Request) -> web.Response:
        found = report()
        return web.json_response(
            {"ready": found["ready"], "reasons": found["reasons"]}, status=200 if found["ready"] else 503
        )

    def serve_part(part: str) -> Callable[[web.Request], Any]:
        async def serve(_: web.Request) -> web.Response:
            return web.json_response(report()[part])

        return serve

    app = web.Application()
    app.router.add_get("/metrics", serve_metrics)
    app.router.add_get("/healthz", serve_health)
    app.router.add_get("/readyz", serve_ready)
    app.router.add_get("/service", serve_part("service"))
    app.router.add_get("/streams", serve_part("streams"))
    app.router.add_get("/consumers", serve_part("consumers"))
    return app


async def start_http(app: web.Application, address: tuple[str, int]) -> tuple[web.AppRunner, int]:
    """Listen; returns what to clean up and the port, which differs from the asked one when that was 0. Raises OverlayError."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, *address)
    try:
        await site.start()
    except OSError as error:
        await runner.cleanup()
        raise OverlayError(f"{address[0]}:{address[1]}: cannot listen there: {error}. Change http.listen") from error
    return runner, runner.addresses[0][1]
