"""`overlay consumer next|ack|nak|term|replay-dead-letter`: handling of single messages by hand."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from overlay.errors import OverlayError

from .folder import (
    change_options,
    config_option,
    confirm,
    json_option,
    open_control,
    open_folder,
    print_json,
)
from .lookup import find_all, find_consumer, find_served, join_names, names_argument

if TYPE_CHECKING:
    from overlay.client.control.answers import Pulled
    from overlay.client.control.control import Control

_tokens = click.argument("tokens", nargs=-1, required=True, metavar="TOKEN...")


@click.command("next")
@names_argument
@click.option("--count", type=click.IntRange(1), default=1, show_default=True, help="Messages at the most.")
@click.option(
    "--wait", default="5s", show_default=True, metavar="DURATION", help="How long to wait until so many are there."
)
@click.option("--ack", "is_acked", is_flag=True, help="Ack each message that was printed.")
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print each message as a JSON object on a line of its own.")
def pull(names: tuple[str, ...], count: int, wait: str, is_acked: bool, folder: Path, as_json: bool) -> None:
    """Pull messages of a pull consumer and print them with their tokens.

    STREAM may be left out if only one stream has a consumer of this name.

    Without --ack they are delivered again after ack_wait or backoff, unless `overlay consumer ack`
    acks them. It takes tokens in single quotes: a shell takes $JS for a variable.
    """
    wanted, seconds = join_names(names), _read_seconds(wait, "--wait") or 0.0
    with open_control(folder) as control:
        stream, name = find_served(control, wanted, folder)
        found = control.next(stream, name, count, expires=seconds)
        for message in found:
            print_json(describe_pulled(message)) if as_json else _print_pulled(message)
            if is_acked:
                control.ack(message.token)
        pause = "" if found else explain_pause(control, stream, name)
    if not found:
        click.echo(f"no message of {stream}/{name} within {wait}{pause}", err=True)


@click.command()
@_tokens
@config_option
def ack(tokens: tuple[str, ...], folder: Path) -> None:
    """Ack deliveries by their tokens, and wait until the service has committed the acks.

    Put tokens in single quotes: a shell takes $JS for a variable.
    """
    _tell(folder, tokens, "acked", lambda control, token: control.ack(token))


@click.command()
@_tokens
@click.option("--delay", metavar="DURATION", help="Deliver them again only after so long.")
@config_option
def nak(tokens: tuple[str, ...], delay: str | None, folder: Path) -> None:
    """Request redelivery of messages, at once or after a delay.

    Put tokens in single quotes: a shell takes $JS for a variable.
    """
    seconds = _read_seconds(delay, "--delay")
    _tell(folder, tokens, "nakked", lambda control, token: control.nak(token, seconds))


@click.command()
@_tokens
@click.option("--reason", default="", help="Stands in the advisory (topic PREFIX.events), and not in the dead letter.")
@config_option
def term(tokens: tuple[str, ...], reason: str, folder: Path) -> None:
    """Stop all further deliveries of messages.

    Put tokens in single quotes: a shell takes $JS for a variable.
    """
    _tell(folder, tokens, "terminated", lambda control, token: control.term(token, reason))


@click.command("replay-dead-letter")
@names_argument
@click.option("--to", "target", metavar="TOPIC", help="Where to produce them; the stream's topic when it has one only.")
@click.option("--limit", type=click.IntRange(1), help="How many at the most.")
@click.option("--again", is_flag=True, help="From the beginning, those that were replayed before included.")
@click.option("--dry-run", is_flag=True, help="Only say what would be replayed.")
@change_options
@json_option
def replay(
    names: tuple[str, ...],
    target: str | None,
    limit: int | None,
    again: bool,
    dry_run: bool,
    folder: Path,
    yes: bool,
    as_json: bool,
) -> None:
    """Produce a consumer's dead letters once more, as new messages of its stream.

    STREAM may be left out if only one stream has a consumer of this name.

    Key, value and the original headers stay; headers that the overlay added are removed. Every
    consumer of the stream whose filters match gets the messages. The position is remembered, so the
    next call continues after the last one. A dead letter that was too large to keep its value is
    listed but not replayed.
    """
    from overlay.client.subscribe.replay import Replay, choose_target

    wanted = join_names(names)
    loaded = find_all(open_folder(folder))
    stream, name = find_consumer(loaded, wanted, folder).id
    letters, topic = choose_target(loaded, stream, name, target)
    with Replay(loaded.service.kafka, loaded.service.topics.prefix, (stream, name), letters) as replaying:
        found = replaying.read(limit=limit, again=again)
        whole = [letter for letter in found if letter.is_whole]
        if not as_json:
            for letter in found:
                click.echo(letter.line)
        if whole and not dry_run:
            if not as_json:
                click.echo(f"{len(whole)} dead letters of {stream}/{name} go to topic {topic}")
            confirm("Replay them?", yes=yes or as_json)
            replaying.send(found, topic)
    done = 0 if dry_run else len(whole)
    if as_json:
        letters_wire = [letter.describe() for letter in found]
        print_json({"topic": topic, "replayed": done, "letters": letters_wire})
    else:
        click.echo(f"replayed {done} of {len(found)}" if found else f"no dead letters of {stream}/{name} in {letters}")


def explain_pause(control: Control, stream: str, name: str) -> str:
    """Return, after a colon, that a consumer is paused, until when, and how to end that; "" if it is not paused, or if the
    service does not say. Asks the service.
    """
    try:
        info = control.info(stream, name)
    except OverlayError:
        return ""
    if not info.paused:
        return ""
    until = f" {info.reason}" if info.state == "paused" else ""
    return f": the consumer is paused{until}. `overlay consumer resume {stream} {name}` ends the pause"


def describe_pulled(message: Pulled) -> dict[str, Any]:
    """Return a message as a JSON object.

    Bytes that are not UTF-8 are in base64, as `value_base64` etc.
    """
    found: dict[str, Any] = {"subject": message.subject, "token": message.token}
    for name, data in (("key", message.key), ("value", message.value)):
        found |= _show(name, data)
    found["headers"] = [{"name": name, **_show("value", value)} for name, value in message.headers]
    return found


def _show(name: str, data: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode()}


def _print_pulled(message: Pulled) -> None:
    click.echo(f"{message.token}  {message.subject}")
    click.echo((message.value or b"").decode(errors="backslashreplace"))


def _tell(folder: Path, tokens: tuple[str, ...], done: str, tell: Callable[[Control, str], None]) -> None:
    """Send what `tell` sends for each token, and print `done` once it is committed.

    Raises BadAckToken before anything is sent if a text is no token. If no service runs, all of it
    is written to the ack topic. Raises NoService then, at the end.
    """
    from overlay.client.control.ack_tokens import find_token
    from overlay.client.control.inbox import NoService

    for token in tokens:
        find_token(token)
    waiting: NoService | None = None
    with open_control(folder) as control:
        for token in tokens:
            try:
                tell(control, token)
            except NoService as error:
                waiting = error
                click.echo(f"written {token}")
            else:
                click.echo(f"{done} {token}")
    if waiting is not None:
        raise waiting


def _read_seconds(text: str | None, option: str) -> float | None:
    from overlay.units import parse_duration

    try:
        return None if text is None else parse_duration(text) / 1e9
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from error
