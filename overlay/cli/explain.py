"""`overlay explain`: what a filter would skip, read and cost, and why.

With --analyze it also reads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .folder import look_options, open_folder, parse_object, print_json, refuse_unknown
from .lookup import find_anywhere

if TYPE_CHECKING:
    from overlay.config import ConsumerConfig, Loaded, StreamConfig
    from overlay.match import Values
    from overlay.view.account import DeliveringEngine
    from overlay.view.analysis import Matches, Observed
    from overlay.view.explanation import Explanation, ReadConditions

STRIP_WIDTH = 64


@click.command()
@click.argument("consumer", required=False, default="")
@click.option("--stream", metavar="STREAM", default="", help="A stream, in place of a consumer.")
@click.option(
    "--subject",
    "--subjects",
    "subjects",
    multiple=True,
    metavar="PATTERN",
    help="With --stream: subjects; may be repeated.",
)
@click.option("--sql", metavar="EXPRESSION", help="With --stream: a filter.")
@click.option("--properties", metavar="JSON", help="With --stream: a property filter, in place of --sql.")
@click.option("--value", "--values", "values", multiple=True, help="With --stream: a filter value; may be repeated.")
@click.option("--match-unfiltered", is_flag=True, help="With --value: records without a filter value as well.")
@click.option(
    "--since",
    metavar="TIME",
    help="From this time on: RFC 3339, a date (UTC), or how long ago: 10m, 2h, 3d.",
)
@click.option("--until", metavar="TIME", help="Before this time.")
@click.option("--analyze", is_flag=True, help="Read it, and compare what was found with what was predicted.")
@look_options
def explain(
    consumer: str,
    stream: str,
    subjects: tuple[str, ...],
    sql: str | None,
    properties: str | None,
    values: tuple[str, ...],
    match_unfiltered: bool,
    since: str | None,
    until: str | None,
    analyze: bool,
    folder: Path,
    as_json: bool,
) -> None:
    """Explain what CONSUMER's filter skips in the log, or what a filter on a stream would.

    CONSUMER is a consumer's name, or STREAM/NAME if several streams have a consumer of that name. One that was made by
    `add` is looked up in Kafka.
    Only chunk headers are read, no topics, unless --analyze is given; for a consumer with `engine: spark`
    also which job delivers it. Nothing is changed. The explanation covers the whole log, whatever the
    consumer's position is.
    """
    if bool(consumer) == bool(stream):
        raise click.UsageError("name a CONSUMER or a --stream" + (", not both" if stream else ""))
    if consumer and (subjects or sql is not None or properties is not None or values or match_unfiltered):
        raise click.UsageError("--subject, --sql, --properties and --value go with --stream; a consumer has its own")
    if sql is not None and properties is not None:
        raise click.UsageError("--sql and --properties each say what to look for. Leave one of them out")
    from overlay.view.doubts import list_doubts

    from .read_notes import tell

    loaded = open_folder(folder)
    config = find_anywhere(loaded, consumer, folder, loaded.service.kafka) if consumer else None
    wanted = ask_for_consumer(loaded, config) if config else _ask(loaded, stream, folder, subjects, sql, properties)
    if not config:
        wanted = replace(wanted, values=_choose_values(wanted.stream, values, match_unfiltered))
        tell(list_doubts(wanted.stream, wanted.patterns, wanted.filter))
    wanted = replace(wanted, since=_read_moment("--since", since), until=_read_moment("--until", until))
    explanation = explain_stored(loaded, wanted)
    filtered = config.filter.properties if config else parse_object(properties) if properties is not None else None
    observed, matches = _analyze(loaded, explanation, filtered) if analyze else (None, None)
    engine = _find_engine(loaded, config) if config else None
    _show(loaded, explanation, engine, observed, matches, as_json)


def ask_for_consumer(loaded: Loaded, config: ConsumerConfig) -> ReadConditions:
    """Return what the filters of a consumer ask of its stream: subjects, condition and filter
    values.
    """
    from overlay.config.filters import compile_filter
    from overlay.index.start_positions import patterns
    from overlay.match import choose_values
    from overlay.view.explanation import ReadConditions

    stream = loaded.streams[config.stream]
    filter, values = compile_filter(config.filter, stream), choose_values(config.filter, stream)
    return ReadConditions(stream, patterns(config), filter, values)


def _ask(
    loaded: Loaded, name: str, folder: Path, subjects: Sequence[str], sql: str | None, properties: str | None
) -> ReadConditions:
    """Return what the options --subject, --sql and --properties ask of the stream `name`, without filter values.
    Raises OverlayError if the stream is unknown, and FilterSyntaxError or SubjectError.
    """
    from overlay.filter import Filter, compile_properties, compile_sql
    from overlay.subject import Pattern
    from overlay.view.explanation import ReadConditions

    if name not in loaded.streams:
        raise refuse_unknown("stream", name, loaded.streams, folder)
    stream = loaded.streams[name]
    filter: Filter | None = None
    if sql is not None:
        filter = compile_sql(sql, stream.properties)
    elif properties is not None:
        filter = compile_properties(parse_object(properties), stream.properties)
    return ReadConditions(stream, tuple(Pattern.parse(text) for text in subjects), filter)


def _choose_values(stream: StreamConfig, values: tuple[str, ...], match_unfiltered: bool) -> Values | None:
    from overlay.client.arguments import BadQuestion
    from overlay.client.read.question import read_values

    try:
        return read_values(stream, values, match_unfiltered)
    except BadQuestion as error:
        raise click.UsageError(str(error)) from None


def _read_moment(option: str, text: str | None) -> int | None:
    """Return an option's time in ms since 1970; None if it was not given.

    Raises click.UsageError if it is no time.
    """
    if text is None:
        return None
    from overlay.client.read.moment import parse_moment
    from overlay.clock import now_ms

    try:
        return parse_moment(text, now_ms())
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}") from None


def explain_stored(loaded: Loaded, wanted: ReadConditions) -> Explanation:
    """Return the explanation by the index in Kafka. Blocks. Raises SourceUnavailable, CredentialsRefused."""
    from overlay.clock import now_ms
    from overlay.view.explanation import explain as make
    from overlay.view.indexed import read_indexes

    name = wanted.stream.name
    stored = asyncio.run(read_indexes(loaded, [name]))[name]
    parts = [(source, stored.index.of(source), *bounds) for source, bounds in stored.bounds.items()]
    return make(wanted, parts, now_ms(), stored.reason)


def _find_engine(loaded: Loaded, config: ConsumerConfig) -> DeliveringEngine:
    """Return what delivers a consumer. For one with `engine: spark`, Kafka is asked which job; if this user may not read
    that, the `reason` says so."""
    from overlay.config.consumer import Engine
    from overlay.errors import OverlayError
    from overlay.view.account import DeliveringEngine
    from overlay.view.stored import describe_memory, read_memory

    if config.engine is not Engine.SPARK:
        return DeliveringEngine(config.engine.value)
    try:
        facts = describe_memory(loaded, asyncio.run(read_memory(loaded))).consumers[config.id]
    except OverlayError as error:
        return DeliveringEngine(config.engine.value, f"which job delivers it is not known: {error}")
    return DeliveringEngine(config.engine.value, facts.reason, facts.job, facts.owner)


def _analyze(
    loaded: Loaded, explanation: Explanation, properties: Mapping[str, Any] | None
) -> tuple[Observed, Matches]:
    """Read the records that the explained conditions select, and return the figures of that
    reading, and where in the log its matches are. `properties`: the property filter that was explained, None if it
    was none.
    """
    from overlay.client import open_client
    from overlay.view.analysis import COLUMNS, Matches, Observed

    from .read import end_quietly, show_gauge

    wanted = explanation.wanted
    question: dict[str, Any] = {"columns": COLUMNS}
    if wanted.patterns:
        question["subjects"] = [pattern.text for pattern in wanted.patterns]
    if properties is not None:
        question["properties"] = properties
    elif wanted.filter is not None:
        question["sql"] = wanted.filter.text
    if wanted.values is not None:
        question["values"] = [*wanted.values.wanted, *([""] if wanted.values.unfiltered else [])]
    for name, moment in (("since", wanted.since), ("until", wanted.until)):
        if moment is not None:
            question[name] = _as_moment(moment)
    matches = Matches(explanation.parts, STRIP_WIDTH)
    began = time.monotonic()
    with end_quietly():
        reading = open_client(loaded).read(wanted.stream.name, **question)
        with reading, show_gauge(reading.progress, counting=True):
            for batch in reading:
                matches.add(batch)
    seconds = time.monotonic() - began
    return Observed(reading.progress.scanned, matches.matched, matches.count_in_vain(), seconds), matches


def _as_moment(ms: int) -> Any:
    from datetime import UTC, datetime, timedelta

    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def _show(
    loaded: Loaded,
    explanation: Explanation,
    engine: DeliveringEngine | None,
    observed: Observed | None,
    matches: Matches | None,
    as_json: bool,
) -> None:
    from overlay.view.account import describe_explanation, print_explanation
    from overlay.view.console import make_console
    from overlay.view.stored import name_source

    canvases = {} if matches is None else matches.canvases
    strips = [part.draw(name_source(part.source), STRIP_WIDTH, canvases.get(part.source)) for part in explanation.parts]
    if as_json:
        print_json(describe_explanation(explanation, engine, strips, observed))
        return
    file = loaded.files[explanation.wanted.stream.name].file
    print_explanation(make_console(), explanation, engine, strips, file, observed)
