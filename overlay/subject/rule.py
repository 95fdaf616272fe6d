"""The rule by which a stream gives each of its records a subject.

There are two ways. A template puts values of the record into tokens:
`flights.{header:origin}.{value:leg.dest}`. There a value makes exactly one token, or a part of one,
so characters that have a meaning in subjects are percent-escaped (escape.py): an origin of `J.K` is
the token `J%2EK`. Or one field holds the whole subject: the topic's name, the key or a header. Then
its dots separate tokens and nothing is escaped.

A record may get no subject. That is not an error: the result says why, the caller counts it and
leaves the record out. MISSING: a value is absent, null or empty (an empty token is no token, not
even beside other text). ILLEGAL: the values make no legal subject, such as a JSON object in a token
or a key of `a..b`. OUTSIDE: JetStream reserves the subject. The caller decides whether a subject
belongs to the stream. An illegal JSON value is reported before a missing value beside it.

`build` is called once for each distinct tuple of values, which in a topic of unique keys is each
record. So as much as possible is prepared: topic and partition are written into the template's
format once, and one formatting call inserts values of plain ASCII, which nearly all are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from overlay.errors import SubjectError
from overlay.field import Field, FieldKind, Template, parse_template

from .escape import PLAIN, escape_token
from .pattern import ONE, REST, Pattern, check_subject, is_subject
from .reserved import check_stream_subject, is_reserved, may_be_reserved
from .values import READERS, Reader, Unaddressed

__all__ = ["SubjectRule", "Unaddressed"]

Value = bytes | None

_CONSTANTS = (FieldKind.TOPIC, FieldKind.PARTITION)
# a constant: looking up an enum member by its class costs as much as reading a value
_ILLEGAL: Final = Unaddressed.ILLEGAL
_PIECE = re.compile(r"\{\{|\}\}|\{[^{}]*\}")  # what a parsed template has besides plain text


@dataclass(frozen=True, slots=True)
class SubjectRule:
    """The rule by which a stream makes the subject of each record: the entry `subject` of its file.
    Make one with from_template, from_header, from_key or from_topic.
    """

    template: Template
    whole: bool
    """Whether the template is one field that holds the whole subject."""
    fields: tuple[Field, ...] = field(init=False)
    """The record's fields that `build` needs, distinct, in order. Topic and partition are passed
    separately.
    """
    _slots: tuple[int, ...] | None = field(init=False, repr=False, compare=False)
    _readers: tuple[tuple[int, Reader], ...] = field(init=False, repr=False, compare=False)
    _guarded: bool = field(init=False, repr=False, compare=False)
    _formats: dict[tuple[str, int], bytes] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        named = [part for part in self.template if isinstance(part, Field) and part.kind not in _CONSTANTS]
        fields = tuple(dict.fromkeys(named))
        slots = tuple(fields.index(part) for part in named)
        pattern = _cover(self.template, self.whole)
        self._set("fields", fields)
        self._set("_slots", None if len(slots) == len(fields) else slots)
        self._set("_readers", tuple((at, READERS[part.kind]) for at, part in enumerate(fields) if part.kind in READERS))
        self._set("_guarded", may_be_reserved(pattern))
        self._set("_formats", {})

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @classmethod
    def from_template(cls, text: str) -> SubjectRule:
        """Return the rule of `{template: TEXT}`. Raises SubjectError if the template has a syntax
        error, can make no legal subject, or makes subjects that a stream may not capture.
        """
        template = parse_template(text)
        # Any value of a field makes a legal part of a token, so x stands for it; as long as in the
        # text, for the error's column.
        check_subject(_PIECE.sub(lambda piece: "x" * len(piece[0]), text), what="template", shown=text)
        check_stream_subject(_cover(template, whole=False).text, shown=text)
        return cls(template, whole=False)

    @classmethod
    def from_header(cls, name: str) -> SubjectRule:
        """Return the rule of `{header: NAME}`: the header's value is the subject. Raises
        SubjectError for an empty name.
        """
        if not name:
            raise SubjectError("subject {header: ''}: the header's name is empty; write the name of a header")
        return cls((Field(FieldKind.HEADER, name),), whole=True)

    @classmethod
    def from_topic(cls) -> SubjectRule:
        """Return the rule of `{topic: true}`: the topic's name is the subject."""
        return cls((Field(FieldKind.TOPIC),), whole=True)

    @classmethod
    def from_key(cls) -> SubjectRule:
        """Return the rule of `{key: true}`: the record's key is the subject."""
        return cls((Field(FieldKind.KEY),), whole=True)

    def patterns(self) -> tuple[Pattern, ...]:
        """Return the narrowest patterns that together match every subject that this rule can build;
        currently always one.
        """
        return (_cover(self.template, self.whole),)

    def build(self, values: Sequence[Value], topic: str, partition: int) -> str | Unaddressed:
        """Return the subject of a record, or why it has none. The caller has to check whether the
        subject matches the stream's patterns; only reserved subjects are OUTSIDE here.

        values[i] are the raw bytes of self.fields[i], None if absent or null: headers and keys as
        they are, VALUE fields as the JSON text in the document, TIMESTAMP as decimal ms since 1970.
        """
        subject = self._take(values, topic) if self.whole else self._fill(values, topic, partition)
        if self._guarded and isinstance(subject, str) and is_reserved(subject):
            return Unaddressed.OUTSIDE
        return subject

    def _take(self, values: Sequence[Value], topic: str) -> str | Unaddressed:
        if not self.fields:
            return topic if is_subject(topic) else Unaddressed.ILLEGAL
        raw = values[0]
        if not raw:
            return Unaddressed.MISSING
        try:
            subject = raw.decode()
        except UnicodeDecodeError:
            return Unaddressed.ILLEGAL
        return subject if is_subject(subject) else Unaddressed.ILLEGAL

    def _fill(self, values: Sequence[Value], topic: str, partition: int) -> str | Unaddressed:
        if self._readers:
            read = self._read(values)
            if read is None:
                return Unaddressed.ILLEGAL
            values = read
        present = [value for value in values if value]
        if len(present) != len(self.fields):
            return Unaddressed.MISSING
        if b"".join(present).translate(None, PLAIN):
            present = [escape_token(value).encode() for value in present]
        slots = self._slots
        filled = tuple(present) if slots is None else tuple([present[at] for at in slots])
        layout = self._formats.get((topic, partition)) or self._lay_out(topic, partition)
        return (layout % filled).decode()

    def _read(self, values: Sequence[Value]) -> list[Value] | None:
        read = list(values)
        for at, reader in self._readers:
            raw = read[at]
            if raw is not None:
                value = reader(raw)
                if value is _ILLEGAL:
                    return None
                read[at] = value
        return read

    def _lay_out(self, topic: str, partition: int) -> bytes:
        """Return the template as a bytes format, with topic and partition filled in and a %b for
        each other field, and cache it in `_formats`.
        """
        constants = {FieldKind.TOPIC: topic.encode(), FieldKind.PARTITION: str(partition).encode()}
        pieces = []
        for part in self.template:
            if isinstance(part, str):
                pieces.append(part.replace("%", "%%"))
            elif part.kind in constants:
                pieces.append(escape_token(constants[part.kind]).replace("%", "%%"))
            else:
                pieces.append("%b")
        layout = "".join(pieces).encode()
        self._formats[topic, partition] = layout
        return layout


def _cover(template: Template, whole: bool) -> Pattern:
    if whole:
        return Pattern(REST)
    tokens = [""]
    for part in template:
        if isinstance(part, str):
            first, *more = part.split(".")
            tokens[-1] += first if tokens[-1] != ONE else ""
            tokens += more
        else:
            tokens[-1] = ONE
    return Pattern(".".join(tokens))
