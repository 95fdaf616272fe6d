"""`overlay fleet run`: one picture of all workers, as a page, as JSON and as metrics."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from overlay.errors import OverlayError

from .folder import config_option, log_options
from .groups import SuggestingGroup

if TYPE_CHECKING:
    from aiohttp import web

    from overlay.client.control.control import Control
    from overlay.config import HttpConfig, Loaded
    from overlay.credentials import KeptSecret
    from overlay.fleet.live import LivePicture


@click.group(cls=SuggestingGroup)
def fleet() -> None:
    """Watch all workers of a service."""


@fleet.command()
@config_option
@log_options
def run(folder: Path, log_format: str, log_level: str) -> None:
    """Show all workers, shards and consumers at fleet.listen, until SIGTERM or Ctrl-C.

    What is wrong is found and told: at /fleet, in /metrics and in the events topic. No data flows through this
    process, and workers run as well without it. Of several, one judges and the others stand by.
    """
    from overlay.config import load
    from overlay.logs import LEVELS, set_up_logs

    if importlib.util.find_spec("faust") is None:
        raise OverlayError("overlay fleet run needs Faust: run `pip install 'kafka-overlay[fleet]'`")
    set_up_logs(human=None if log_format == "auto" else log_format == "human", level=LEVELS[log_level])
    asyncio.run(serve(load(folder), folder))


def open_admin_token(http: HttpConfig) -> KeptSecret | None:
    """Return the token of administrators, None if there is none. Raises OverlayError if it cannot be read, or is that of all
    users.
    """
    from overlay.config.service import check_token
    from overlay.credentials import KeptSecret, resolve

    if not http.admin_token:
        return None
    kept = KeptSecret("http.admin_token", http.admin_token, check_token)
    if kept.get() == resolve({"http.token": http.token})["http.token"]:
        raise OverlayError("http.admin_token is the token of all users. Choose another one")
    return kept


async def serve(loaded: Loaded, folder: Path) -> None:
    """Listen for HTTP and run the application until SIGTERM or SIGINT. Raises OverlayError if the address is taken, or if a
    token cannot be used; CredentialsRefused.
    """
    from overlay.default_folder import SERVICE_FILE
    from overlay.fleet.app import run_app
    from overlay.fleet.live import LivePicture
    from overlay.fleet.read import expect
    from overlay.logs import get_logger
    from overlay.worker.config_folder import watch_folder
    from overlay.worker.http import start_http

    log, stop = get_logger(__name__), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    live, files = LivePicture(expected=expect(loaded)), loaded

    def reload(found: Loaded) -> None:
        nonlocal files
        files, live.expected = found, expect(found)

    http, address = loaded.service.http, loaded.service.fleet.address
    app, control = _make_pages(live, loaded, lambda: files)
    runner, port = await start_http(app, http, address, field="fleet.listen", file=str(folder / SERVICE_FILE))
    log.info("http listens", url=f"{http.scheme}://{address[0]}:{port}/")
    watching = asyncio.create_task(watch_folder(folder, reload, loaded))
    try:
        await run_app(loaded.service, live, stop)
    finally:
        watching.cancel()
        await runner.cleanup()
        control.close()
    log.info("stopped")


def _make_pages(live: LivePicture, loaded: Loaded, find_files: Callable[[], Loaded]) -> tuple[web.Application, Control]:
    """Return the pages, and the control by which administrators act, which connects at the first action. `find_files`:
    returns the config folder as it was last read. Raises OverlayError if the token of administrators cannot be used.
    """
    from overlay.client.control.control import Control
    from overlay.fleet.actions import Actions
    from overlay.fleet.chunks import ChunkLooks
    from overlay.fleet.http import make_app
    from overlay.fleet.metrics import FleetMetrics

    from .fleet_page import PageRequests, draw_chunks

    service = loaded.service
    control = Control(service.kafka, service.topics.prefix, name="fleet page", is_patient=False)
    admin, requests = open_admin_token(service.http), PageRequests(control, find_files)
    actions = Actions(admin.get, requests, live) if admin is not None else None
    chunks = ChunkLooks(lambda stream, consumer: draw_chunks(find_files(), stream, consumer))
    return make_app(live, FleetMetrics(), actions, chunks), control
