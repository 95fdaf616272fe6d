"""`overlay drain`: a worker gives its shards to the others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from overlay.errors import OverlayError

from .folder import look_options, open_control, open_folder, print_json

if TYPE_CHECKING:
    from overlay.config import Loaded
    from overlay.fleet.findings import Picture

SETTLED_S = 60.0
"""Seconds to wait until the other workers serve the shards: a takeover of a big state, and a status of each."""
LOOK_S = 0.5
"""Seconds between two looks at the statuses."""


@click.command()
@click.argument("worker")
@click.option("--undo", is_flag=True, help="Let the worker have shards again.")
@look_options
def drain(worker: str, undo: bool, folder: Path, as_json: bool) -> None:
    """Have WORKER give its shards to the other workers, and take none until --undo or its next start.

    The shards are handed over as when a worker is stopped: what is under way is committed first. WORKER is a name that
    `overlay workers` shows. It is refused if no other worker takes shards.
    """
    from overlay.fleet.drain import find_target, list_moves

    loaded = open_folder(folder)
    before = asyncio.run(look(loaded))
    target = find_target(before, worker, undo=undo)
    if target.drained == undo:
        with open_control(folder) as control:
            if undo:
                control.undrain(worker)
            else:
                control.drain(worker, target.boot)
    after = asyncio.run(await_settled(loaded, worker, undo=undo))
    moves = list_moves(before, after, worker)
    shards = sorted(shard.number for shard in after.live[worker].shards)
    if as_json:
        print_json({"worker": worker, "drained": not undo, "shards": shards, "moved": describe_moves(moves)})
        return
    for number, owner in sorted(moves.items()):
        if owner != worker:
            click.echo(f"shard {number}: {worker} -> {owner}")
    listed = ", ".join(map(str, shards)) or "none"
    click.echo(f"worker {worker} takes shards again; it has now: {listed}" if undo else f"worker {worker} is drained")


def describe_moves(moves: Mapping[int, str]) -> list[dict[str, object]]:
    """Return moved shards as a list of JSON objects, sorted. `moves`: the worker that has each of these
    shards now, by the shard's number.
    """
    return [{"shard": number, "worker": owner} for number, owner in sorted(moves.items())]


async def look(loaded: Loaded) -> Picture:
    """Return what the workers have published. Raises OverlayError, SourceUnavailable."""
    from overlay.fleet.read import open_reader

    async with open_reader(loaded) as reader:
        return (await reader.look()).picture


async def await_settled(loaded: Loaded, worker: str, *, undo: bool) -> Picture:
    """Wait until the statuses of the workers say that the worker has no shards and others serve them,
    or with `undo` that it has its part again. Return the picture of that moment. Raises OverlayError
    after SETTLED_S, SourceUnavailable.
    """
    from overlay.fleet.drain import is_settled
    from overlay.fleet.read import open_reader

    try:
        async with asyncio.timeout(SETTLED_S), open_reader(loaded) as reader:
            while True:
                picture = (await reader.look()).picture
                if is_settled(picture, worker, undo=undo):
                    return picture
                await asyncio.sleep(LOOK_S)
    except TimeoutError as error:
        raise OverlayError(
            f"the service has noted it, and after {SETTLED_S:g} s statuses do not say yet that all shards are served. See"
            " `overlay shards`"
        ) from error
