"""Why a question can find nothing, where that is known: lines for the user, besides the answer."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from overlay.client.texts import make_printable
from overlay.config.filters import find_property, list_properties
from overlay.config.stream import PropertyType, StreamConfig, place_property
from overlay.config.suggestion import rank_similar, suggest
from overlay.config.values import ValueFormat
from overlay.config.yaml_text import quote
from overlay.field import Field, FieldKind
from overlay.filter import Filter
from overlay.filter.nodes import Column, Literal, Section
from overlay.filter.rows import to_truth
from overlay.inspect.column import SampledField, find_columns
from overlay.inspect.outside import explain_outside
from overlay.inspect.sample import SampledRecord
from overlay.match.properties import find_sources
from overlay.scan.states import GOOD
from overlay.subject import Pattern
from overlay.subject.pattern import find_plain_wildcard

from .never import find_never


def list_doubts(
    stream: StreamConfig, patterns: Iterable[Pattern], filter: Filter | None, *, is_named: bool = True
) -> Iterator[str]:
    """Yield why subjects and a filter can find nothing in a stream, without reading it; also which subjects have a
    `*` or `>` that is no wildcard. `is_named`: whether a file describes the stream; otherwise it has one topic, whose
    name is its only subject.
    """
    for pattern in patterns:
        if token := find_plain_wildcard(pattern):
            yield describe_plain_wildcard(pattern, token)
        if line := explain_outside(stream, pattern, is_named=is_named):
            yield line
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
    named = dict.fromkeys(columns, "which the filter names")
    yield from _list_absent(stream, named, records, is_named=is_named)


def list_absent_properties(stream: StreamConfig, records: Sequence[SampledRecord]) -> Iterator[str]:
    """Yield a line, as `list_missing` does, for each property of a stream that none of the records has."""
    named = {
        Column(*place_property(name), entry.type): f"from which the property {name} is read"
        for name, entry in stream.properties.items()
    }
    yield from _list_absent(stream, named, records, is_named=True)


def _list_absent(
    stream: StreamConfig, named: Mapping[Column, str], records: Sequence[SampledRecord], *, is_named: bool
) -> Iterator[str]:
    """Yield the lines of `list_missing` for these columns. `named`: for each how its line goes on, such as `which the
    filter names`.
    """
    sources = find_sources(named, stream.properties)
    sampled = find_columns(records)
    present = {column.field for column in sampled if column.present}
    for column, words in named.items():
        source = sources[column]
        if not records or source.given is not None or any(field in present for field in source.fields):
            continue
        if column.section is Section.HEADER or not all(field.kind in _NAMED for field in source.fields):
            continue
        wanted = source.fields[0]
        if wanted.kind is FieldKind.VALUE and stream.values.format is not ValueFormat.JSON:
            continue  # the sample is of JSON; what other values have, their schemas say
        line = f"none of {len(records)} sampled records has {_NAMED[wanted.kind]} {wanted.name!r}, {words}."
        yield line + _suggest(stream, column, wanted, sampled, is_named=is_named)


_NAMED = {FieldKind.HEADER: "the header", FieldKind.VALUE: "the JSON field"}


def _suggest(
    stream: StreamConfig, column: Column, wanted: Field, sampled: Sequence[SampledField], *, is_named: bool
) -> str:
    """Return the hint at the end of a line of `list_missing`, with a blank before it. If a header was
    wanted, it is a declared property that the filter may mean, and how to declare a JSON field of
    that name; otherwise it is a similar name, or the first _SHOWN names of this kind that the
    records have. "" if they have none.
    """
    is_undeclared = wanted.kind is FieldKind.HEADER and column.name not in stream.properties
    if is_undeclared and (own := _find_own(stream, column.name, sampled)):
        return f" Did you mean {own}?"
    declared = list_properties(stream) if is_undeclared else []
    fields = [each for each in sampled if each.present and each.field.kind is FieldKind.VALUE]
    name = column.name.casefold()
    same = [each for each in fields if each.field.name.split(".")[-1].casefold() == name]
    if same and wanted.kind is FieldKind.HEADER:
        best = min(same, key=_rank)
        entry = _declare(column.name, best, best.type, is_named=is_named)
        todo = f"add to the file of stream {stream.name}, under properties:" if is_named else "say --property"
        return f"{suggest(column.name, declared)} For the JSON field {todo} {entry}"
    known = sorted(each.field.name for each in sampled if each.present and each.field.kind is wanted.kind)
    if near := suggest(wanted.name, [*known, *declared]):
        return near
    return f" They have {', '.join(map(make_printable, known[:_SHOWN]))}" if known else ""


def _find_own(stream: StreamConfig, name: str, sampled: Iterable[SampledField]) -> str:
    """Return the declared property that a filter means by `name` (`find_property`). "" also if records have a JSON field of
    just this name and the property is read from another one: that field may be meant.
    """
    field, own = Field(FieldKind.VALUE, name), find_property(stream, name)
    has_field = any(each.present and each.field == field for each in sampled)
    return "" if own and has_field and stream.properties[own].source != field else own


def _rank(sampled: SampledField) -> tuple[int, int]:
    return -sampled.present, len(sampled.field.name)


def _declare(name: str, sampled: SampledField, type: str, *, is_named: bool) -> str:
    """Return the declaration of a property that is read from a sampled header or JSON field: for a stream's file, or for the
    option --property.
    """
    is_header = sampled.field.kind is FieldKind.HEADER and sampled.field.name == name
    if not is_named:
        return f"{name}:{type}" if is_header else f"{name}:{type}={sampled.field.kind.value}:{sampled.field.name}"
    key = quote(name)
    return f"{key}: {type}" if is_header else f"{key}: {{type: {type}, from: {quote(str(sampled.field), force=True)}}}"


def hint_declaration(
    stream: StreamConfig, name: str, type: str, records: Sequence[SampledRecord], *, is_named: bool, near: str = ""
) -> str:
    """Return the hint for a filter that uses an undeclared property like a number or a boolean: the declared property that
    is meant, or how to declare the header of this name, or else the JSON field, with the type that its sampled values fit.
    If no record has either: the names that the stream declares; "" for a topic or without records. `type`: what the filter
    makes likely, from its error. `is_named`: as for `list_missing`. `near`: the error's own question for a similar name, ""
    for none.
    """
    columns = [column for column in find_columns(records) if column.present]
    headers = [each for each in columns if each.field == Field(FieldKind.HEADER, name)]
    is_json = stream.values.format is ValueFormat.JSON
    values = [each for each in columns if is_json and each.field.kind is FieldKind.VALUE]
    if not headers and (own := _find_own(stream, name, values)):
        return f"did you mean {own}?"
    fields = [each for each in values if each.field.name.split(".")[-1].casefold() == name.casefold()]
    if not (headers or fields):
        known = [each.field.name for each in values]
        return _name_known(stream, name, known, len(records), near) if is_named and records else ""
    best = headers[0] if headers else min(fields, key=_rank)
    is_time = type == PropertyType.TIMESTAMP and best.type is PropertyType.LONG
    declared = _declare(name, best, type if is_time else best.type, is_named=is_named)
    hint = f"add to the stream's file, under properties: {declared}" if is_named else f"say --property {declared}"
    if best.type in (PropertyType.STRING, PropertyType.BINARY):
        hint += "; its values are texts, so compare it with a text in quotes"
    return near + hint


def _name_known(stream: StreamConfig, name: str, fields: Iterable[str], records: int, near: str) -> str:
    """Return the hint for a name that neither the stream nor a sampled record has: the declared names, most similar first,
    or the JSON fields if there are none. `records`: how many are sampled. `near`: as for `hint_declaration`.
    """
    what = "a header or a JSON field" if stream.values.format is ValueFormat.JSON else "a header"
    none = f"{near.removesuffix('If not, ')}{'N' if near else 'n'}one of {records} sampled records has {what} {name!r}"
    if declared := rank_similar(name, list_properties(stream)):
        return f"{none}; the stream declares {', '.join(declared[:_SHOWN])}"
    known = rank_similar(name, fields)
    return f"{none}; they have the JSON fields {', '.join(map(make_printable, known[:_SHOWN]))}" if known else none


def list_misread(stream: StreamConfig, filter: Filter, records: Sequence[SampledRecord]) -> Iterator[str]:
    """Yield a line for each field of a filter of whose sampled values more than half do not spell its type: they are NULL,
    and the filter finds too little. Yield nothing for value fields of a stream whose values are not JSON.
    """
    columns = [column for column in filter.columns if isinstance(column, Column)]
    sources = find_sources(columns, stream.properties)
    sampled = {found.field: found for found in find_columns(records)}
    for column in columns:
        for field in sources[column].fields:
            is_read = field.kind is not FieldKind.VALUE or stream.values.format is ValueFormat.JSON
            if not is_read or (found := sampled.get(field)) is None:
                continue
            wrong = _find_misread(found, column.type)
            if 2 * len(wrong) > found.present:
                share = math.floor(100 * len(wrong) / found.present)
                shown = make_printable(wrong[0][:_LONGEST])
                advice = f": try {found.type}" if found.type != column.type else ""
                yield f"{share} % of the sampled values of {column.name} are no {column.type}, such as {shown}{advice}"


def _find_misread(sampled: SampledField, type: str) -> list[str]:
    """Return the values of a sampled field that do not spell a type, one of TYPES in overlay/scan/columns.py."""
    # it brings kernels, which most commands do not need
    from overlay.scan.columns import Origin, gather

    texts = [text for text in sampled.texts if text is not None]
    written = texts
    if is_json := sampled.field.kind is FieldKind.VALUE:
        is_text = [own in (PropertyType.STRING, PropertyType.TIMESTAMP) for own in sampled.types if own is not None]
        written = [json.dumps(text) if quoted else text for text, quoted in zip(texts, is_text, strict=True)]
    raw = [text.encode("utf-8", "surrogatepass") for text in written]
    size = np.array([len(each) for each in raw], np.int64)
    at = np.cumsum(size) - size
    buf = np.frombuffer(b"".join(raw) or b" ", np.uint8)
    column = gather(buf, at, size, type, Origin.JSON if is_json else Origin.TEXT)
    return [text for text, state in zip(texts, column.states.tolist(), strict=True) if state != GOOD]


_LONGEST = 40
"""Characters of a value that a line shows."""
_SHOWN = 8
