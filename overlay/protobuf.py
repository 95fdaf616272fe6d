"""Message types of Protobuf from a compiled schema, and the fields that a path of names leads to.

A compiled schema is a FileDescriptorSet, as `protoc --include_imports --descriptor_set_out` writes it.
It is itself a Protobuf message; only what reading values needs is read from it.

Sources: descriptor.proto, and the pages "Encoding" and "Field Presence" of Protobuf's documentation.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from .errors import SchemaError

DEEPEST = 100
"""Most messages within each other, and most steps of a path."""
TIMESTAMP = "google.protobuf.Timestamp"
"""The message that is read as a time if a path ends at it."""


class Kind(enum.IntEnum):
    """Types of fields, by their numbers in FieldDescriptorProto."""

    DOUBLE = 1
    FLOAT = 2
    INT64 = 3
    UINT64 = 4
    INT32 = 5
    FIXED64 = 6
    FIXED32 = 7
    BOOL = 8
    STRING = 9
    GROUP = 10
    MESSAGE = 11
    BYTES = 12
    UINT32 = 13
    ENUM = 14
    SFIXED32 = 15
    SFIXED64 = 16
    SINT32 = 17
    SINT64 = 18


_REPEATED = 3
"""The label of repeated fields."""


@dataclass(frozen=True, slots=True)
class _Features:
    """How fields are written, as a file of an edition says it for all of them or for some.

    `is_implicit`: fields without presence. `is_delimited`: messages between two tags, as groups are.
    """

    is_implicit: bool
    is_delimited: bool = False

    def amend(self, options: bytes, number: int) -> _Features:
        """Return the features that hold where these options stand: what their FeatureSet says, and for the rest what
        holds around them, which is this object. `options`: the serialised options of a file, a message or a field.
        `number`: that of the field `features` in such options.
        """
        given = _group(b"".join(_parts(_group(options), number)))
        presence, encoding = _number(given, 1), _number(given, 5)
        return _Features(
            presence == _IMPLICIT if presence else self.is_implicit,
            encoding == _DELIMITED if encoding else self.is_delimited,
        )


_IMPLICIT, _DELIMITED = 2, 2
"""Numbers of FeatureSet.FieldPresence and FeatureSet.MessageEncoding."""


@dataclass(slots=True, eq=False)
class Field:
    """A field of a message. `oneof`: the number of its oneof in the message, -1 for none.

    `has_presence`: whether a message can lack the field. If it cannot, a message without it has the
    default value. `message`, `symbols`: of a field whose type is a message or an enum; symbols by
    number. A map has no `message`.
    """

    name: str
    number: int
    kind: Kind
    is_repeated: bool
    has_presence: bool
    oneof: int = -1
    message: Message | None = field(default=None, repr=False)
    symbols: Mapping[int, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Return what messages call its type, such as `a message shop.Customer` or `an int64`."""
        word = self.kind.name.lower()
        named = f"a repeated {word}" if self.is_repeated else f"{'an' if word[0] in 'aeiou' else 'a'} {word}"
        return f"{named} {self.message.name}" if self.message else named


@dataclass(slots=True, eq=False)
class Message:
    """A type of messages, by its full name. `fields`: by their names."""

    name: str
    fields: dict[str, Field] = field(default_factory=dict, repr=False)
    nested: tuple[Message, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Descriptors:
    """A compiled schema. `messages`: all types of messages by their full names. `top`: those at the
    top level of its last file, which is the one that was compiled; the others are its imports.
    """

    messages: Mapping[str, Message]
    top: tuple[Message, ...]

    def find_message(self, name: str) -> Message:
        """Return the message of this full name; for an empty name, the only one at the top level of the file.

        Raises SchemaError if there is no such message, or if the name is empty and the file does not have just one.
        """
        if name in self.messages:
            return self.messages[name]
        if not name and len(self.top) == 1:
            return self.top[0]
        known = [message.name for message in self.top]
        if not name:
            raise SchemaError(f"which message are the values? Name one under `message`: {', '.join(known) or 'none'}")
        near = get_close_matches(name, self.messages, n=1, cutoff=0.6)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise SchemaError(f"there is no message {name!r}.{hint} The file has {', '.join(known) or 'none'}")

    def list_places(self) -> list[tuple[tuple[int, ...], Message]]:
        """Return the messages of the file with the indexes by which serialisers name them: the place
        at the top level, then the places of the messages within. Outer messages come first.
        """
        found: list[tuple[tuple[int, ...], Message]] = [((i,), message) for i, message in enumerate(self.top)]
        for place, message in found:
            found += (((*place, i), inner) for i, inner in enumerate(message.nested))
        return found


def find_field(root: Message, path: Sequence[str]) -> Field:
    """Return the field at the end of a path of field names, which leads through messages.

    Raises SchemaError with the reason if there is none, if it cannot be read, or if the path has
    more than DEEPEST steps.
    """
    if len(path) > DEEPEST:
        raise SchemaError(f"the path has {len(path)} steps, and {DEEPEST} are the most")
    message: Message | None = root
    found: Field | None = None
    for at, step in enumerate(path):
        before = ".".join(path[:at])
        if found is not None and (message is None or found.is_repeated or found.kind is Kind.GROUP):
            raise SchemaError(f"{before} is {found.title}, which has no fields to name")
        assert message is not None
        if step not in message.fields:
            near = get_close_matches(step, message.fields, n=1, cutoff=0.6)
            hint = f" Did you mean {near[0]}?" if near else ""
            known = ", ".join(message.fields) or "none"
            raise SchemaError(f"{before or f'message {root.name}'} has no field {step!r}.{hint} Its fields are {known}")
        found = message.fields[step]
        message = found.message
    assert found is not None
    if not find_readings(found):
        is_way = found.message is not None and found.kind is Kind.MESSAGE and not found.is_repeated
        names = list(found.message.fields) if found.message is not None and is_way else []
        hint = f"Name one of its fields: {'.'.join((*path, names[0]))}" if names else "It cannot be read"
        raise SchemaError(f"{'.'.join(path)} is {found.title}. {hint}")
    return found


def find_readings(field: Field) -> tuple[str, ...]:
    """Return the property types, as stream files name them, that a field can be read as; empty if it cannot be
    read, as a repeated field or a message other than a timestamp.
    """
    if field.is_repeated:
        return ()
    match field.kind:
        case Kind.BOOL:
            return ("boolean",)
        case Kind.STRING | Kind.ENUM:
            return ("string", "binary", "timestamp")
        case Kind.BYTES:
            return ("binary", "string")
        case Kind.MESSAGE | Kind.GROUP:
            return ("timestamp", "long", "double") if is_time(field) else ()
        case Kind.DOUBLE | Kind.FLOAT:
            return ("double", "long", "timestamp")
        case _:
            return ("long", "double", "timestamp")


def is_time(field: Field) -> bool:
    """Return whether a field is a message of type google.protobuf.Timestamp, which is read as one time."""
    return field.kind is Kind.MESSAGE and field.message is not None and field.message.name == TIMESTAMP


def parse_descriptors(data: bytes) -> Descriptors:
    """Return what a FileDescriptorSet describes. Raises SchemaError if it is none, if a type is
    missing in it or unknown, or if messages are nested too deeply.
    """
    files = [value for number, value in _read_fields(data) if number == 1 and isinstance(value, bytes)]
    if not files:
        raise SchemaError("is no compiled schema: protoc --include_imports --descriptor_set_out=FILE writes one")
    parser = _Parser()
    top: tuple[Message, ...] = ()
    for each in files:
        top = parser.parse_file(each)
    parser.link()
    return Descriptors(parser.messages, top)


class _Parser:
    """A parser of the files of one set, with the types that it has seen so far."""

    def __init__(self) -> None:
        self.messages: dict[str, Message] = {}
        self._enums: dict[str, dict[int, str]] = {}
        self._types: list[tuple[Message, Field, str]] = []
        """The names of the types of fields, which may be described further on."""
        self._maps: set[str] = set()
        """Full names of the messages that are the entries of maps."""

    def parse_file(self, data: bytes) -> tuple[Message, ...]:
        """Take up the types of a FileDescriptorProto. Return its messages at the top level."""
        fields = _group(data)
        package = _text(fields, 2)
        features = _Features(_text(fields, 12) == "proto3").amend(_options(fields, 8), 50)
        for each in _parts(fields, 5):
            self._parse_enum(each, package)
        return tuple(self._parse_message(each, package, features, 0) for each in _parts(fields, 4))

    def _parse_enum(self, data: bytes, scope: str) -> None:
        fields = _group(data)
        values = [_group(each) for each in _parts(fields, 2)]
        # of two symbols of one number the first is its name
        symbols = {_number(value, 2): _text(value, 1) for value in reversed(values)}
        self._enums[_join(scope, _text(fields, 1))] = symbols

    def _parse_message(self, data: bytes, scope: str, features: _Features, depth: int) -> Message:
        if depth > DEEPEST:
            raise SchemaError(f"messages are nested too deeply: {DEEPEST} levels are the most")
        fields = _group(data)
        made = Message(_join(scope, _text(fields, 1)))
        self.messages[made.name] = made
        options = _options(fields, 7)
        if _number(_group(options), 7):
            self._maps.add(made.name)
        features = features.amend(options, 12)
        for each in _parts(fields, 4):
            self._parse_enum(each, made.name)
        made.nested = tuple(self._parse_message(each, made.name, features, depth + 1) for each in _parts(fields, 3))
        for each in _parts(fields, 2):
            self._parse_field(_group(each), made, features)
        return made

    def _parse_field(self, fields: _Grouped, message: Message, features: _Features) -> None:
        features = features.amend(_options(fields, 8), 21)
        oneof = _number(fields, 9) if 9 in fields else -1
        try:
            kind = Kind(_number(fields, 5))
        except ValueError as error:
            raise SchemaError(f"field {_text(fields, 1)!r} of {message.name}: {error}") from None
        holds = kind in (Kind.MESSAGE, Kind.GROUP)
        if kind is Kind.MESSAGE and features.is_delimited:
            kind = Kind.GROUP
        made = Field(
            _text(fields, 1),
            _number(fields, 3),
            kind,
            _number(fields, 4) == _REPEATED,
            not features.is_implicit or holds or oneof >= 0,
            oneof,
        )
        message.fields[made.name] = made
        if holds or kind is Kind.ENUM:
            self._types.append((message, made, _text(fields, 6).removeprefix(".")))

    def link(self) -> None:
        """Put the types of messages and enums into the fields that name them."""
        for message, made, name in self._types:
            known: Mapping[str, object] = self._enums if made.kind is Kind.ENUM else self.messages
            if name not in known:
                raise SchemaError(
                    f"field {made.name!r} of {message.name} has the type {name}, which is missing: add --include_imports"
                )
            if made.kind is Kind.ENUM:
                made.symbols = self._enums[name]
            elif name not in self._maps:
                made.message = self.messages[name]


def _join(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


_Grouped = dict[int, list[int | bytes]]
"""The values of a message's fields, by number."""


def _group(data: bytes) -> _Grouped:
    found: _Grouped = {}
    for number, value in _read_fields(data):
        found.setdefault(number, []).append(value)
    return found


def _parts(fields: _Grouped, number: int) -> list[bytes]:
    return [value for value in fields.get(number, ()) if isinstance(value, bytes)]


def _options(fields: _Grouped, number: int) -> bytes:
    """Return the options of a file, a message or a field; of options that stand twice, all together."""
    return b"".join(_parts(fields, number))


def _text(fields: _Grouped, number: int) -> str:
    parts = _parts(fields, number)
    return parts[-1].decode(errors="replace") if parts else ""


def _number(fields: _Grouped, number: int) -> int:
    """Return the last int32 or bool of a field, 0 if there is none."""
    found = [value for value in fields.get(number, ()) if isinstance(value, int)]
    low = found[-1] & 0xFFFFFFFF if found else 0
    return low - (1 << 32) if low >> 31 else low


def _read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and the value of each field: an int of a varint, else the bytes. Raises
    SchemaError.
    """
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        wire = tag & 7
        if wire == 0:
            value, at = _read_varint(data, at)
            yield tag >> 3, value
            continue
        if wire == 2:
            size, at = _read_varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(wire, -1)
        if size < 0 or at + size > len(data):
            raise SchemaError("is no compiled schema: it is cut off, or has what no such file has")
        yield tag >> 3, data[at : at + size]
        at += size


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        number |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return number, at
    raise SchemaError("is no compiled schema: it is cut off, or has what no such file has")
