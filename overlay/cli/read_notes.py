"""Notes on stderr about a question that can find nothing, or has found nothing, for a reason that is
known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from overlay.errors import OverlayError

if TYPE_CHECKING:
    from overlay.client import Client
    from overlay.config.stream import StreamConfig
    from overlay.errors import FilterSyntaxError
    from overlay.filter import Filter
    from overlay.inspect.sample import TopicSample
    from overlay.subject import Pattern

SAMPLE = 200
"""Records of each topic that are looked at."""
MOST_TOPICS = 3
IN_FILE = "add to the stream's file, under properties: "
"""What the hint of a filter begins with that needs a declaration (overlay/filter/bind.py)."""


@dataclass(frozen=True, slots=True)
class AskedOf:
    """What a question asks of a stream. `patterns`: subjects, empty for all. `filter`: None for
    none. `is_named`: whether a file describes the stream.
    """

    stream: StreamConfig
    patterns: tuple[Pattern, ...]
    filter: Filter | None
    is_named: bool


def tell(lines: Iterable[str]) -> None:
    """Print each line as a note on stderr."""
    for line in lines:
        click.echo(f"note: {line}", err=True)


def view_question(
    client: Client, stream: str, topic: str, declare: Mapping[str, Any] | None, question: Mapping[str, Any]
) -> AskedOf:
    """Return what a question that `Client.read` has accepted asks of its stream."""
    from overlay.client.read.topic import describe_topic
    from overlay.filter import compile_properties, compile_sql
    from overlay.subject import Pattern

    config = client.find_stream(stream) if stream else describe_topic(topic, declare or {})
    filter = None
    if question.get("sql") is not None:
        filter = compile_sql(question["sql"], config.properties)
    elif question.get("properties") is not None:
        filter = compile_properties(question["properties"], config.properties)
    patterns = tuple(Pattern.parse(text) for text in question.get("subjects", ()))
    return AskedOf(config, patterns, filter, bool(stream))


def tell_doubts(asked: AskedOf) -> None:
    """Print why the question can find nothing, as far as that is known without reading."""
    from overlay.view.doubts import list_doubts

    tell(list_doubts(asked.stream, asked.patterns, asked.filter, is_named=asked.is_named))


def tell_missing(client: Client, asked: AskedOf, *, is_found: bool = False) -> None:
    """Print what a sample says against the question; the sample is of the first MOST_TOPICS topics. It may know a subject
    that is like one asked for, have none of a field of the filter, other values of a field than the filter compares it
    with, or values that do not spell its type. Prints nothing if Kafka gives no sample. `is_found`: whether some records
    were found, so that subjects, fields and values are there.
    """
    from overlay.view.doubts import list_misread, list_missing

    samples = list(read_samples(client.kafka, asked.stream.topic_names[:MOST_TOPICS]))
    if asked.patterns and asked.is_named and not is_found:
        from overlay.view.near_subjects import list_near

        tell(list_near(asked.stream, asked.patterns, samples))
    if asked.filter is not None:
        records = [record for sample in samples for record in sample.records]
        if not is_found:
            from overlay.view.near_values import list_unlike

            tell(list_missing(asked.stream, asked.filter, records, is_named=asked.is_named))
            tell(list_unlike(asked.stream, asked.filter, records))
        tell(list_misread(asked.stream, asked.filter, records))


def improve_hint(
    client: Client, stream: str, topic: str, declare: Mapping[str, Any] | None, error: FilterSyntaxError
) -> FilterSyntaxError:
    """Return the error of a filter with a hint that fits the stream and its sample, or that of the topic, if the hint is to
    declare a property or to write a name with a point; else with one that fits a topic without a stream, or as it is.
    """
    from overlay.client.read.topic import describe_topic
    from overlay.config.filters import name_property
    from overlay.view.doubts import hint_declaration

    before, found, declaration = error.hint.partition(IN_FILE)
    name, _, kind = declaration.partition(": ")
    config = client.find_stream(stream) if stream else describe_topic(topic, declare or {})
    if not found:
        return name_property(error, config)
    samples = read_samples(client.kafka, config.topic_names[:MOST_TOPICS])
    records = [record for sample in samples for record in sample.records]
    hint = hint_declaration(config, name.strip('"'), kind, records, is_named=bool(stream), near=before)
    if not hint:
        return error if stream else word_for_topic(error)
    message = error.message if stream else error.message.replace("the stream does", "--property does")
    places = {each: getattr(error, each) for each in ("line", "column", "excerpt", "path")}
    return type(error)(message, hint=hint, **places)


def word_for_topic(error: FilterSyntaxError) -> FilterSyntaxError:
    """Return the error with a hint for a topic, whose fields --property declares and no file.
    Return the same error if its hint names no field to declare.
    """
    name, found, kind = error.hint.partition(IN_FILE)[2].partition(": ")
    if not found:
        return error
    name = name.strip('"')  # as YAML wants names like `n`
    hint = f"say --property {name}:{kind}, or for a JSON field --property {name}:{kind}=value:{name}"
    names = {each: getattr(error, each) for each in ("line", "column", "excerpt", "path")}
    return type(error)(error.message.replace("the stream does", "--property does"), hint=hint, **names)


def read_samples(kafka: Mapping[str, str], topics: Iterable[str]) -> Iterator[TopicSample]:
    """Yield for each of the topics some records from both ends of each partition. A topic that does not exist is passed over;
    after an error of Kafka nothing more comes, and the error is not raised.
    """
    from overlay.inspect.reading import look_around, read_sample

    with contextlib.suppress(OverlayError):
        cluster = look_around(kafka)
        for topic in topics:
            if topic in cluster.topics:
                yield read_sample(kafka, topic, cluster.topics[topic], SAMPLE)
