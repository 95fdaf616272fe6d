"""`overlay local`: control of the embedded broker."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .groups import SuggestingGroup
from .local_topic import topic

if TYPE_CHECKING:
    from overlay.local import BrokerStatus

Command = TypeVar("Command", bound=Callable[..., Any])
_FOLLOW_PAUSE_S = 0.2


def _home_option(command: Command) -> Command:
    option = click.option(
        "--home",
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder of the broker's data and log. Default: $OVERLAY_HOME/local, else the platform's data folder.",
    )
    return option(command)


@click.group(cls=SuggestingGroup)
def local() -> None:
    """Start, stop and look at an embedded Kafka broker.

    It is a real Apache Kafka of one node, on a free port of 127.0.0.1. It keeps running until
    `overlay local down`.
    """


local.add_command(topic)


@local.command()
@_home_option
def up(home: Path | None) -> None:
    """Start the broker, or say where it runs already."""
    from overlay.local import Condition, start, status

    running = status(home).condition is Condition.RUNNING
    broker = start(home)
    if broker.moved_from:
        click.echo(f"{broker.moved_from} has been taken by another program, so the address has changed", err=True)
    click.echo(f"Kafka {'was running already' if running else 'is running'} at {broker.bootstrap}")
    click.echo(f"data and log: {broker.home}")
    option = f" --home {broker.home}" if home else ""
    click.echo(f"next: overlay local topic create TOPIC{option}   overlay local topic produce TOPIC FILE{option}")
    click.echo("      (a FILE with a JSON value a line: add --format raw, and --key-field NAME for keys)")
    click.echo(f"      overlay init --bootstrap {broker.bootstrap} --topic TOPIC   (a first config for your topic)")
    click.echo(f"      overlay local logs{option}   overlay local down{option}")


@local.command()
@_home_option
def down(home: Path | None) -> None:
    """Stop the broker and wait for its end. Its data stays."""
    from overlay.local import stop

    click.echo("Kafka has stopped" if stop(home) else "Kafka was not running")


@local.command()
@_home_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(home: Path | None, as_json: bool) -> None:
    """Say whether the broker runs, and where. The exit code is 3 if it does not run."""
    from overlay.local import Condition
    from overlay.local import status as look

    found = look(home)
    click.echo(json.dumps(found.to_json()) if as_json else _describe(found))
    if found.condition is not Condition.RUNNING:
        raise SystemExit(3)


@local.command()
@_home_option
@click.option("-n", "--lines", type=click.IntRange(min=0), default=50, show_default=True, help="How many last lines.")
@click.option("-f", "--follow", is_flag=True, help="Go on printing what is added, until Ctrl-C or the broker's end.")
def logs(home: Path | None, lines: int, follow: bool) -> None:
    """Print the end of the broker's log."""
    from overlay.errors import BrokerError
    from overlay.local import status as look
    from overlay.local.launch import read_tail

    found = look(home)
    if found.log is None or not found.log.exists():
        raise BrokerError(f"{found.home}: no broker has run there, so there is no log. Start one: overlay local up")
    printed = found.log.stat().st_size
    if tail := read_tail(found.log, lines):
        click.echo(tail)
    if follow:
        for text in _follow(found.log, printed, home):
            click.echo(text, nl=False)


def _follow(log: Path, position: int, home: Path | None) -> Iterator[str]:
    from overlay.local import Condition
    from overlay.local import status as look

    with log.open(errors="replace") as file:
        file.seek(position)
        while True:
            # ask before reading, so that a broker's last lines are read if it ends meanwhile
            alive = look(home).condition in (Condition.RUNNING, Condition.STARTING)
            while text := file.read(65536):
                yield text
            if not alive:
                return
            time.sleep(_FOLLOW_PAUSE_S)  # a file gives no notice of growth


def _describe(found: BrokerStatus) -> str:
    from overlay.local import Condition

    if found.condition is Condition.ABSENT:
        return f"no broker has been started in {found.home}. Start one: overlay local up"
    if found.condition is not Condition.RUNNING:
        return f"{found.condition.value}\nhome       {found.home}"
    since = datetime.datetime.fromtimestamp(found.started_at).astimezone().isoformat(sep=" ", timespec="seconds")
    where = {"home": found.home, "log": found.log}
    rows = {"bootstrap": found.bootstrap, "pid": found.pid, "since": since, "java": found.java, **where}
    return "\n".join(["running", *(f"{name:<10} {value}" for name, value in rows.items())])
