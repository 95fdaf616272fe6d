"""`overlay local topic`: topics of the embedded broker, or of another Kafka, and records for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from overlay.errors import BrokerError

from .folder import SETTINGS_HELP, json_option, open_folder, print_json
from .groups import SuggestingGroup

if TYPE_CHECKING:
    from overlay.errors import FilePosition
    from overlay.local.lines import LineReader, LineRecord, LineRules
    from overlay.local.producing import Written

Command = TypeVar("Command", bound=Callable[..., Any])
STDIN = "-"


def kafka_options(command: Command) -> Command:
    """Add the options that say which Kafka it is, passed on to `find_kafka`."""
    options = (
        click.option("--bootstrap", default="", metavar="HOST:PORT", help="Another Kafka than the embedded one."),
        click.option("-X", "settings", multiple=True, metavar="NAME=VALUE", help=SETTINGS_HELP),
        click.option(
            "--config", "folder", type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="The Kafka of a config folder, in place of the embedded one.",
        ),
        click.option(
            "--home", type=click.Path(path_type=Path, file_okay=False), help="Folder of the embedded broker, as for `up`."
        ),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@click.group(cls=SuggestingGroup)
def topic() -> None:
    """Create and list topics, and write records to one.

    They are those of the embedded broker, unless --bootstrap or --config names another Kafka.
    $OVERLAY_CONFIG does not count here.
    """


@topic.command()
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--partitions", type=click.IntRange(1), default=1, show_default=True)
@click.option("--replication", type=click.IntRange(1), default=1, show_default=True, help="How many brokers have each.")
@click.option(
    "--set", "config", multiple=True, metavar="NAME=VALUE", help="A topic property, such as cleanup.policy=compact."
)
@click.option("--if-missing", is_flag=True, help="Leave topics that exist as they are; otherwise it is an error.")
@kafka_options
def create(
    names: tuple[str, ...], partitions: int, replication: int, config: tuple[str, ...], if_missing: bool, **where: Any
) -> None:
    """Create topics."""
    import asyncio

    from overlay.local.topics import create_topics

    properties = dict(_split(text, "--set", "cleanup.policy=compact") for text in config)
    kafka = find_kafka(**where)
    distinct = [*dict.fromkeys(names)]
    present = asyncio.run(
        create_topics(
            kafka,
            distinct,
            partitions=partitions,
            replication=replication,
            config=properties,
            may_exist=if_missing,
        )
    )
    for name in distinct:
        facts = present.get(name)
        if facts is None:
            click.echo(f"topic {name} is created, with {_count(partitions, 'partition')}")
        else:
            click.echo(f"topic {name} was there, with {_count(facts.partitions, 'partition')}, and is left as it is")


@topic.command("list")
@click.option("--internal", is_flag=True, help="Kafka's own topics as well.")
@kafka_options
@json_option
def list_all(internal: bool, as_json: bool, **where: Any) -> None:
    """List topics: partitions, and offsets in all of them."""
    import asyncio

    from overlay.local.topics import list_topics

    found = asyncio.run(list_topics(find_kafka(**where), internal=internal))
    if as_json:
        topics = [{"topic": each.name, "partitions": each.partitions, "offsets": each.offsets} for each in found]
        print_json({"topics": topics})
        return
    if not found:
        click.echo("no topics. To create one: overlay local topic create TOPIC", err=True)
        return
    from rich.text import Text

    from overlay.view.console import make_console
    from overlay.view.figures import show_count
    from overlay.view.table import make_table

    console = make_console()
    table = make_table(console, "topic", right=("partitions", "offsets"))
    for each in found:
        table.add_row(Text(each.name), show_count(each.partitions), show_count(each.offsets))
    console.print(table)


@topic.command()
@click.argument("name", metavar="TOPIC")
@click.argument("files", nargs=-1, metavar="[FILE]...", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "raw"]),
    default="json",
    show_default=True,
    help="What a line is: an object with key, value, headers, timestamp and partition, or the value itself.",
)
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header for each record; repeatable.")
@click.option("--key-separator", metavar="TEXT", help="With --format raw: stands between key and value.")
@click.option(
    "--key-field",
    default="",
    metavar="NAME",
    help="With --format raw, for JSON values: the field that is the key as well, such as id or customer.country.",
)
@click.option("--partition", type=click.IntRange(0), help="For records that name none; otherwise their keys decide.")
@kafka_options
@json_option
def produce(
    name: str,
    files: tuple[str, ...],
    form: str,
    headers: tuple[str, ...],
    key_separator: str | None,
    key_field: str,
    partition: int | None,
    as_json: bool,
    **where: Any,
) -> None:
    """Write lines to a topic as records, in their order.

    They are those of the files, or of standard input. All lines of files are looked at before the first one is
    written. Standard input, or a pipe, is written as it comes, up to the first line that is no record.
    """
    import asyncio

    from overlay.local.lines import LineReader
    from overlay.local.producing import Written
    from overlay.local.producing import produce as write
    from overlay.local.topics import find_topic

    from .read import INTERRUPTED

    kafka = find_kafka(**where)
    facts = asyncio.run(find_topic(kafka, name))
    rules = _read_rules(form, headers, key_separator, partition, facts.partitions, key_field)
    reader = LineReader(rules)
    sources = files or (STDIN,)
    check_files(sources, rules)
    written = Written()
    try:
        write(kafka, facts, read_all(sources, reader), written)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    finally:
        _show(name, written, reader.blank, as_json)


def check_files(sources: Iterable[str], rules: LineRules) -> None:
    """Raise BadLine for the first line of the files that is no record. What can be read only once,
    such as a pipe, is not looked at.
    """
    from overlay.local.lines import LineReader

    for _ in read_all([name for name in sources if name != STDIN and Path(name).is_file()], LineReader(rules)):
        pass


def read_all(sources: Iterable[str], reader: LineReader) -> Iterator[tuple[FilePosition, LineRecord]]:
    """Yield the records of all files with their places, in order; `-` is standard input. Raises
    BadLine.
    """
    for source in sources:
        if source == STDIN:
            file: IO[bytes] = click.get_binary_stream("stdin")
            if file.isatty():
                click.echo("reading lines from the terminal; Ctrl-D ends them", err=True)
            yield from reader.read("standard input", file)
            continue
        with open(source, "rb") as opened:
            yield from reader.read(source, opened)


def find_kafka(bootstrap: str, settings: tuple[str, ...], folder: Path | None, home: Path | None) -> dict[str, str]:
    """Return the Kafka settings: those of a config folder, in which --bootstrap and -X replace what
    they name; without a folder those of --bootstrap and -X; and in place of a missing --bootstrap
    the address of the embedded broker. Raises BrokerError if that does not run, ConfigError and
    click.UsageError.
    """
    from .init import read_settings

    if home is not None and (bootstrap or folder is not None):
        raise click.UsageError("--home is for the embedded broker; --bootstrap and --config name another Kafka")
    if folder is not None:
        kafka = open_folder(folder).service.kafka
        more = read_settings(bootstrap or kafka["bootstrap.servers"], settings) if bootstrap or settings else {}
        return {**kafka, **more}
    if bootstrap or settings:
        return read_settings(bootstrap or find_embedded(home), settings)
    return {"bootstrap.servers": find_embedded(home)}


def find_embedded(home: Path | None) -> str:
    """Return the address of the embedded broker. Raises BrokerError if it does not run."""
    from overlay.local import Condition, status

    found = status(home)
    if found.condition is not Condition.RUNNING:
        option = f" --home {home}" if home else ""
        raise BrokerError(
            f"{found.home}: no broker runs there. Start it: overlay local up{option}; or name another Kafka with --bootstrap"
        )
    return found.bootstrap


def _read_rules(
    form: str, headers: Iterable[str], separator: str | None, partition: int | None, partitions: int, key_field: str
) -> LineRules:
    from overlay.local.lines import LineFormat, LineRules

    if separator is not None and (form != "raw" or not separator):
        raise click.UsageError("--key-separator is for --format raw, and has a character at least")
    if key_field and (form != "raw" or separator is not None):
        raise click.UsageError("--key-field is for --format raw, and goes without --key-separator")
    if partition is not None and partition >= partitions:
        raise click.UsageError(f"--partition: the topic has partitions 0 to {partitions - 1}")
    pairs = (_split(text, "--header", "source=import") for text in headers)
    return LineRules(
        LineFormat(form),
        partitions,
        None if separator is None else separator.encode(),
        tuple((name, value.encode()) for name, value in pairs),
        partition,
        key_field,
    )


def _split(text: str, option: str, example: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.UsageError(f"{option} {text}: write NAME=VALUE, such as {option} {example}")
    return name, value


def _show(name: str, written: Written, blank: int, as_json: bool) -> None:
    """Print how many records Kafka has acknowledged in topic `name`, and their offsets in each
    partition. `blank`: empty lines of the input, which were left out.
    """
    spans = sorted(written.partitions.items())
    if as_json:
        partitions = [
            {"partition": number, "written": span.count, "first": span.first, "last": span.last}
            for number, span in spans
        ]
        print_json({"topic": name, "written": written.total, "blank_lines": blank, "partitions": partitions})
        return
    click.echo(f"{_count(written.total, 'record')} written to {name}")
    for number, span in spans:
        offsets = "" if span.first is None else f", offsets {span.first:,} to {span.last:,}"
        click.echo(f"  {name}-{number}  {_count(span.count, 'record')}{offsets}")
    if blank:
        click.echo(f"{_count(blank, 'empty line')} left out", err=True)


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
