"""`overlay read`: the records of a stream or a topic that pass a filter, for users and pipes."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from overlay.errors import OverlayError

from .collection import collect_as_usual
from .folder import SETTINGS_HELP, config_option, open_folder, parse_object
from .read_notes import AskedOf, improve_hint, tell_doubts, tell_missing, view_question

if TYPE_CHECKING:
    from overlay.client import Client, Progress, Question, Reading
    from overlay.config import Loaded

INTERRUPTED = 130
"""The exit code for a program that SIGINT ended, as shells define it."""


@click.command()
@click.argument("stream", required=False, default="")
@click.option("--topic", default="", help="A topic, in place of a stream; its name is the subject of every record.")
@click.option(
    "--consumer",
    default="",
    metavar="NAME",
    help="What this consumer's filters let through; STREAM may be left out, or NAME be STREAM/NAME.",
)
@config_option
@click.option("--bootstrap", default="", metavar="HOST:PORT", help="Some brokers, in place of those of the config.")
@click.option("-X", "settings", multiple=True, metavar="NAME=VALUE", help=SETTINGS_HELP)
@click.option(
    "--property",
    "declared",
    multiple=True,
    metavar="NAME:TYPE[=FIELD]",
    help="With --topic: a typed field for --sql, such as dep_delay:double or tail:string=value:tailnum.",
)
@click.option(
    "--subject",
    "--subjects",
    "subjects",
    multiple=True,
    metavar="PATTERN",
    help="Subjects with * and >; may be repeated.",
)
@click.option("--sql", metavar="EXPRESSION", help="A filter such as \"dep_delay > 60 AND carrier = 'AA'\".")
@click.option("--properties", metavar="JSON", help="A property filter, in place of --sql.")
@click.option(
    "--value",
    "--values",
    "values",
    multiple=True,
    metavar="VALUE",
    help="Filter values of the stream; may be repeated.",
)
@click.option("--match-unfiltered", is_flag=True, help="With --value: records without a filter value as well.")
@click.option(
    "--since",
    metavar="TIME",
    help="From this time on: RFC 3339, a date (UTC), or how long ago: 10m, 2h, 3d.",
)
@click.option("--until", metavar="TIME", help="Before this time.")
@click.option("--from-seq", type=click.IntRange(1), metavar="N", help="From this sequence of the stream on.")
@click.option(
    "--last",
    type=click.IntRange(0),
    metavar="N",
    help="The last N records that pass: by stream sequence, or by time for a topic.",
)
@click.option("--last-per-subject", is_flag=True, help="The last record of each subject that passes.")
@click.option("--limit", type=click.IntRange(0), metavar="N", help="Stop after N records.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes.")
@click.option(
    "--format", "form", type=click.Choice(["table", "json", "raw", "arrow-ipc"]), default="table", show_default=True
)
@click.option(
    "--index/--no-index", default=True, help="Whether the stream's chunk index may say what need not be read."
)
@click.option("--count", "counting", is_flag=True, help="Print how many records pass, and nothing else.")
def read(
    stream: str,
    topic: str,
    consumer: str,
    folder: Path,
    bootstrap: str,
    settings: tuple[str, ...],
    declared: tuple[str, ...],
    form: str,
    counting: bool,
    **question: Any,
) -> None:
    """Print the records of STREAM, or of a topic, that pass a filter, or those that pass a
    consumer's.

    Reads committed records and changes nothing in Kafka. Without --follow it stops at the end that
    the topics have when it begins. Ctrl-C ends it with exit code 130.
    """
    _check_usage(stream, topic, consumer, declared, form, counting)
    with end_quietly():
        from overlay.kernels import load_numba
        from overlay.view.printer import open_printer

        client, loaded = _open(topic, folder, bootstrap, settings)
        if question["properties"] is not None:
            question["properties"] = parse_object(question["properties"])
        if consumer:
            assert loaded is not None
            stream, question = _ask_as_consumer(client, loaded, _join_names(stream, consumer), folder, question)
        printer = open_printer("count" if counting else form, click.get_binary_stream("stdout"))
        declare = dict(parse_property(text) for text in declared) if declared else None
        reading = _ask(client, stream, topic, declare, {**question, "columns": printer.columns})
        asked = _note(client, stream, topic, declare, question)
        with contextlib.ExitStack() as stack:
            stack.callback(_tell, reading.progress)
            stack.enter_context(reading)
            try:
                with show_gauge(reading.progress, counting):
                    # the reading asks Kafka meanwhile, in a thread of its own
                    load_numba()
                    check_kernels()
                    collect_as_usual()
                    for batch in reading:
                        printer.print(batch)
            except KeyboardInterrupt:
                printer.close()
                raise
            printer.close()
        progress = reading.progress
        is_misread = progress.nulls.total() > progress.matched
        if asked is not None and not question["follow"] and (is_misread or not progress.matched):
            tell_missing(client, asked, is_found=progress.matched > 0)


def _check_usage(stream: str, topic: str, consumer: str, declared: tuple[str, ...], form: str, counting: bool) -> None:
    """Raise click.UsageError for options that do not go together, and for an output that cannot take the format."""
    if not (stream or consumer or topic):
        raise click.UsageError("name a STREAM, a --consumer or a --topic")
    if topic and (stream or consumer):
        raise click.UsageError(f"name a {'STREAM' if stream else '--consumer'} or a --topic, not both")
    if declared and not topic:
        raise click.UsageError(
            "--property goes with --topic. What a stream declares stands in its file, under properties"
        )
    if sys.stdout is None:
        raise click.UsageError("standard output is closed. Send it somewhere")
    if form == "arrow-ipc" and not counting and sys.stdout.isatty():
        raise click.UsageError("arrow-ipc is not for terminals. Send it to a file or a program")


def _note(
    client: Client, stream: str, topic: str, declare: Mapping[str, Any] | None, question: Mapping[str, Any]
) -> AskedOf | None:
    """Print why the question can find nothing, if that is known. Return what it asks; None if it
    names neither subjects nor a filter.

    A question with --follow has no end at which it has found nothing, so a sample is looked at now.
    """
    if not question["subjects"] and question["sql"] is None and question["properties"] is None:
        return None
    asked = view_question(client, stream, topic, declare, question)
    tell_doubts(asked)
    if question["follow"]:
        tell_missing(client, asked)
    return asked


def check_kernels() -> None:
    """Raise OverlayError if there is no folder for compiled kernels."""
    from overlay.kernel_cache import find_folder
    from overlay.scan.kernel import walk

    find_folder(walk)


@contextlib.contextmanager
def end_quietly() -> Iterator[None]:
    """Turn Ctrl-C into exit code 130, and end silently if the reader of a pipe has closed it.

    Any other OSError, such as that of a full disk, becomes an OverlayError.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        _drop_output()
    except OSError as error:
        _drop_output()
        raise OverlayError(f"the records cannot be written: {error.strerror or error}") from None


def _drop_output() -> None:
    """Discard buffered output, which would be written at exit and fail again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open(topic: str, folder: Path, bootstrap: str, settings: tuple[str, ...]) -> tuple[Client, Loaded | None]:
    """Return a client, and the config of `folder`. If `topic` and `bootstrap` are both given, the
    folder is not read, and None is returned in place of its config. Raises ConfigError, and
    click.UsageError for a malformed setting.
    """
    from overlay.client import open_client
    from overlay.logs import set_up_logs

    from .init import read_settings

    if topic and bootstrap:
        set_up_logs(level=logging.WARNING)
        return open_client(bootstrap=bootstrap, kafka=read_settings(bootstrap, settings)), None
    loaded = open_folder(folder)
    address = bootstrap or loaded.service.kafka["bootstrap.servers"]
    more = read_settings(address, settings) if settings else {}
    return open_client(loaded, bootstrap=bootstrap, kafka=more), loaded


def _join_names(stream: str, consumer: str) -> str:
    """Return a consumer as NAME or STREAM/NAME. Raises click.UsageError if both say a stream, and not
    the same.
    """
    of, slash, _ = consumer.rpartition("/")
    if stream and slash and of != stream:
        raise click.UsageError(f"--consumer {consumer} is not of stream {stream}. Leave one of the streams out")
    return f"{stream}/{consumer}" if stream and not slash else consumer


def _ask_as_consumer(
    client: Client, loaded: Loaded, name: str, folder: Path, question: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the stream of a consumer, and the question with the consumer's filters. `name`: NAME or
    STREAM/NAME.

    The consumer is looked up in the folder's files, and then in the control topic, which needs no
    service. Raises OverlayError if it is unknown or ambiguous, and click.UsageError if the question
    has filters of its own.
    """
    from overlay.client import BadQuestion
    from overlay.client.read.question import ask_as_consumer

    from .lookup import find_anywhere

    config = find_anywhere(loaded, name, folder, client.kafka)
    try:
        asked = ask_as_consumer(config, cast("Question", question))
    except BadQuestion as error:
        raise click.UsageError(str(error)) from None
    return config.stream, cast("dict[str, Any]", asked)


def _ask(
    client: Client, stream: str, topic: str, declare: Mapping[str, Any] | None, question: Mapping[str, Any]
) -> Reading:
    from overlay.client import BadQuestion
    from overlay.errors import FilterSyntaxError

    asked: dict[str, Any] = {name: value for name, value in question.items() if value not in (None, ())}
    asked["columns"] = question["columns"]
    try:
        return client.read(stream, topic=topic, declare=declare, **asked)
    except BadQuestion as error:
        raise click.UsageError(str(error)) from None
    except FilterSyntaxError as error:
        raise improve_hint(client, stream, topic, declare, error) from None


def parse_property(text: str) -> tuple[str, dict[str, str]]:
    """Return the name and declaration of a `--property`, such as `tail:string=value:tailnum`.
    Raises click.UsageError if it is malformed.
    """
    name, colon, rest = text.partition(":")
    kind, equals, source = rest.partition("=")
    if not (name and colon and kind) or (equals and not source):
        raise click.UsageError(
            f"--property {text}: write NAME:TYPE or NAME:TYPE=FIELD, such as dep_delay:double or tail:string=value:tailnum"
        )
    return name, {"type": kind} | ({"from": source} if equals else {})


@contextlib.contextmanager
def show_gauge(progress: Progress, counting: bool) -> Iterator[None]:
    """Show a progress bar during the block if stderr is a terminal and the records do not go to one.
    `counting`: no records are printed, only their number at the end.
    """
    if sys.stderr is None or not sys.stderr.isatty() or (sys.stdout.isatty() and not counting):
        yield
        return
    from overlay.view.gauge import Gauge

    with Gauge(lambda: (progress.done, progress.total, progress.scanned, progress.matched)):
        yield


def _tell(progress: Progress) -> None:
    """Print on stderr which records, batches and values were left out of a reading, with numbers
    and reasons.
    """
    told = {
        "left out, having no subject in the stream": progress.unaddressed,
        "values that the filter names and that could not be read": progress.nulls,
    }
    for what, counts in told.items():
        if counts:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(counts.items()))
            click.echo(f"{what}: {reasons}", err=True)
    if progress.skipped:
        click.echo(f"left out: {progress.skipped:,} batches that cannot be read", err=True)
    if progress.lost:
        click.echo(f"left out: {progress.lost:,} offsets that retention removed meanwhile", err=True)
    if progress.newer:
        click.echo(
            "note: --last is by stream sequence, and a backlog is numbered partition after partition; by time"
            f" {progress.newer:,} other records are newer. A question to the topic, --topic, goes by time",
            err=True,
        )
