"""Rules between the fields of one stream.

They are not in the model, because each error names the field to change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from overlay.errors import SchemaError
from overlay.field import Field, FieldKind
from overlay.filter.fields import FIELDS
from overlay.filter.section import Section
from overlay.subject import SubjectRule, intersects

from .document import Path
from .stream import PropertyType, StreamConfig, place_property
from .suggestion import suggest
from .values import ValueFormat, check_field

_RANGED = (PropertyType.STRING, PropertyType.LONG, PropertyType.DOUBLE, PropertyType.TIMESTAMP)


def check_stream(stream: StreamConfig) -> Iterator[tuple[Path, str]]:
    """Yield the path and message of each thing that is wrong with the fields of a well-formed stream together. If it
    names schema files, their contents must be in it (`read_schemas`).
    """
    yield from _check_topics(stream)
    yield from _check_properties(stream)
    yield from _check_values(stream)
    yield from _check_reach(stream)
    yield from _check_index(stream)


def _check_topics(stream: StreamConfig) -> Iterator[tuple[Path, str]]:
    seen: set[str] = set()
    for at, source in enumerate(stream.topics):
        if source.topic in seen:
            yield ("topics", at), f"topic {source.topic!r} stands here twice. Keep one, with all partitions it needs"
        seen.add(source.topic)
        twice = [number for number, count in Counter(source.partitions or ()).items() if count > 1]
        if twice:
            yield ("topics", at, "partitions"), f"partition {twice[0]} stands here twice. Keep one"


def _check_properties(stream: StreamConfig) -> Iterator[tuple[Path, str]]:
    seen: dict[tuple[Section, str], str] = {}
    for name in stream.properties:
        section, field = place = place_property(name)
        if place in seen:
            yield ("properties", name), f"is the field that {seen[place]!r} is already about. Keep one of them"
        elif section in FIELDS and field not in FIELDS[section]:
            known = list(FIELDS[section])
            yield (
                ("properties", name),
                f"the section {section.value} has no field {field!r}.{suggest(field, known)} Fields are {', '.join(known)}",
            )
        seen[place] = name


def _check_values(stream: StreamConfig) -> Iterator[tuple[Path, str]]:
    """Yield the path and message of each field of the values that the stream's file names and that its schemas do not
    have, or that cannot have the type that a property gives to it. If there is none, yield one message if the schemas
    are too large. Nothing for JSON, which may have any field.
    """
    if stream.values.format is ValueFormat.JSON:
        return
    finders = stream.values.make_finders()
    if not finders:
        return  # its registry has all schemas
    found: list[tuple[Path, str]] = []
    fields: list[Field] = []
    for name, entry in stream.properties.items():
        source = entry.source
        if source is not None and source.kind is FieldKind.VALUE:
            fields.append(source)
            for path, message in check_field(finders, source, entry.type):
                found.append((("properties", name, *(path or ("from",))), message))
    for place, template in (("subject", stream.subject.template), ("filter_value", stream.filter_value.template)):
        for field in SubjectRule.from_template(template).fields if template else ():
            if field.kind is FieldKind.VALUE:
                fields.append(field)
                found += (((place, "template"), message) for _, message in check_field(finders, field))
    yield from found
    if fields and not found:
        yield from _check_programs(stream, fields)


def _check_programs(stream: StreamConfig, fields: Iterable[Field]) -> Iterator[tuple[Path, str]]:
    """Yield a path and message if the schemas are too large to find all these fields of values together. A session that
    found this out would end, and with it all streams of its shard.
    """
    try:
        stream.values.compile_programs(fields)
    except SchemaError as error:
        yield ("values", stream.values.place), str(error)


def _check_reach(stream: StreamConfig) -> Iterator[tuple[Path, str]]:
    built = stream.subject.rule.patterns()
    if not any(intersects(pattern, own) for pattern in built for own in stream.patterns):
        builds, allowed = ", ".join(map(str, built)), ", ".join(stream.subjects)
        yield (
            ("subjects",),
            f"no message can belong: the subject rule builds {builds}, allowed are {allowed}. Change one of the two",
        )


def _check_index(stream: StreamConfig) -> Iterator[tuple[Path, str]]:
    known = list(stream.properties)
    for field in ("terms", "zones"):
        for at, name in enumerate(getattr(stream.index, field)):
            path: Path = ("index", field, at)
            if name not in stream.properties:
                yield path, f"{name!r} is no declared property.{suggest(name, known)} Declare it under `properties`"
            elif field == "zones" and stream.properties[name].type not in _RANGED:
                kind = stream.properties[name].type
                yield path, f"{name!r} is a {kind}, which has no ranges. Zones take string, long, double and timestamp"
