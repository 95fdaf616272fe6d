"""HTTP for operators: /metrics, /healthz and /readyz, and /service, /streams and /consumers for the
CLI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from overlay.errors import OverlayError
from overlay.metrics import Metrics

Report = Callable[[], dict[str, Any]]


def make_app(metrics: Metrics, report: Report) -> web.Application:
    """Return the application with all routes, which does not listen yet.

    `report()` is called for every request but /healthz. It returns {"ready": bool, "reasons":
    [...], "service": {...}, "streams": [...], "consumers": [...]} and sets the gauges.
    """

    async def serve_metrics(_: web.Request) -> web.Response:
        report()  # sets the gauges
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def serve_health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def serve_ready(_: web.Request) -> web.Response:
        """Answer with readiness and its reasons as JSON, with status 503 if the service is not
        ready."""
        found = report()
        return web.json_response(
            {"ready": found["ready"], "reasons": found["reasons"]}, status=200 if found["ready"] else 503
        )

    def serve_part(part: str) -> Callable[[web.Request], Any]:
        """Return a handler that answers with the value of key `part` of the report, as JSON."""

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


async def start_http(
    app: web.Application, address: tuple[str, int], field: str = "http.listen"
) -> tuple[web.AppRunner, int]:
    """Begin to listen at a host and port; port 0 lets the system choose one. Return the runner,
    whose `cleanup` ends it, and the real port. Raises OverlayError if it cannot listen there.

    `field`: which field of overlay.yaml has the address, for that error.
    """
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, *address)
    try:
        await site.start()
    except OSError as error:
        await runner.cleanup()
        raise OverlayError(f"{address[0]}:{address[1]}: cannot listen there: {error}. Change {field}") from error
    return runner, runner.addresses[0][1]
