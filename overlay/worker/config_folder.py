"""Following a config folder: files that change while the service runs are read again.

They are looked at once a second, by their times and sizes. A change counts when it has stood for one more look, so that a
file is not read while it is being written. What a changed file may change is not decided here (control/registry.py).
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

Signature = tuple[tuple[str, int, int], ...]


def sign(folder: Path) -> Signature:
    """What there is of stream and consumer files: names, times in ns, sizes."""
    found = []
    for part in ("streams", "consumers"):
        for file in sorted((folder / part).glob("*.yaml")):
            try:
                facts = file.stat()
            except OSError:  # it has gone between the two
                continue
            found.append((str(file), facts.st_mtime_ns, facts.st_size))
    return tuple(found)


async def watch_folder(folder: Path, take: Callable[[Loaded], None], every: float = EVERY_S) -> None:
    """Hand the folder to `take` whenever it has changed, until cancelled. `every`: seconds between two looks."""
    # before anything else happens: what changes from here on is seen
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
