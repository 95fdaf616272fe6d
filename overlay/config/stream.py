"""The model of a stream's file: its topics, the subjects of messages, and typed properties."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from overlay.field import Field as RecordField
from overlay.field import FieldKind, parse_field
from overlay.filter.fields import FIELDS, SECTIONS
from overlay.filter.section import Section
from overlay.subject import Pattern, SubjectRule, check_stream_subject
from overlay.units import Duration, Size, parse_size

from .model import Model, TopicName
from .values import ValuesConfig

_NAME = re.compile(r"[A-Za-z0-9_-]{1,200}", re.ASCII)
_BLOOM_MIN, _BLOOM_MAX = 16, 64 * 1024


class PropertyType(StrEnum):
    STRING = "string"
    LONG = "long"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    TIMESTAMP = "timestamp"
    BINARY = "binary"


class OnCorrupt(StrEnum):
    STOP = "stop"
    SKIP = "skip"


def _name_topic(value: object) -> object:
    return {"topic": value} if isinstance(value, str) else value


def _name_type(value: object) -> object:
    return {"type": value} if isinstance(value, str) else value


def _name_source(value: object) -> object:
    return {"subject": True} if value == "subject" else value


def _name_format(value: object) -> object:
    return {"format": value} if isinstance(value, str) else value


def _parse_bloom(value: object) -> object:
    if value == "auto":
        return value
    size = parse_size(value)
    if not _BLOOM_MIN <= size <= _BLOOM_MAX:
        raise ValueError("bloom_bytes is auto, or a size from 16 to 64KiB")
    return size


def _check_stream_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("a stream name has 1 to 200 of the characters A-Z a-z 0-9 _ - (topics are named after it)")
    return name


def _check_pattern(text: str) -> str:
    check_stream_subject(text)
    return text


def _check_template(text: str) -> str:
    rule = SubjectRule.from_template(text)
    if any(field.kind is FieldKind.TIMESTAMP for field in rule.fields):
        raise ValueError(
            "{timestamp} makes a new subject of nearly every record. Leave it out; it is a field for properties"
        )
    return text


def _check_source(text: str) -> str:
    parse_field(text)
    return text


def place_property(name: str) -> tuple[Section, str]:
    """Return the section and field that a name under `properties` of a stream's file stands for.

    `p.message_id` is a field of the section `properties`; `dep_delay` is an application property.
    """
    prefix, dot, field = name.partition(".")
    section = SECTIONS.get(prefix) if dot else None
    return (section, field) if section in FIELDS else (Section.APPLICATION, name)


def is_sectioned(name: str) -> bool:
    """Return whether a name under `properties` of a stream's file begins with a section of fixed fields, as
    `p.message_id` does, so that it is no application property. Whether the section has the field is not checked.
    """
    return place_property(name)[0] is not Section.APPLICATION


class TopicSource(Model):
    """A topic of the stream, or some partitions of it."""

    topic: TopicName
    """Name of the Kafka topic."""
    partitions: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] | None = None
    """Only these partitions; all of them when left out."""


class SubjectSource(Model):
    """Where a message's subject comes from: exactly one of the four."""

    template: str | None = None
    """A text with fields in braces: {topic} {partition} {key} {header:NAME} {value:json.path}."""
    header: Annotated[str, Field(min_length=1)] | None = None
    """Name of the header that holds the whole subject."""
    topic: Literal[True] | None = None
    """`true`: the topic's name is the subject."""
    key: Literal[True] | None = None
    """`true`: the record's key is the subject."""

    @field_validator("template")
    @classmethod
    def _check_template(cls, text: str | None) -> str | None:
        return None if text is None else _check_template(text)

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if len(self.model_fields_set) != 1:
            raise ValueError("give exactly one of template, header, topic and key")
        return self

    @property
    def rule(self) -> SubjectRule:
        """The rule that builds subjects."""
        if self.template is not None:
            return SubjectRule.from_template(self.template)
        if self.header is not None:
            return SubjectRule.from_header(self.header)
        return SubjectRule.from_key() if self.key else SubjectRule.from_topic()


class FilterValue(Model):
    """The part of a message that filter values are compared with: exactly one of the three."""

    subject: Literal[True] | None = None
    """The subject; `filter_value: subject` is the short form."""
    header: Annotated[str, Field(min_length=1)] | None = None
    """The value of this header."""
    template: str | None = None
    """A template as for subjects."""

    @field_validator("template")
    @classmethod
    def _check_template(cls, text: str | None) -> str | None:
        return None if text is None else _check_template(text)

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if len(self.model_fields_set) != 1:
            raise ValueError("is subject, or a mapping with exactly one of header and template")
        return self


class Property(Model):
    """A typed field of the messages that filters can name."""

    type: Annotated[PropertyType, Field(strict=False)]
    """A value that does not parse as its type is null."""
    from_: Annotated[str, AfterValidator(_check_source), Field(alias="from")] = ""
    """Field to read it from: {header:NAME}, {value:json.path}; default: the header of its name."""

    @property
    def source(self) -> RecordField | None:
        """The field to read the property from.

        None for a fixed field that has no source of its own.
        """
        return parse_field(self.from_) if self.from_ else None


class IndexConfig(Model):
    """How the stream's chunks are cut and what their headers hold."""

    terms: tuple[str, ...] = ()
    """Properties whose values go into the Bloom filters, for filters by equality."""
    zones: tuple[str, ...] = ()
    """Properties whose smallest and largest values are kept, for filters by range."""
    chunk_records: Annotated[int, Field(ge=1, le=1 << 20)] = 4096
    """A chunk is closed at this many records."""
    chunk_bytes: Annotated[Size, Field(ge=1024)] = 1 << 20
    """A chunk is closed at this size."""
    chunk_age: Annotated[Duration, Field(gt=0)] = 10_000_000_000
    """A chunk is closed at this age."""
    bloom_bytes: Annotated[
        int | Literal["auto"],
        BeforeValidator(_parse_bloom),
        WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": ["string", "integer"], "examples": ["16B", "8KiB"]}]}),
    ] = "auto"
    """Size of the Bloom filters: `auto`, or 16 to 64KiB."""


PropertyEntry = Annotated[Property, BeforeValidator(_name_type, json_schema_input_type=Property | PropertyType)]
TopicEntry = Annotated[TopicSource, BeforeValidator(_name_topic, json_schema_input_type=TopicSource | TopicName)]
ValuesEntry = Annotated[
    ValuesConfig, BeforeValidator(_name_format, json_schema_input_type=ValuesConfig | Literal["json"])
]
FilterValueEntry = Annotated[
    FilterValue, BeforeValidator(_name_source, json_schema_input_type=FilterValue | Literal["subject"])
]


class StreamConfig(Model):
    """A stream: a named set of Kafka topics seen as one log of messages with subjects."""

    name: Annotated[str, AfterValidator(_check_stream_name), Field(json_schema_extra={"pattern": "^[A-Za-z0-9_-]+$"})]
    """Name of the stream: 1 to 200 of the characters A-Z a-z 0-9 _ -"""
    topics: Annotated[tuple[TopicEntry, ...], Field(min_length=1)]
    """Kafka topics to read: a name, or {topic: NAME, partitions: [0, 1]}."""
    subjects: Annotated[tuple[Annotated[str, AfterValidator(_check_pattern)], ...], Field(min_length=1)] = (">",)
    """Subjects of the stream; messages with other subjects are counted and left out."""
    subject: SubjectSource = SubjectSource(topic=True)
    """Where a message's subject comes from; the topic's name when left out."""
    values: ValuesEntry = ValuesConfig()
    """The format of the values, from which {value:path} reads: `json`, or {format: avro, schema: FILE}."""
    properties: dict[str, PropertyEntry] = Field(default_factory=dict)
    """Typed fields by name: a type (header of the same name), or {type: TYPE, from: FIELD}."""
    filter_value: FilterValueEntry = FilterValue(subject=True)
    """The value to compare with a consumer's filter values; a message without one is unfiltered."""
    index: IndexConfig = IndexConfig()
    """The chunk index."""
    on_corrupt: Annotated[OnCorrupt, Field(strict=False)] = OnCorrupt.STOP
    """A batch that cannot be read: stop that partition, or count it, log it and skip it."""

    @field_validator("properties", mode="after")
    @classmethod
    def _name_headers(cls, properties: dict[str, Property]) -> dict[str, Property]:
        return {
            name: entry
            if entry.from_ or is_sectioned(name)
            else entry.model_copy(update={"from_": f"{{header:{name}}}"})
            for name, entry in properties.items()
        }

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """`subjects` as parsed patterns."""
        return tuple(Pattern.parse(text) for text in self.subjects)

    @property
    def topic_names(self) -> tuple[str, ...]:
        return tuple(source.topic for source in self.topics)
