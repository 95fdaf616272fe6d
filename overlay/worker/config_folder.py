"""A watch on the config folder: files that change while the service runs are read again.

The times and sizes of the files are compared once a second. A change counts when it is still the
same at the next look, so that a file is not read while it is being written. Which changes are
allowed is decided elsewhere (control/registry.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from overlay.config import Loaded, load
from overlay.errors import ConfigError
from overlay.logs import get_logger

log = get_logger(__name__)

EVERY_S = 1.0
"""Seconds between two looks."""

Signature = tuple[tuple[str, int, int], ...]


def sign(folder: Path) -> Signature:
    """Return the stream and consumer files of a folder: names, modification times in ns, sizes in
    bytes."""
    found = []
    for part in ("streams", "consumers"):
        for file in sorted((folder / part).glob("*.yaml")):
            try:
                facts = file.stat()
            except OSError:  # deleted between glob and stat
                continue
            found.append((str(file), facts.st_mtime_ns, facts.st_size))
    return tuple(found)


async def watch_folder(folder: Path, take: Callable[[Loaded], None], every: float = EVERY_S) -> None:
    """Pass the configs to `take` whenever the folder has changed, until cancelled. `every`: seconds
    between two looks.

    A folder that cannot be read is logged, and the next change is awaited.
    """
    # before the first wait, so that no change from here on is missed
    taken = seen = sign(folder)
    while True:
        await asyncio.sleep(every)
        before, seen = seen, await asyncio.to_thread(sign, folder)
        if seen == taken or seen != before:
            continue
        taken = seen
        try:
            loaded = await asyncio.to_thread(load, folder)
        except ConfigError as error:
            log.error("the folder has changed and cannot be read; everything runs as it was", reason=str(error))
            continue
        for problem in loaded.problems:
            log.error("config problem", problem=str(problem))
        log.info("the folder has changed", streams=len(loaded.streams), consumers=len(loaded.consumers))
        take(loaded)
