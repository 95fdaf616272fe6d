"""`overlay workers` and `overlay shards`: what the workers publish of themselves, read from the fleet's topic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .folder import look_options, open_folder, print_json


@click.command()
@look_options
def workers(folder: Path, as_json: bool) -> None:
    """List the workers that have published a status in the last ten minutes, and what is wrong now.

    Reads the topic <prefix>.fleet; no fleet process is needed.
    """
    from overlay.view.console import make_console
    from overlay.view.fleet import print_workers

    found = read(folder)
    if as_json:
        print_json({name: found[name] for name in ("time", "workers", "findings", "ignored")})
    else:
        print_workers(make_console(), found)


@click.command()
@look_options
def shards(folder: Path, as_json: bool) -> None:
    """List the shards, which worker has each, and what is wrong now.

    Reads the topic <prefix>.fleet; no fleet process is needed.
    """
    from overlay.view.console import make_console
    from overlay.view.fleet import print_shards

    found = read(folder)
    if as_json:
        print_json({name: found[name] for name in ("time", "shards", "findings", "ignored")})
    else:
        print_shards(make_console(), found)


def read(folder: Path) -> dict[str, Any]:
    """Return the picture of the folder's workers, as `/fleet` has it. Raises OverlayError, SourceUnavailable."""
    import asyncio

    from overlay.fleet.read import read_fleet

    return asyncio.run(read_fleet(open_folder(folder)))
