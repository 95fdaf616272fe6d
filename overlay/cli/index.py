"""`overlay index`: state of the chunk indexes, and building one without a service."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from overlay.errors import ConfigError, CredentialsRefused, OverlayError

from .folder import config_option, look_around, look_options, open_folder, print_facts, refuse_unknown

if TYPE_CHECKING:
    from overlay.config import Loaded
    from overlay.view.facts import IndexFacts, StreamFacts
    from overlay.worker.index_build import Build


@click.group()
def index() -> None:
    """Show how far the chunk indexes are, and make one without a service."""


@index.command()
@click.argument("stream", required=False)
@look_options
def status(stream: str | None, folder: Path, as_json: bool) -> None:
    """Show the chunk index of STREAM, or of all streams.

    Chunks and their bounds are read from the index topic; the rate comes from the running service.
    """
    from overlay.view.console import make_console
    from overlay.view.table import print_index
    from overlay.view.wire import describe_index

    loaded = open_folder(folder)
    names = [_check_stream(loaded, stream, folder)] if stream is not None else sorted(loaded.streams)
    facts = look_around(loaded)
    found = read_facts(loaded, {name: facts.streams[name] for name in names})
    if as_json:
        print_facts(facts, indexes=[{"stream": name} | describe_index(each) for name, each in found.items()])
        return
    console = make_console()
    for at, (name, each) in enumerate(found.items()):
        if at:
            console.print()
        print_index(console, name, each)
    for note in facts.notes:
        console.print(note, markup=False, soft_wrap=True)


@index.command()
@click.argument("stream")
@config_option
def build(stream: str, folder: Path) -> None:
    """Index STREAM up to the present end of its topics, without serving consumers.

    A running service does this by itself, so the command refuses to run beside one. It can be
    stopped at any time, and continues where it stopped.
    """
    from overlay.view.console import make_console
    from overlay.view.table import print_index
    from overlay.worker.index_build import Build

    from .read import INTERRUPTED

    loaded = open_folder(folder)
    name = _check_stream(loaded, stream, folder)
    refuse_service(loaded)
    work = Build(loaded, name)
    reached = _run(work)
    print_index(make_console(), name, read_facts(loaded, {name: None})[name])
    if not reached:
        click.echo("stopped on the way. What is done is kept; the same command goes on from there", err=True)
        raise SystemExit(INTERRUPTED)


def read_facts(loaded: Loaded, streams: dict[str, StreamFacts | None]) -> dict[str, IndexFacts]:
    """Return facts about the chunk index of each stream, by name, read from the index topics.
    `streams`: what the service told about each stream, None if nothing.
    """
    from overlay.view.indexed import describe_index, read_indexes

    stored = asyncio.run(read_indexes(loaded, streams))
    return {
        name: describe_index(found, None if (says := streams[name]) is None else says.index)
        for name, found in stored.items()
    }


def _check_stream(loaded: Loaded, name: str, folder: Path) -> str:
    if name not in loaded.streams:
        raise refuse_unknown("stream", name, loaded.streams, folder)
    return name


def refuse_service(loaded: Loaded) -> None:
    """Raise OverlayError if a running service of this config answers. A service of another config
    at the same address does not count.
    """
    from overlay.config.identity import identify
    from overlay.view.look import explain_stranger
    from overlay.view.running import NoService, ask_service

    try:
        found = asyncio.run(ask_service(loaded.service.http)).service
    except (NoService, CredentialsRefused, ConfigError):
        return
    if found is not None and not explain_stranger(found, identify(loaded), ""):
        raise OverlayError(
            f"the service of this config runs at {found.url} and keeps the indexes of its streams itself; see `overlay"
            " index status`"
        )


def _run(work: Build) -> bool:
    """Build the index, and return whether it reached the end of the topics; False if SIGTERM or
    SIGINT stopped it before. Shows a progress bar on a terminal. Raises the OverlayError that ended
    it.
    """
    from overlay.view.gauge import Gauge

    from .run import list_errors

    async def run() -> bool:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        return await work.run(stop)

    try:
        with contextlib.ExitStack() as stack:
            if sys.stderr is not None and sys.stderr.isatty():
                stack.enter_context(Gauge(lambda: (work.done, work.total, work.fresh, work.fresh), "indexed"))
            return asyncio.run(run())
    except* OverlayError as group:
        raise next(list_errors(group)) from None
