"""The pages of `overlay fleet run`: the status page at `/`, its data at `/fleet`, and what operators' tools ask."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from overlay.clock import monotonic

from .actions import Actions
from .live import LivePicture
from .metrics import FleetMetrics

STAND_BY = "this process stands by: another one has the fleet's topic, or Kafka has not answered yet"


def read_page() -> tuple[str, str]:
    """Return the HTML of the status page, and the value of its Content-Security-Policy: the page may run its own
    script and style, fetch from its own address, show images of data: URLs, and nothing else.
    """
    page = files("overlay.fleet").joinpath("page.html").read_text(encoding="utf-8")
    parts = {name: re.findall(rf"<{name}>(.*?)</{name}>", page, re.DOTALL) for name in ("script", "style")}
    rules = [f"{name}-src {' '.join(map(_hash, texts))}" for name, texts in parts.items()]
    return page, "; ".join(
        ["default-src 'none'", "img-src data:", "connect-src 'self'", "base-uri 'none'", "form-action 'none'", *rules]
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def make_app(live: LivePicture, metrics: FleetMetrics, actions: Actions | None = None) -> web.Application:
    """Return the application with all routes, which does not listen yet. Without `actions` nothing can be
    changed."""
    page, policy = read_page()

    async def serve_page(_: web.Request) -> web.Response:
        headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}
        return web.Response(text=page, content_type="text/html", headers=headers)

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
    app.router.add_get("/", serve_page)
    app.router.add_get("/fleet", serve_fleet)
    app.router.add_get("/readyz", serve_ready)
    app.router.add_get("/healthz", serve_health)
    app.router.add_get("/metrics", serve_metrics)
    if actions is not None:
        actions.add_routes(app)
    return app


def _now() -> int:
    """Return the monotonic clock in ms."""
    return int(monotonic() * 1000)
