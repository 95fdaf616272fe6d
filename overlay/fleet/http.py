"""The pages of `overlay fleet run`: the status page at `/`, its data at `/fleet`, and what operators' tools ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from overlay.clock import monotonic

from .actions import Actions
from .chunks import ChunkLooks
from .events import Events
from .live import LivePicture
from .metrics import FleetMetrics
from .page import PageScope, add_page

STAND_BY = "this process stands by: another one has the fleet's topic, or Kafka has not answered yet"


def make_app(
    live: LivePicture, metrics: FleetMetrics, actions: Actions | None = None, chunks: ChunkLooks | None = None
) -> web.Application:
    """Return the application with all routes, which does not listen yet. Without `actions` nothing can be
    changed, without `chunks` no chunks are shown."""

    async def look() -> Mapping[str, Any]:
        return live.describe(_now())

    async def serve_fleet(_: web.Request) -> web.Response:
        """Answer with the picture, with status 503 and the reason if this process has none."""
        found = live.encode(_now())
        headers = {"Cache-Control": "no-store"}
        if not found:
            return web.json_response({"error": STAND_BY}, status=503, headers=headers)
        return web.Response(text=found, content_type="application/json", headers=headers)

    async def serve_ready(_: web.Request) -> web.Response:
        reasons = [] if live.describe(_now()) else [STAND_BY]
        return web.json_response({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)

    async def serve_health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def serve_metrics(_: web.Request) -> web.Response:
        metrics.set(live.describe(_now()))
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    add_page(app, PageScope.FLEET)
    Events(look, STAND_BY).add_routes(app)
    app.router.add_get("/fleet", serve_fleet)
    app.router.add_get("/readyz", serve_ready)
    app.router.add_get("/healthz", serve_health)
    app.router.add_get("/metrics", serve_metrics)
    if actions is not None:
        actions.add_routes(app)
    if chunks is not None:
        chunks.add_routes(app)
    return app


def _now() -> int:
    """Return the monotonic clock in ms."""
    return int(monotonic() * 1000)
