"""`overlay run`: the service of a config folder."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from overlay.errors import ConfigError, FilePosition, OverlayError
from overlay.logs import get_logger, set_up_logs

from .folder import config_option

if TYPE_CHECKING:
    from overlay.config import Loaded

log = get_logger(__name__)


@click.command()
@config_option
@click.option("--log-format", type=click.Choice(["auto", "human", "json"]), default="auto", show_default=True)
def run(folder: Path, log_format: str) -> None:
    """Run the overlay until SIGTERM or Ctrl-C.

    Bad files are reported and left out; the good ones are served. Changes to stream and consumer
    files take effect while it runs.
    """
    from overlay.config import load

    set_up_logs(human=None if log_format == "auto" else log_format == "human")
    loaded = load(folder)
    for problem in loaded.problems:
        log.error("config problem", problem=str(problem))
    for warning in loaded.warnings:
        log.warning("config warning", warning=str(warning))
    if not loaded.streams:
        hint = "no stream can be served. Add one to streams/, or repair what is reported above"
        raise ConfigError(FilePosition(str(folder)), hint)
    asyncio.run(serve(loaded, folder))


async def serve(loaded: Loaded, folder: Path) -> None:
    """Run the service and follow changes in the folder, until SIGTERM or SIGINT."""
    from overlay.worker.config_folder import watch_folder
    from overlay.worker.service import Service

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    service = Service(loaded)
    watching = asyncio.create_task(watch_folder(folder, service.reload))
    try:
        await service.run(stop)
    except* OverlayError as group:
        raise next(list_errors(group)) from None
    finally:
        watching.cancel()
    log.info("stopped")


def list_errors(group: BaseExceptionGroup[OverlayError]) -> Iterator[OverlayError]:
    """Yield the errors of a group and of its nested groups."""
    for error in group.exceptions:
        yield from list_errors(error) if isinstance(error, BaseExceptionGroup) else (error,)
