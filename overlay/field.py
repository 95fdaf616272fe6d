"""Fields of a Kafka record from which subjects and properties are made, and templates that name
them.

A template is literal text with fields in braces (docs/subjects.md#templates):
`flights.{header:origin}.{value:leg.dest}`. `{{` and `}}` are literal braces.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from .errors import SubjectError


class FieldKind(enum.Enum):
    """The part of a record that a field is read from. The values are the words that files use for
    them.
    """

    HEADER = "header"  # the last header of that name, like Kafka's Headers.lastHeader
    VALUE = "value"  # a field of the JSON value, by dotted path
    KEY = "key"
    TOPIC = "topic"
    PARTITION = "partition"
    TIMESTAMP = "timestamp"  # ms since 1970, the timestamp of the record


_NAMED = (FieldKind.HEADER, FieldKind.VALUE)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a record. `name` is the header's name, or the dotted path of a field of the value;
    empty for the other kinds.
    """

    kind: FieldKind
    name: str = ""

    @property
    def path(self) -> tuple[str, ...]:
        """Return the names in the dotted path of a VALUE field, from the root of the value: `a.b` is ("a", "b")."""
        return tuple(self.name.split("."))

    def __str__(self) -> str:
        return f"{{{self.kind.value}:{self.name}}}" if self.name else f"{{{self.kind.value}}}"


Template = tuple[str | Field, ...]

_PIECE = re.compile(r"(?P<open>\{\{)|(?P<close>\}\})|\{(?P<field>[^{}]*)\}|(?P<text>[^{}]+)")


def parse_template(text: str) -> Template:
    """Return the literal texts and the fields of a template, in order, without empty literals. Two
    literals never follow each other.

    Raises SubjectError that names the column, or the field that is wrong.
    """
    parts: list[str | Field] = []
    at = 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None:
            hint = "a brace without its pair (write {{ or }} for a literal one)"
            raise SubjectError(f"column {at + 1} of template {text!r}: {hint}")
        if piece["field"] is not None:
            parts.append(parse_field(piece["field"]))
        else:
            literal = "{" if piece["open"] else "}" if piece["close"] else piece["text"]
            if parts and isinstance(parts[-1], str):
                parts[-1] += literal
            else:
                parts.append(literal)
        at = piece.end()
    return tuple(parts)


def parse_field(text: str) -> Field:
    """Return the field that a text such as `header:origin` or `key` names, with or without braces.
    Raises SubjectError.
    """
    inner = text[1:-1] if text.startswith("{") and text.endswith("}") else text
    word, colon, name = inner.partition(":")
    try:
        kind = FieldKind(word.strip())
    except ValueError:
        known = ", ".join(f"{{{k.value}:NAME}}" if k in _NAMED else f"{{{k.value}}}" for k in FieldKind)
        raise SubjectError(f"unknown field {{{inner}}}: known are {known}") from None
    if (kind in _NAMED) != bool(name):
        wants = "needs a name" if kind in _NAMED else "takes no name"
        raise SubjectError(f"field {{{inner}}}: {kind.value} {wants}")
    if kind is FieldKind.VALUE and "" in name.split("."):
        raise SubjectError(f"field {{{inner}}}: empty step in the JSON path")
    if colon and not name:
        raise SubjectError(f"field {{{inner}}}: the name after ':' is empty")
    return Field(kind, name)
