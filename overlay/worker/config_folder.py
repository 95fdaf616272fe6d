"""A watch on the config folder: files that change while the service runs are read again.

The times and sizes of stream, consumer and schema files are compared once a second. A change counts when it is still the
same at the next look, so that a file is not read while it is being written. Which changes are
allowed is decided elsewhere (control/registry.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from overlay.config import Loaded, load
from overlay.config.loader import sign
from overlay.config.summary import list_lines, list_new
from overlay.errors import ConfigError
from overlay.logs import get_logger

log = get_logger(__name__)

EVERY_S = 1.0
"""Seconds between two looks."""


async def watch_folder(folder: Path, take: Callable[[Loaded], None], known: Loaded, *, every: float = EVERY_S) -> None:
    """Read the folder again whenever its stream, consumer or schema files have changed, and pass the configs to
    `take`; runs until cancelled. `known`: the configs that the caller has, and whose problems and warnings it
    has told. What has changed since they were read is passed as well: a service takes seconds to start.

    A change counts once two looks in a row have found the same files. A folder that cannot be read is logged, and the
    next change is awaited. `every`: seconds between two looks.
    """
    taken = seen = known.signature
    while True:
        await asyncio.sleep(every)
        try:
            before, seen = seen, await asyncio.to_thread(sign, folder)
            if seen == taken or seen != before:
                continue
            taken = seen
            known = await _read_again(folder, take, known)
        except ConfigError as error:
            log.error("the folder has changed and cannot be read; everything runs as it was", reason=str(error))
        except Exception:
            # the watch is one task for the life of the process: without it, no later change would be read
            log.exception("an error that was not foreseen; the next change of the folder is awaited")


async def _read_again(folder: Path, take: Callable[[Loaded], None], known: Loaded | None) -> Loaded:
    """Pass the folder's configs to `take`, and return them. Log the problems and warnings that `known` does not have.
    Raises ConfigError if overlay.yaml is bad.
    """
    loaded = await asyncio.to_thread(load, folder)
    for line in list_lines(list_new(loaded.problems, known.problems if known else ())):
        log.error("config problem", problem=line)
    for line in list_lines(list_new(loaded.warnings, known.warnings if known else ())):
        log.warning("config warning", warning=line)
    log.info(
        "the folder has changed",
        streams=len(loaded.streams),
        consumers=len(loaded.consumers),
        problems=len(loaded.problems),
    )
    take(loaded)
    return loaded
