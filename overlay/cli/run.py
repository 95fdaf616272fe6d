"""`overlay run`: the service of a config folder, in one process or several."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from overlay.errors import ConfigError, FilePosition, OverlayError
from overlay.kernel_progress import progress
from overlay.logs import LEVELS, get_logger, is_readable, name_source, set_up_logs

from .folder import config_option, log_options

if TYPE_CHECKING:
    from overlay.config import Loaded
    from overlay.kernel_cache import CacheFolder

log = get_logger(__name__)


@click.command()
@config_option
@log_options
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Worker processes to start.")
@click.option("--number", type=click.IntRange(0), hidden=True, help="Which of several workers of a parent this is.")
def run(folder: Path, log_format: str, log_level: str, workers: int, number: int | None) -> None:
    """Run the overlay until SIGTERM or Ctrl-C.

    Bad files are reported and left out; the good ones are served. Changes to stream and consumer
    files take effect while it runs. With --workers the shards are shared by so many processes; one that ends is started again.
    """
    from overlay.config import load
    from overlay.config.summary import list_lines

    human = None if log_format == "auto" else log_format == "human"
    set_up_logs(human=human, level=LEVELS[log_level])
    loaded = load(folder)
    if number is not None:
        from overlay.config.numbered import number_worker

        name_source(worker=number)
        loaded = replace(loaded, service=number_worker(loaded.service, number))
    if not is_readable(human) and workers == 1:
        # logs of many workers are looked at together
        from overlay.worker.status import name_worker

        name_source(worker=name_worker(loaded.service, socket.gethostname(), loaded.service.http.address[1]))
    # one of several workers leaves it to the first to tell
    for line in list_lines(loaded.problems) if not number else ():
        log.error("config problem", problem=line)
    for line in list_lines(loaded.warnings):
        log.warning("config warning", warning=line)
    if not loaded.streams:
        hint = "no stream can be served. Add one to streams/, or repair what is reported above"
        raise ConfigError(FilePosition(str(folder)), hint)
    if workers > 1:
        if not asyncio.run(supervise(loaded, folder, ("--log-format", log_format, "--log-level", log_level), workers)):
            raise OverlayError("not all workers have ended as they should; see their logs")
        return
    asyncio.run(serve(loaded, folder, is_child=number is not None))


async def supervise(loaded: Loaded, folder: Path, options: Sequence[str], workers: int) -> bool:
    """Run workers as child processes with these options until SIGTERM or SIGINT. Return whether all have ended without an
    error then. Raises OverlayError if there are not ports or names for so many.
    """
    from overlay.config.numbered import find_fault
    from overlay.worker.supervisor import Supervisor

    if fault := find_fault(loaded.service, workers):
        raise OverlayError(fault)
    if loaded.service.shards < workers:
        log.warning("there are more workers than shards: some stand by", workers=workers, shards=loaded.service.shards)
    command = [sys.executable, "-m", "overlay", "run", "--config", str(folder), *options]
    stop = stop_at_signals()
    if not find_kernels().is_filled:
        await compile_kernels(stop)

    async def start(number: int) -> asyncio.subprocess.Process:
        # the child ends when its standard input does: also when this process is killed
        arguments = [*command, "--number", str(number)]
        process = await asyncio.create_subprocess_exec(*arguments, stdin=asyncio.subprocess.PIPE)
        log.info("worker started", worker=number, pid=process.pid)
        return process

    done = await Supervisor(start, workers).run(stop)
    log.info("all workers have stopped")
    return done


async def compile_kernels(stop: asyncio.Event) -> None:
    """Compile the kernels in a process of their own, or until `stop`: otherwise each of several workers would do so."""
    from overlay.waits import unless

    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "overlay.worker.warmup")
    if not await unless(stop, process.wait()):
        process.terminate()
        await process.wait()


def find_kernels() -> CacheFolder:
    """Return where this installation keeps compiled kernels, filled if it has those of the service: `overlay read` compiles
    some of them, and none that writes records. Raises OverlayError if there is no folder for them.
    """
    from overlay.kernel_cache import find_folder
    from overlay.output.partition import murmur2
    from overlay.scan.kernel import walk

    found = find_folder(walk)
    return replace(found, is_filled=found.is_filled and find_folder(murmur2).is_filled)


def stop_at_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def serve(loaded: Loaded, folder: Path, *, is_child: bool = False) -> None:
    """Run the service and follow changes in the folder, until SIGTERM or SIGINT. `is_child`: also until standard input
    ends, since the parent is gone then. Raises the OverlayError that ended the service.
    """
    from overlay.worker.config_folder import watch_folder
    from overlay.worker.service import Service
    from overlay.worker.warmup import log_progress

    progress.tell = log_progress
    stop = stop_at_signals()
    if is_child:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), _heed, stop)
    service = Service(loaded)
    watching = asyncio.create_task(watch_folder(folder, service.reload, loaded))
    try:
        await service.run(stop)
    except* OverlayError as group:
        raise next(list_errors(group)) from None
    finally:
        watching.cancel()
    log.info("stopped")


def _heed(stop: asyncio.Event) -> None:
    """Set `stop` if standard input has ended."""
    descriptor = sys.stdin.fileno()
    if not os.read(descriptor, 4096):
        asyncio.get_running_loop().remove_reader(descriptor)
        stop.set()


def list_errors(group: BaseExceptionGroup[OverlayError]) -> Iterator[OverlayError]:
    """Yield the errors of a group and of its nested groups."""
    for error in group.exceptions:
        yield from list_errors(error) if isinstance(error, BaseExceptionGroup) else (error,)
