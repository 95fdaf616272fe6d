"""The status page: one file of HTML, served by `overlay fleet run` for all workers and by `overlay run` for its own."""

from __future__ import annotations

import base64
import hashlib
import re
from enum import StrEnum
from importlib.resources import files

from aiohttp import web


class PageScope(StrEnum):
    """Whose status the page shows; it is an attribute of the page."""

    FLEET = "fleet"
    WORKER = "worker"


def read_page(scope: PageScope = PageScope.FLEET) -> tuple[str, str]:
    """Return the HTML of the status page, and the value of its Content-Security-Policy: the page may run its own
    script and style, fetch from its own address, show images of data: URLs, and nothing else.
    """
    page = files("overlay.fleet").joinpath("page.html").read_text(encoding="utf-8")
    page = page.replace(f'data-scope="{PageScope.FLEET}"', f'data-scope="{scope}"', 1)
    parts = {name: re.findall(rf"<{name}>(.*?)</{name}>", page, re.DOTALL) for name in ("script", "style")}
    rules = [f"{name}-src {' '.join(map(_hash, texts))}" for name, texts in parts.items()]
    return page, "; ".join(
        ["default-src 'none'", "img-src data:", "connect-src 'self'", "base-uri 'none'", "form-action 'none'", *rules]
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def add_page(app: web.Application, scope: PageScope) -> None:
    """Add the status page to an application, at `/`."""
    page, policy = read_page(scope)

    async def serve_page(_: web.Request) -> web.Response:
        headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}
        return web.Response(text=page, content_type="text/html", headers=headers)

    app.router.add_get("/", serve_page)
