"""`overlay consumer`: commands to show consumers and to remove one.

The commands that change consumers or handle single messages are in consumer_change.py and
consumer_message.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from overlay.errors import OverlayError

from . import consumer_change, consumer_message
from .folder import (
    change_options,
    config_option,
    confirm,
    is_drawn,
    look_around,
    look_options,
    open_control,
    open_folder,
    print_facts,
    print_listing,
    refuse_unknown,
)
from .groups import SuggestingGroup
from .lookup import choose, find_config, join_names, names_argument

if TYPE_CHECKING:
    from overlay.config import Loaded
    from overlay.view.facts import ConsumerFacts, OverlayFacts


@click.group(cls=SuggestingGroup)
def consumer() -> None:
    """Create, change, show and remove consumers, and handle single messages by hand."""


@consumer.command("ls")
@click.argument("stream", required=False)
@look_options
def list_all(stream: str | None, folder: Path, as_json: bool) -> None:
    """List the consumers, of all streams or of STREAM.

    Rates come from the running service, those of Spark jobs from Kafka. Each worker tells of the consumers of its
    shards. If no service answers, the rest comes from Kafka itself. A consumer whose file is gone is listed as removed,
    because its state is kept until `overlay consumer rm`.
    """
    facts = look_around(open_folder(folder), asks_others=True, draws=not as_json and is_drawn())
    if stream is not None:
        check_stream(facts, stream, folder)
    shown = [found for found in facts.consumers.values() if stream in (None, found.stream)]
    if as_json:
        from overlay.view.wire import describe_consumer

        print_facts(facts, consumers=[describe_consumer(found) for found in shown])
    else:
        from overlay.view.listing import list_consumers

        print_listing(list_consumers(facts, shown))


@consumer.command()
@names_argument
@look_options
def info(names: tuple[str, ...], folder: Path, as_json: bool) -> None:
    """Show one consumer: output, positions, sequence, rate, lag, and its whole config.

    STREAM may be left out if only one stream has a consumer of this name. The config is that of its file, or the one that
    it has by `add` and `update`.
    """
    name = join_names(names)
    facts = look_around(open_folder(folder), asks_others=True, draws=not as_json)
    found = find_named(facts, name, folder)
    if as_json:
        from overlay.view.wire import describe_consumer

        print_facts(facts, consumer=describe_consumer(found))
    else:
        from overlay.view.console import make_console
        from overlay.view.table import print_consumer

        print_consumer(make_console(), facts, found)


@consumer.command()
@names_argument
@click.option(
    "--out",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A new file to write to, such as DIR/consumers/NAME.yaml. Default: standard output.",
)
@config_option
def export(names: tuple[str, ...], file: Path | None, folder: Path) -> None:
    """Write a consumer's config as a consumer file, also if it was made by `add`.

    STREAM may be left out if only one stream has a consumer of this name. The file has what differs
    from the defaults. In the config folder it takes the consumer over, which goes on as it was.
    """
    from overlay.config.spelling import write_file

    name = join_names(names)
    loaded = open_folder(folder)
    text = write_file(find_config(loaded, name, folder, loaded.service.kafka))
    if file is None:
        click.echo(text, nl=False)
        return
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except OSError as error:
        raise OverlayError(f"{file}: {error.strerror}. Name another file") from error
    click.echo(f"written {file}")


@consumer.command()
@names_argument
@change_options
@click.option("--force", is_flag=True, help="Also when its file is still there: the consumer then begins anew.")
def rm(names: tuple[str, ...], folder: Path, yes: bool, force: bool) -> None:
    """Remove a consumer and its state.

    STREAM may be left out if only one stream has a consumer of this name. The state is its positions,
    its sequence and its pending acks. A consumer that was made by `add` is removed as well. For a
    consumer with a file, remove the file first. With --force it begins anew instead, by its
    deliver_policy and with sequence 1. An output topic stays as it is.
    """
    import asyncio

    from overlay.view.console import make_console
    from overlay.view.removal import find_removal
    from overlay.view.table import print_consumer

    wanted = join_names(names)
    loaded = open_folder(folder)
    facts = look_around(loaded)
    found = find_named(facts, wanted, folder)
    stream, name = found.id
    removal = asyncio.run(find_removal(loaded, found.id))
    if not force and not removal.is_by_request:
        check_unused(loaded, facts, found)
    if not removal.is_known and found.consumer_sequence is None:
        click.echo(f"nothing is remembered of consumer {stream}/{name}, so there is nothing to remove")
        return
    print_consumer(make_console(), facts, found)
    click.echo(f"\nThis state of {stream}/{name} is removed for good.{describe_output(found)}")
    if found.id in loaded.consumers:
        click.echo("Its file is still there: it begins anew by its deliver_policy, with sequence 1.")
    confirm("Remove it?", yes=yes)
    if removal.is_by_request and facts.service is not None:
        with open_control(folder) as control:
            control.delete(stream, name)
    else:
        asyncio.run(removal.run(loaded))
    click.echo(f"consumer {stream}/{name} is removed")


def describe_output(found: ConsumerFacts) -> str:
    """Return what becomes of a consumer's output topic when it is removed, as a sentence after a blank. "" if it is a pull
    consumer, which has none. Of a consumer whose file is gone, neither its kind nor the topic is known.
    """
    if found.deliver_subject:
        return f" Its output topic {found.deliver_subject} stays as it is."
    return "" if found.config is not None else " An output topic of it stays as it is."


def check_stream(facts: OverlayFacts, stream: str, folder: Path) -> None:
    """Raise OverlayError if the facts have neither the stream nor a consumer of it."""
    known = {*facts.streams, *(of for of, _ in facts.consumers)}
    if stream not in known:
        raise refuse_unknown("stream", stream, known, folder)


def find_named(facts: OverlayFacts, name: str, folder: Path) -> ConsumerFacts:
    """Return the facts about a consumer by NAME or STREAM/NAME. Raises OverlayError, with a suggestion if it is unknown,
    with all that have the name if it is ambiguous.
    """
    stream, slash, rest = name.rpartition("/")
    if slash:
        return find_consumer(facts, stream, rest, folder)
    return facts.consumers[choose(facts.consumers, name, folder)]


def find_consumer(facts: OverlayFacts, stream: str, name: str, folder: Path) -> ConsumerFacts:
    """Return the facts about a consumer. Raises OverlayError with a suggestion if it is unknown."""
    check_stream(facts, stream, folder)
    if (stream, name) not in facts.consumers:
        raise refuse_unknown(f"consumer of {stream}", name, [c for of, c in facts.consumers if of == stream], folder)
    return facts.consumers[stream, name]


def check_unused(loaded: Loaded, facts: OverlayFacts, found: ConsumerFacts) -> None:
    """Raise OverlayError while the file or the running service would create the consumer again."""
    if found.id in loaded.consumers:
        raise OverlayError(
            f"{loaded.files[found.id]}: this file still has consumer {found.name}. Remove the file first, or say --force to"
            " have it begin anew"
        )
    if found.state != "removed":
        raise OverlayError(
            f"{facts.url}: the running service still serves consumer {found.name}. It gives it up some seconds after the"
            " file is gone, if it runs this folder; or say --force to have it begin anew"
        )


for command in (
    consumer_change.add,
    consumer_change.update,
    consumer_change.pause,
    consumer_change.resume,
    consumer_change.report,
    consumer_message.pull,
    consumer_message.ack,
    consumer_message.nak,
    consumer_message.term,
    consumer_message.replay,
):
    consumer.add_command(command)
