"""What chunk headers know of the columns that a filter names.

A column may be known in four ways, and in several at once:

- It is listed under the stream's `index.terms`: Bloom filters have its values, and a term that
  stands for NULL.
- It is listed under `index.zones`: headers have its least and greatest value, and whether it is
  ever NULL.
- It is read from the record's timestamp (`from: "{timestamp}"`), whose bounds every header has.
  `p.creation_time` without a declaration is not: a header of that name takes precedence over the
  timestamp, and nothing tells whether records have it.
- Subjects are made from it: it is the header, key or topic's name that is the whole subject, or a
  header or key that alone makes a token of the subject's template. Escaping keeps values apart
  (overlay/subject/escape.py), so the token tells the value. A field of a JSON value does not
  qualify: in a subject the number 5 and the text "5" are the same token.

`p.subject` is known in the last way if the stream's subject is the header of that name, and
otherwise not: it is read from a header `subject` if a record has one (overlay/match/properties.py),
which is then not the stream's subject.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from overlay.config.stream import StreamConfig, place_property
from overlay.errors import SubjectError
from overlay.field import Field, FieldKind
from overlay.filter.families import FAMILIES, Family
from overlay.filter.nodes import Column
from overlay.match.properties import Given, Source, find_sources
from overlay.subject import Pattern, SubjectRule, escape_token, is_subject

_BY_BYTES = (FieldKind.HEADER, FieldKind.KEY)


@dataclass(frozen=True, slots=True)
class Known:
    """What chunk headers know of one column of a filter; nothing by default."""

    name: str = ""
    """The name under `index` in the stream's file."""
    has_terms: bool = False
    has_zone: bool = False
    is_time: bool = False
    is_subject: bool = False
    """Whether its value is the subject."""
    cover: Pattern | None = None
    """The pattern of all subjects of which token number `hole` is the value."""
    hole: int = -1

    def find_subjects(self, value: bytes) -> Pattern | None:
        """Return the pattern that matches the subjects of exactly the records whose column has this
        value. None if the value is not UTF-8, if there is no such pattern, or if no record of the
        stream can have the value. Only for columns that are the subject or one of its tokens.
        """
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return None
        if self.is_subject:
            return Pattern(text) if is_subject(text) else None
        assert self.cover is not None
        tokens = list(self.cover.tokens)
        tokens[self.hole] = escape_token(value)
        try:
            return Pattern(".".join(tokens))
        except SubjectError:
            return None


@dataclass(frozen=True, slots=True)
class Catalog:
    """The columns of some filters, and what the headers of a stream know of each. For another
    column `[]` returns a Known that says nothing.
    """

    columns: dict[Column, Known]

    def __getitem__(self, column: Column) -> Known:
        return self.columns.get(column, _NOTHING)


_NOTHING = Known()


def find_known(stream: StreamConfig, columns: Iterable[Column]) -> Catalog:
    """Return what the headers of a stream know of these columns, by the current config."""
    sources = find_sources(columns, stream.properties)
    terms, zones = (
        {place_property(name): name for name in names} for names in (stream.index.terms, stream.index.zones)
    )
    rule = stream.subject.rule
    found = {}
    for column, source in sources.items():
        place = (column.section, column.name)
        hole = _find_token(column, source, rule)
        found[column] = Known(
            terms.get(place) or zones.get(place, ""),
            place in terms,
            place in zones,
            is_time=not source.fields and source.given is Given.TIMESTAMP and column.type in ("timestamp", "long"),
            is_subject=_is_subject(column, source, rule),
            cover=rule.patterns()[0] if hole >= 0 else None,
            hole=hole,
        )
    return Catalog(found)


def _is_subject(column: Column, source: Source, rule: SubjectRule) -> bool:
    if not rule.whole or FAMILIES[column.type] is not Family.TEXT:
        return False
    part = rule.template[0]
    assert isinstance(part, Field)
    if part.kind is FieldKind.TOPIC:
        return not source.fields and source.given is Given.TOPIC
    return source.fields[:1] == (part,)


def _find_token(column: Column, source: Source, rule: SubjectRule) -> int:
    """Return the number (from 0) of the template's token that is the column's value and nothing else,
    -1 if there is none. It is -1 too if the subject is one field as a whole, if the column is no
    text, or if it is not read from a header or the key first: a token of a JSON field may be a
    number or a text.
    """
    field = source.fields[0] if source.fields else None
    if rule.whole or field is None or field.kind not in _BY_BYTES or FAMILIES[column.type] is not Family.TEXT:
        return -1
    tokens: list[list[str | Field]] = [[]]
    for part in rule.template:
        if isinstance(part, Field):
            tokens[-1].append(part)
            continue
        first, *more = part.split(".")
        tokens[-1] += [first] if first else []
        tokens += [[text] if text else [] for text in more]
    return tokens.index([field]) if [field] in tokens else -1
