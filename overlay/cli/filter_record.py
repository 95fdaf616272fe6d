"""The record of `overlay filter test`: which stream reads it, and what it says."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from overlay.errors import OverlayError

from .folder import open_folder, refuse_unknown

if TYPE_CHECKING:
    from overlay.config import Loaded
    from overlay.config.stream import StreamConfig
    from overlay.filter import Filter
    from overlay.view.one_record import RecordView


def is_line(text: str) -> bool:
    """Return whether a text is a line of `overlay read --format json`: a JSON object with all of
    MEMBERS, which a message for a filter does not have.
    """
    from overlay.view.one_record import MEMBERS

    with contextlib.suppress(ValueError):
        found = json.loads(text)
        return isinstance(found, dict) and all(name in found for name in MEMBERS)
    return False


def find_record(
    sql: str, what: str, name: str | None, declared: tuple[str, ...], folder: Path
) -> tuple[Filter, RecordView]:
    """Return the filter as it is compiled for the record's stream, and the record. Blocks.

    `what`: a place such as orders-0@146, or a line of `overlay read --format json`. The others: as
    in `choose_stream`. Raises OverlayError and click.UsageError.
    """
    from overlay.default_folder import SERVICE_FILE
    from overlay.errors import FilterSyntaxError
    from overlay.filter import compile_sql
    from overlay.view.one_record import fetch_record, parse_place, read_line

    from .read_notes import word_for_topic

    line = what if is_line(what) else ""
    topic = str(json.loads(line)["topic"]) if line else parse_place(what).topic
    # a line says all that is needed, so that no folder has to be there
    loaded = open_folder(folder) if not line or name is not None or (folder / SERVICE_FILE).exists() else None
    stream = choose_stream(loaded, topic, name, declared, folder)
    try:
        compiled = compile_sql(sql, stream.properties)
    except FilterSyntaxError as error:
        raise (error if loaded is not None and stream.name in loaded.streams else word_for_topic(error)) from None
    if line:
        return compiled, read_line(compiled, stream, line)
    assert loaded is not None
    return compiled, asyncio.run(fetch_record(loaded.service.kafka, compiled, stream, parse_place(what)))


def choose_stream(
    loaded: Loaded | None, topic: str, name: str | None, declared: tuple[str, ...], folder: Path
) -> StreamConfig:
    """Return the stream that reads a record of a topic: the one of this name, the only one that has the
    topic, or one for the topic alone. With `declared`, the texts of --property, it is always one for
    the topic alone.

    Raises click.UsageError for --property with a name or of a wrong form, or if a stream has the topic, and
    OverlayError if the named stream is unknown or does not have the topic, or if several streams have it.
    """
    from overlay.client.read.topic import describe_topic

    from .read import parse_property

    streams = {} if loaded is None else loaded.streams
    if declared:
        if name is not None:
            raise click.UsageError(
                "--property is for a topic without a stream; what a stream declares stands in its file"
            )
        if names := [stream.name for stream in streams.values() if topic in stream.topic_names]:
            have = f"streams {', '.join(names)} have" if len(names) > 1 else f"stream {names[0]} has"
            raise click.UsageError(f"--property is for a topic without a stream, but {have} topic {topic}")
        return describe_topic(topic, dict(parse_property(text) for text in declared))
    if name is not None and name not in streams:
        raise refuse_unknown("stream", name, streams, folder)
    having = [stream for stream in streams.values() if topic in stream.topic_names and name in (None, stream.name)]
    if name is not None and not having:
        raise OverlayError(
            f"stream {name} does not have topic {topic}. Its topics are {', '.join(streams[name].topic_names)}"
        )
    if len(having) > 1:
        raise OverlayError(
            f"streams {', '.join(stream.name for stream in having)} have topic {topic}. Say which: --stream"
        )
    return having[0] if having else describe_topic(topic, {})
