"""`overlay fleet run`: one picture of all workers, as a page, as JSON and as metrics."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from overlay.errors import OverlayError

from .folder import config_option, log_options

if TYPE_CHECKING:
    from overlay.config import Loaded


@click.group()
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


async def serve(loaded: Loaded, folder: Path) -> None:
    """Listen for HTTP and run the application until SIGTERM or SIGINT. Raises OverlayError if the address is taken,
    CredentialsRefused.
    """
    from overlay.client.control.control import Control
    from overlay.fleet.actions import Actions
    from overlay.fleet.app import run_app
    from overlay.fleet.http import make_app
    from overlay.fleet.live import LivePicture
    from overlay.fleet.metrics import FleetMetrics
    from overlay.fleet.read import expect
    from overlay.logs import get_logger
    from overlay.worker.config_folder import watch_folder
    from overlay.worker.http import start_http

    log, stop = get_logger(__name__), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    live = LivePicture(expected=expect(loaded))

    def reload(files: Loaded) -> None:
        live.expected = expect(files)

    http, address = loaded.service.http, loaded.service.fleet.address
    # connects at the first action
    control = Control(loaded.service.kafka, loaded.service.topics.prefix, name="fleet page", is_patient=False)
    actions = Actions(http.admin_token, control, live) if http.admin_token else None
    runner, port = await start_http(make_app(live, FleetMetrics(), actions), http, address, field="fleet.listen")
    log.info("http listens", url=f"{http.scheme}://{address[0]}:{port}/")
    watching = asyncio.create_task(watch_folder(folder, reload, loaded.signature))
    try:
        await run_app(loaded.service, live, stop)
    finally:
        watching.cancel()
        await runner.cleanup()
        control.close()
    log.info("stopped")
