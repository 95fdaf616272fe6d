"""Why a question can find nothing, where that is known: lines for the user, besides the answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from overlay.config.stream import StreamConfig
from overlay.config.suggestion import suggest
from overlay.config.values import ValueFormat
from overlay.field import Field, FieldKind
from overlay.filter import Filter
from overlay.filter.nodes import Column, Literal, Section
from overlay.filter.rows import to_truth
from overlay.inspect.column import SampledField, find_columns
from overlay.inspect.sample import SampledRecord
from overlay.match.properties import find_sources
from overlay.subject import Pattern
from overlay.subject.pattern import find_plain_wildcard, intersects

from .never import find_never


def list_doubts(
    stream: StreamConfig, patterns: Iterable[Pattern], filter: Filter | None, *, is_named: bool = True
) -> Iterator[str]:
    """Yield why subjects and a filter can find nothing in a stream, without reading it; also which subjects have a
    `*` or `>` that is no wildcard. `is_named`: whether a file describes the stream; otherwise it has one topic, whose
    name is its only subject.
    """
    subjects = stream.patterns
    if not is_named and isinstance(subject := stream.subject.rule.build((), stream.topic_names[0], 0), str):
        subjects = (Pattern(subject),)
    for pattern in patterns:
        if token := find_plain_wildcard(pattern):
            yield describe_plain_wildcard(pattern, token)
        if not any(intersects(pattern, own) for own in subjects):
            known = ", ".join(own.text for own in subjects)
            where = f"stream {stream.name}" if is_named else f"topic {stream.topic_names[0]}"
            yield f"no record of {where} has a subject like {pattern}: its subjects are {known}"
    if filter is None:
        return
    if isinstance(filter.bound, Literal):
        answer = to_truth(filter.bound.value)
        if answer is not True:
            yield f"the filter is {'unknown' if answer is None else 'false'} for every record"
    yield from map(str, find_never(filter.bound))


def describe_plain_wildcard(pattern: Pattern, token: str) -> str:
    """Return a sentence for the user: the `*` or `>` within `token`, a token of `pattern`, is an ordinary character."""
    return (
        f"{pattern}: the * or > in {token!r} is an ordinary character. A wildcard stands alone between dots, as in"
        " orders.*.paid or orders.>"
    )


def list_missing(
    stream: StreamConfig, filter: Filter, records: Sequence[SampledRecord], *, is_named: bool
) -> Iterator[str]:
    """Yield a line for each field of a filter that is read from a header or from a JSON field, if none of the records
    has that. The line ends with a hint, if the records give one: a JSON field of the same name, a similar name, or
    names that the records have.

    Yield nothing without records, for fields of the section `header`, and for value fields of a stream whose values
    are not JSON. `is_named`: whether a file describes the stream, so that the hint is for the file; otherwise it is
    for the option --property.
    """
    columns = [column for column in filter.columns if isinstance(column, Column)]
    sources = find_sources(columns, stream.properties)
    sampled = find_columns(records)
    present = {column.field for column in sampled if column.present}
    for column in columns:
        source = sources[column]
        if not records or source.given is not None or any(field in present for field in source.fields):
            continue
        if column.section is Section.HEADER or not all(field.kind in _NAMED for field in source.fields):
            continue
        wanted = source.fields[0]
        if wanted.kind is FieldKind.VALUE and stream.values.format is not ValueFormat.JSON:
            continue  # the sample is of JSON; what other values have, their schemas say
        line = (
            f"none of {len(records)} sampled records has {_NAMED[wanted.kind]} {wanted.name!r}, which the filter names."
        )
        yield line + _suggest(stream, column, wanted, sampled, is_named=is_named)


_NAMED = {FieldKind.HEADER: "the header", FieldKind.VALUE: "the JSON field"}


def _suggest(
    stream: StreamConfig, column: Column, wanted: Field, sampled: Sequence[SampledField], *, is_named: bool
) -> str:
    """Return the hint at the end of a line of `list_missing`, with a blank before it. If a header was
    wanted and a JSON field has its name, it says how to declare that; otherwise it is a similar
    name, or the first _SHOWN names of this kind that the records have. "" if they have none.
    """
    fields = [each for each in sampled if each.present and each.field.kind is FieldKind.VALUE]
    name = column.name.casefold()
    same = [each for each in fields if each.field.name.split(".")[-1].casefold() == name]
    if same and wanted.kind is FieldKind.HEADER:
        best = min(same, key=lambda each: (-each.present, len(each.field.name)))
        if not is_named:
            return f" For the JSON field say --property {column.name}:{best.type}=value:{best.field.name}"
        declared = f'{column.name}: {{type: {best.type}, from: "{best.field}"}}'
        return f" For the JSON field add to the file of stream {stream.name}, under properties: {declared}"
    known = sorted(each.field.name for each in sampled if each.present and each.field.kind is wanted.kind)
    if near := suggest(wanted.name, known):
        return near
    return f" They have {', '.join(known[:_SHOWN])}" if known else ""


_SHOWN = 8
