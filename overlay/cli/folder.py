"""Shared parts of the commands: options, the config folder, lookup errors, JSON output."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from overlay.default_folder import SERVICE_FILE, find_folder
from overlay.errors import OverlayError
from overlay.logs import LEVELS

if TYPE_CHECKING:
    from overlay.client.control.control import Control
    from overlay.config import Loaded
    from overlay.view.facts import OverlayFacts
    from overlay.view.listing import Listing

Command = TypeVar("Command", bound=Callable[..., Any])
SETTINGS_HELP = (
    "A Kafka property by librdkafka's name. As its value env:NAME takes an environment variable; that of a secret is"
    " env:NAME or file:PATH, never the secret."
)
"""Of the option -X."""
TABLES = "overlay.view.table"
"""The module that prints facts; a library that it needs takes as long to load as Kafka takes to answer."""


def config_option(command: Command) -> Command:
    """Add `--config DIR`, passed on as `folder`."""
    option = click.option(
        "--config",
        "folder",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        default=find_folder,
        envvar="OVERLAY_CONFIG",
        help="Config folder. Default: $OVERLAY_CONFIG, else the current folder or ./overlay-config.",
    )
    return option(command)


def log_options(command: Command) -> Command:
    """Add `--log-format` and `--log-level`, passed on as `log_format` and `log_level`."""
    formats = click.Choice(["auto", "human", "json"])
    command = click.option(
        "--log-level",
        type=click.Choice([*LEVELS]),
        default="info",
        show_default=True,
        help="The least level that is logged.",
    )(command)
    return click.option("--log-format", type=formats, default="auto", show_default=True)(command)


def json_option(command: Command) -> Command:
    """Add `--json`, passed on as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")(command)


def look_options(command: Command) -> Command:
    """Add the options of commands that show something: --config and --json."""
    return config_option(json_option(command))


def change_options(command: Command) -> Command:
    """Add the options of commands that change something: --config and --yes.

    `yes` is for `confirm`.
    """
    return config_option(click.option("--yes", is_flag=True, help="Do it without asking.")(command))


def open_folder(folder: Path) -> Loaded:
    """Return the loaded config of the folder. If some files have problems, only their number is
    printed, on stderr. Raises ConfigError if overlay.yaml itself cannot be used.
    """
    import logging

    from overlay.config import load
    from overlay.logs import set_up_logs

    set_up_logs(level=logging.WARNING, late=True)
    loaded = load(folder)
    if loaded.problems:
        count = len(loaded.problems)
        what = f"{count} problem{'' if count == 1 else 's'} in the config; see `overlay validate {folder}`"
        click.echo(what, err=True)
    return loaded


@contextlib.contextmanager
def open_control(folder: Path) -> Iterator[Control]:
    """Yield a client that sends requests to the service of the folder, and close it at the end.
    Audit events name the client `overlay`. If no service runs, a request raises NoService at once.

    Only overlay.yaml is read. Raises ConfigError if it cannot be used.
    """
    import logging
    import os

    from overlay.client.control import control as client
    from overlay.config import load_service
    from overlay.logs import set_up_logs

    set_up_logs(level=logging.WARNING, late=True)
    # a folder may have thousands of other files, which the service has read
    service = load_service(folder / SERVICE_FILE, os.environ)
    control = client.Control(
        service.kafka, service.topics.prefix, timeout=client.TIMEOUT_S, name="overlay", is_patient=False
    )
    try:
        yield control
    finally:
        control.close()


def look_around(loaded: Loaded, *, asks_others: bool = False, draws: bool = True) -> OverlayFacts:
    """Return the facts about all streams and consumers: those of the running service, completed from Kafka; those in
    Kafka alone if no service of this config answers; or those of the service alone if Kafka does not. Blocks
    meanwhile.

    `asks_others`: whether to ask all workers for their consumers. `draws`: whether the facts are drawn as tables
    then. If neither answers, raises SourceUnavailable, or CredentialsRefused if Kafka refuses this user.
    """
    import asyncio
    import importlib

    from overlay.view.look import look

    async def ask() -> OverlayFacts:
        # what prints the facts is loaded by a thread while Kafka and the service are asked
        loading = asyncio.create_task(asyncio.to_thread(importlib.import_module, TABLES)) if draws else None
        try:
            return await look(loaded, asks_others=asks_others)
        finally:
            if loading is not None:
                await loading

    return asyncio.run(ask())


def is_drawn() -> bool:
    """Return whether lists are drawn on standard output: on a terminal, or where FORCE_COLOR asks for it. Elsewhere they are
    plain lines.
    """
    import os
    import sys

    return bool(os.environ.get("FORCE_COLOR")) or (sys.stdout is not None and sys.stdout.isatty())


def print_listing(listing: Listing) -> None:
    """Print a list of streams or consumers on standard output."""
    if not is_drawn():
        from overlay.view.listing import write_plain

        click.echo(write_plain(listing))
        return
    from overlay.view import table
    from overlay.view.console import make_console

    table.print_listing(make_console(), listing)


def refuse_unknown(kind: str, name: str, known: Iterable[str], folder: Path) -> OverlayError:
    """Return the error for an unknown name; it suggests the most similar of `known`, or what stands behind a slash
    there, and lists up to 20. `kind`: what the name should name, such as "stream".
    """
    from overlay.config.suggestion import suggest

    names = sorted(set(known))
    if not names:
        return OverlayError(f"{folder}: there is no {kind} {name!r}, nor any other. Is --config the right folder?")
    listed = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    near = suggest(name, names) or suggest(name, (each.rpartition("/")[2] for each in names))
    return OverlayError(f"{folder}: there is no {kind} {name!r}.{near} There is {listed}")


def print_json(answer: object) -> None:
    """Print a value as one line of JSON."""
    click.echo(json.dumps(answer, ensure_ascii=False))


def print_facts(facts: OverlayFacts, **answer: object) -> None:
    """Print one JSON object: the members `answer`, and beside them `service`, the service that the
    facts come from, and `notes`.
    """
    from overlay.view.wire import describe_worker

    print_json({"service": describe_worker(facts.service), "notes": list(facts.notes), **answer})


def confirm(question: str, *, yes: bool) -> None:
    """Ask the user to confirm, and return if the answer is yes. Raises click.Abort if it is no, and
    OverlayError if there is no terminal. With `yes`, nothing is asked.
    """
    if yes:
        return
    import sys

    if not sys.stdin.isatty():
        raise OverlayError("nothing was changed: there is no terminal to ask at. Say --yes to do it")
    click.confirm(question, abort=True)


def parse_object(text: str) -> dict[str, Any]:
    """Return the property filter of --properties. Raises click.UsageError if it is no JSON object."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"--properties: this is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise click.UsageError('--properties: write an object, such as {"application_properties": {"carrier": "AA"}}')
    return found
