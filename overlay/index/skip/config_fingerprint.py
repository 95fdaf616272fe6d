"""Fingerprints of the part of a stream's config that gives the contents of chunk headers their
meaning.

The config may change while the index stays. A header that was sealed before `carrier` was listed
under `index.terms` has no term of any carrier; this must not be taken for "no such record". So a
header says what it was made from: one fingerprint of the subject rule, the stream's subjects and
the filter value, and one of each property with terms or a zone, of its name, type and source. Where
one of these is read from values that are not JSON, the schemas of the values count as well, unless
a schema registry has them. A reader of the header compares these with the current ones. If the first differs, other records
belonged to the stream, and only what is said of the whole log holds: offsets, times, sizes, the
number of records.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import mmh3

from overlay.config.stream import FilterValue, StreamConfig, SubjectSource
from overlay.config.values import ValueFormat
from overlay.field import FieldKind, parse_template


@dataclass(frozen=True, slots=True)
class ConfigFingerprint:
    """Fingerprints (uint32) of header contents: `subject` of subjects and filter values, `terms`
    and `zones` by property name.
    """

    subject: int
    terms: Mapping[str, int] = field(default_factory=dict)
    zones: Mapping[str, int] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    """The types of all these properties, by name."""


def find_config_fingerprint(stream: StreamConfig) -> ConfigFingerprint:
    """Return the fingerprints that headers get if they are sealed under this config. Equal
    fingerprints mean that a header's contents still have the same meaning.
    """
    about = (
        *("subject", _write(stream.subject), *sorted(stream.subjects), _write(stream.filter_value)),
        *_describe_values(stream, (stream.subject.template, stream.filter_value.template)),
    )
    index = stream.index
    return ConfigFingerprint(
        _fingerprint(about),
        {name: _fingerprint(("terms", *_describe(stream, name))) for name in index.terms},
        {name: _fingerprint(("zones", *_describe(stream, name))) for name in index.zones},
        {name: stream.properties[name].type.value for name in (*index.terms, *index.zones)},
    )


def _describe(stream: StreamConfig, name: str) -> tuple[str, ...]:
    declared = stream.properties[name]
    return name, declared.type.value, declared.from_, *_describe_values(stream, (declared.from_,))


def _describe_values(stream: StreamConfig, templates: Iterable[str | None]) -> Iterator[str]:
    """Yield one text, the `values` section of the stream (format and schemas) as JSON, if one of
    the templates reads a field of values that are not JSON: the schemas decide what it is. Yield
    nothing otherwise.
    """
    fields = (part for text in templates for part in parse_template(text or ""))
    is_read = any(not isinstance(part, str) and part.kind is FieldKind.VALUE for part in fields)
    if is_read and stream.values.format is not ValueFormat.JSON:
        # the schemas of a registry are never changed, and are known before their values are read
        given = stream.values if stream.values.registry is None else {"format": stream.values.format, "registry": True}
        yield json.dumps(given if isinstance(given, dict) else given.model_dump(mode="json"), sort_keys=True)


def _write(source: SubjectSource | FilterValue) -> str:
    return source.model_dump_json(exclude_none=True)


def _fingerprint(parts: Iterable[str]) -> int:
    return mmh3.hash("\0".join(parts).encode(), signed=False)
