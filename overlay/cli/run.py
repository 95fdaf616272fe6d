"""`overlay run`: serve a config folder."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import click
import structlog

from overlay.config import Loaded, load
from overlay.errors import ConfigError, OverlayError, Place
from overlay.logs import set_up_logs
from overlay.worker.service import Service

from .folder import config_option

log = structlog.get_logger(__name__)


@click.command()
@config_option
@click.option("--log-format", type=click.Choice(["auto", "human", "json"]), default="auto", show_default=True)
def run(folder: Path, log_format: str) -> None:
    """Run the overlay until SIGTERM or Ctrl-C.

    Bad files are reported and left out; the good ones are served.
    """
    set_up_logs(human=None if log_format == "auto" else log_format == "human")
    loaded = load(folder)
    for problem in loaded.problems:
        log.error("config problem", problem=str(problem))
    if not loaded.consumers:
        hint = "no consumer can be served. Add one to consumers/, or repair what is reported above"
        raise ConfigError(Place(str(folder)), hint)
    asyncio.run(serve(loaded))


async def serve(loaded: Loaded) -> None:
    """Serve until a signal says stop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await Service(loaded).run(stop)
    except* OverlayError as group:
        raise next(list_errors(group)) from None
    log.info("stopped")


def list_errors(group: BaseExceptionGroup[OverlayError]) -> Iterator[OverlayError]:
    """The errors themselves, however deep."""
    for error in group.exceptions:
        yield from list_errors(error) if isinstance(error, BaseExceptionGroup) else (error,)
