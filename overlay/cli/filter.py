"""`overlay filter`: the meaning of an expression, and its answer for a message.

Neither needs Kafka.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from overlay.errors import OverlayError

from .folder import config_option, json_option, open_folder, print_json, refuse_unknown
from .groups import SuggestingGroup

if TYPE_CHECKING:
    from rich.table import Table

    from overlay.config import StreamConfig
    from overlay.filter import Filter
    from overlay.filter.message import Message
    from overlay.view.expression import FilterField

_stream_option = click.option("--stream", "name", metavar="STREAM", help="Take the types that this stream declares.")


@click.group("filter", cls=SuggestingGroup)
def filter_group() -> None:
    """Check a filter expression, or try it on a message."""


@filter_group.command()
@click.argument("sql")
@_stream_option
@config_option
@json_option
def check(sql: str, name: str | None, folder: Path, as_json: bool) -> None:
    """Say what the filter SQL means: every field with its type and where it is read from.

    Without --stream, types are those of each message's values. The exit code is 1 if the expression
    is not valid.
    """
    from overlay.view.expression import describe_filter
    from overlay.view.never import find_never

    stream = _find_stream(name, folder)
    compiled = _compile(sql, stream)
    found = describe_filter(compiled, stream)
    never = [str(found) for found in find_never(compiled.bound)]
    if as_json:
        print_json(found.describe() | {"never": never})
        return
    click.echo(f"means     {found.means}")
    if found.verdict:
        click.echo(f"always    {found.verdict}")
    for sentence in never:
        click.echo(f"never     {sentence}")
    if found.fields:
        from overlay.view.console import make_console

        click.echo()
        make_console().print(_draw(found.fields))
    undeclared = [field.name for field in found.fields if field.is_declared is False]
    if undeclared:
        click.echo(f"\n{name} does not declare {', '.join(undeclared)}: read as text from the header of that name")


@filter_group.command()
@click.argument("sql")
@click.option(
    "--message", "file", type=click.File("rb"), help="A JSON file, or a line of `overlay read`; - is standard input."
)
@click.option("--record", "place", metavar="TOPIC-PARTITION@OFFSET", help="A record in Kafka, such as orders-0@146.")
@_stream_option
@click.option(
    "--property",
    "declared",
    multiple=True,
    metavar="NAME:TYPE[=FIELD]",
    help="Without a stream: a typed field of the record, such as dep_delay:double or tail:string=value:tailnum.",
)
@config_option
@json_option
def test(
    sql: str,
    file: IO[bytes] | None,
    place: str | None,
    name: str | None,
    declared: tuple[str, ...],
    folder: Path,
    as_json: bool,
) -> None:
    """Say whether the filter SQL is true, false or unknown for a message, and show the value of
    each part.

    The message is a record in Kafka (--record), a line of `overlay read --format json`, or a JSON
    object with the members header, properties and application_properties, each of them optional.

    A record is read as its stream reads it: --stream, or else the stream of the config folder that
    has its topic. If there is none, its headers are texts, and --property declares other fields.
    The values of an object keep their JSON types; with --stream, strings are parsed as that stream
    parses them.
    """
    from overlay.clock import now_ms
    from overlay.view.expression import read_message, show_answer, trace_filter

    from .filter_record import find_record, is_line

    if (file is None) == (place is None):
        raise click.UsageError("Say --message FILE or --record TOPIC-PARTITION@OFFSET.")
    text = "" if file is None else _read_text(file)
    record = None
    if place is not None or is_line(text):
        compiled, record = find_record(sql, place or text, name, declared, folder)
        message = record.message
    elif declared:
        raise click.UsageError(
            "--property is for a record; the values of a message for a filter have types of their own"
        )
    else:
        stream = _find_stream(name, folder)
        compiled, message = _compile(sql, stream), _parse_message(text)
        if stream is not None:
            message = read_message(compiled, stream, message)
    now = now_ms()
    answer = compiled.matches(message, now=now)
    parts = trace_filter(compiled, message, now)
    if as_json:
        found = {"answer": show_answer(answer), "parts": [part.describe() for part in parts]}
        print_json(found if record is None else {**found, "record": record.describe()})
        return
    shown = [(part.depth * "  " + part.text, part.shown_value) for part in parts if not part.is_constant]
    click.echo(show_answer(answer) + ("\n" if shown else ""))
    width = max((len(text) for text, _ in shown), default=0)
    for text, value in shown:
        click.echo(f"{text:<{width}}  {value}")
    if record is not None:
        click.echo(
            f"\n{record.place} has {'no subject: ' + record.reason if record.reason else f'subject {record.subject}'}"
        )
        for field, fault in record.faults.items():
            click.echo(f"{field} could not be read: {fault}")


def _read_text(file: IO[bytes]) -> str:
    try:
        return file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise OverlayError(f"--message: this is no JSON: {error}") from None


def _find_stream(name: str | None, folder: Path) -> StreamConfig | None:
    if name is None:
        return None
    loaded = open_folder(folder)
    if name not in loaded.streams:
        raise refuse_unknown("stream", name, loaded.streams, folder)
    return loaded.streams[name]


def _compile(sql: str, stream: StreamConfig | None) -> Filter:
    from overlay.filter import compile_sql

    return compile_sql(sql, None if stream is None else stream.properties)


def _parse_message(text: str) -> Message:
    from overlay.config.suggestion import suggest
    from overlay.filter.nodes import Section

    sections = [section.value for section in Section]
    try:
        message = json.loads(text)
    except ValueError as error:
        raise OverlayError(f"--message: this is no JSON: {error}") from None
    if not isinstance(message, dict):
        raise OverlayError(f"--message: a message is an object with the members {', '.join(sections)}")
    for section, fields in message.items():
        if section not in sections:
            raise OverlayError(
                f"--message: a message has no {section!r}.{suggest(section, sections)} It has {', '.join(sections)}"
            )
        if fields is not None and not isinstance(fields, dict):
            raise OverlayError(f"--message: {section} is an object of names and values")
    return message


def _draw(fields: Iterable[FilterField]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table("field", "type", "read from", box=None, pad_edge=False, header_style="bold")
    for field in fields:
        table.add_row(Text(field.name), Text(field.type), Text(field.source))
    return table
