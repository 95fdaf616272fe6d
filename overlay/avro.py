"""Avro schemas as trees of types, and the types that a path of field names leads to.

A schema comes as the data of its JSON text. `parse_schema` checks it and resolves the names in it.
A record that contains itself is a type that can be reached from itself.

Source: the specification of Apache Avro, "Schema Declaration" and "Names".
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from .errors import SchemaError

DEEPEST = 100
"""Most levels of types within each other, and most steps of a path."""
MOST_WAYS = 1_000
"""Most ways through unions that a path may have."""
MOST_SCALE = 9_999
"""Most digits after the point of a decimal; one with more is read as bytes."""
_LARGEST = 1 << 30
"""Most bytes of a value of type fixed."""


class Kind(enum.Enum):
    """Kinds of types, by the words that schemas use for them."""

    NULL = "null"
    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    BYTES = "bytes"
    STRING = "string"
    RECORD = "record"
    ENUM = "enum"
    FIXED = "fixed"
    ARRAY = "array"
    MAP = "map"
    UNION = "union"


_PLAIN = {kind.value: kind for kind in list(Kind)[: list(Kind).index(Kind.RECORD)]}
"""Types that a schema names by one word."""
INNER = frozenset({Kind.RECORD, Kind.ARRAY, Kind.MAP})
"""Kinds of types that have no value of their own, and hold others."""


@dataclass(slots=True, eq=False)
class Type:
    """One type of a schema. Two types are equal only if they are the same object.

    `logical`: the name of the logical type, "" if there is none. `scale`: of a decimal. `size`: of
    a fixed, in bytes. `parts`: the branches of a union, or the type of the items of an array or of
    the values of a map.
    """

    kind: Kind
    name: str = ""
    logical: str = ""
    scale: int = 0
    size: int = 0
    symbols: tuple[str, ...] = ()
    fields: tuple[tuple[str, Type], ...] = field(default=(), repr=False)
    parts: tuple[Type, ...] = field(default=(), repr=False)

    @property
    def title(self) -> str:
        """Return what messages call it, such as `a record shop.Order` or `an int`."""
        word = self.kind.value
        named = f"{'an' if word[0] in 'aeiou' else 'a'} {word}" + (f" {self.name}" if self.name else "")
        return f"{named} ({self.logical})" if self.logical else named


def parse_schema(schema: object) -> Type:
    """Return the type that a schema describes. Lists may be tuples.

    Raises SchemaError that says where in the schema the fault is.
    """
    return _Parser().parse(schema, "", "the schema", 0)


def find_types(root: Type, path: Sequence[str]) -> tuple[Type, ...]:
    """Return the types of the values that a path of field names leads to, each once and without
    null: several if it leads to different branches of unions. A path leads through records, and
    through the records of unions.

    Raises SchemaError with the reason if there is no such value, if the path ends at nothing but
    records, arrays and maps, or if it has more than DEEPEST steps or MOST_WAYS ways through unions.
    """
    if len(path) > DEEPEST:
        raise SchemaError(f"the path has {len(path)} steps, and {DEEPEST} are the most")
    reached = _spread({root: 1})
    for at, step in enumerate(path):
        found: Counter[Type] = Counter()
        for record, ways in reached.items():
            for name, type in record.fields:
                if name == step:
                    found[type] += ways
        if not found:
            raise SchemaError(_explain(tuple(reached), path[:at], step))
        reached = _spread(found)
        if reached.total() > MOST_WAYS:
            raise SchemaError(f"{'.'.join(path)} has more than {MOST_WAYS} ways through unions")
    if not reached:
        raise SchemaError(f"{'.'.join(path)} is always null")
    if all(type.kind in INNER for type in reached):
        names = [name for type in reached for name, _ in type.fields]
        hint = f"Name one of its fields: {'.'.join((*path, names[0]))}" if names else "It cannot be read"
        raise SchemaError(f"{'.'.join(path)} is {_list_titles(reached)}. {hint}")
    return tuple(reached)


def find_readings(type: Type) -> tuple[str, ...]:
    """Return the property types, as stream files name them, that values of an Avro type can be
    read as; empty for a type without a value of its own, such as a record, an array or a union.
    """
    match type.kind:
        case Kind.BOOLEAN:
            return ("boolean",)
        case Kind.STRING | Kind.ENUM:
            return ("string", "binary", "timestamp")
        case Kind.BYTES | Kind.FIXED:
            return ("double", "long") if type.logical == "decimal" else ("binary", "string")
        case Kind.INT | Kind.LONG:
            return ("long", "double", "timestamp")
        case Kind.FLOAT | Kind.DOUBLE:
            return ("double", "long", "timestamp")
        case _:
            return ()


def _spread(types: Mapping[Type, int]) -> Counter[Type]:
    """Return the types with each union replaced by its branches, and without null. The numbers, in
    `types` and in the result, are how many ways lead to each type.
    """
    flat: Counter[Type] = Counter()
    for type, ways in types.items():
        for part in type.parts if type.kind is Kind.UNION else (type,):
            if part.kind is not Kind.NULL:
                flat[part] += ways
    return flat


def _list_titles(types: Iterable[Type]) -> str:
    return " or ".join(dict.fromkeys(type.title for type in types)) or "null"


def _explain(reached: Sequence[Type], before: Sequence[str], step: str) -> str:
    """Return why no path leads on by `step` from these types, to which `before` leads."""
    where = ".".join(before) if before else "the value"
    known = list(dict.fromkeys(name for type in reached for name, _ in type.fields))
    if not known:
        return f"{where} is {_list_titles(reached)}, which has no fields to name"
    near = get_close_matches(step, known, n=1, cutoff=0.6)
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"{where} has no field {step!r}.{hint} Its fields are {', '.join(known)}"


class _Parser:
    """A parser of one schema, with the named types that it has seen so far."""

    def __init__(self) -> None:
        self._named: dict[str, Type] = {}

    def parse(self, schema: object, namespace: str, where: str, depth: int) -> Type:
        """Return the type of a part of the schema. `where`: what messages call the part."""
        if depth > DEEPEST:
            raise SchemaError(f"{where} is nested too deeply: {DEEPEST} levels are the most")
        if isinstance(schema, str):
            return self._refer(schema, namespace, where)
        if isinstance(schema, list | tuple):
            return self._parse_union(schema, namespace, where, depth)
        if not isinstance(schema, Mapping):
            raise SchemaError(f"{where} is no type: a type is a name, a list or an object")
        kind = schema.get("type")
        match kind:
            case list() | tuple() | Mapping():
                return self.parse(kind, namespace, where, depth + 1)
            case "record" | "error":
                return self._parse_record(schema, namespace, where, depth)
            case "enum" | "fixed":
                return self._parse_leaf(schema, namespace, where)
            case "array" | "map":
                key = "items" if kind == "array" else "values"
                part = self.parse(schema.get(key), namespace, f"the {key} of {where}", depth + 1)
                return Type(Kind(kind), parts=(part,))
            case str():
                made = self._refer(kind, namespace, where)
                return made if made.name else _mark_logical(made, schema)
            case _:
                raise SchemaError(f"{where} has no type: an object of a schema has a member `type`")

    def _refer(self, name: str, namespace: str, where: str) -> Type:
        if name in _PLAIN:
            return Type(_PLAIN[name])
        for full in (_qualify(name, namespace), name):
            if full in self._named:
                return self._named[full]
        known = [*_PLAIN, *self._named]
        near = get_close_matches(name, known, n=1, cutoff=0.6)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise SchemaError(f"{where} has the unknown type {name!r}.{hint}")

    def _parse_union(self, schema: Sequence[object], namespace: str, where: str, depth: int) -> Type:
        if not schema:
            raise SchemaError(f"{where} is a union of no types")
        parts = tuple(self.parse(part, namespace, where, depth + 1) for part in schema)
        if any(part.kind is Kind.UNION for part in parts):
            raise SchemaError(f"{where} is a union in a union")
        return Type(Kind.UNION, parts=parts)

    def _parse_record(self, schema: Mapping[str, object], namespace: str, where: str, depth: int) -> Type:
        name, inner = _read_name(schema, namespace, where)
        made = self._define(Type(Kind.RECORD, name), where)
        fields = schema.get("fields")
        if not isinstance(fields, list | tuple):
            raise SchemaError(f"record {name} has no list of fields")
        found: dict[str, Type] = {}
        for each in fields:
            own = each.get("name") if isinstance(each, Mapping) else None
            if not isinstance(own, str) or not own:
                raise SchemaError(f"record {name} has a field without a name")
            if own in found:
                raise SchemaError(f"record {name} has two fields {own!r}")
            found[own] = self.parse(each.get("type"), inner, f"field {own!r} of record {name}", depth + 1)
        made.fields = tuple(found.items())
        return made

    def _parse_leaf(self, schema: Mapping[str, object], namespace: str, where: str) -> Type:
        name, _ = _read_name(schema, namespace, where)
        if schema["type"] == "enum":
            symbols = schema.get("symbols")
            if not isinstance(symbols, list | tuple) or not all(isinstance(each, str) for each in symbols):
                raise SchemaError(f"enum {name} has no list of symbols")
            return self._define(Type(Kind.ENUM, name, symbols=tuple(symbols)), where)
        size = schema.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _LARGEST:
            raise SchemaError(f"fixed {name} has no size in bytes")
        return _mark_logical(self._define(Type(Kind.FIXED, name, size=size), where), schema)

    def _define(self, made: Type, where: str) -> Type:
        if made.name in self._named:
            raise SchemaError(f"{where} defines {made.name} a second time")
        self._named[made.name] = made
        return made


def _qualify(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _read_name(schema: Mapping[str, object], namespace: str, where: str) -> tuple[str, str]:
    """Return the full name of a named type, and the namespace of names within it."""
    name = schema.get("name")
    if not isinstance(name, str) or not name:
        raise SchemaError(f"{where} is of type {schema['type']} and has no name")
    own = schema.get("namespace")
    full = _qualify(name, own if isinstance(own, str) else namespace)
    return full, full.rpartition(".")[0]


def _mark_logical(type: Type, schema: Mapping[str, object]) -> Type:
    """Set the logical type that the schema gives to a type, and return the type. An invalid decimal
    is ignored, as the specification asks for; other logical types are not checked.
    """
    logical, scale = schema.get("logicalType"), schema.get("scale", 0)
    if not isinstance(logical, str):
        return type
    if logical == "decimal":
        precision = schema.get("precision")
        if not _is_decimal(type, precision, scale):
            return type
        assert isinstance(scale, int)
        type.scale = scale
    type.logical = logical
    return type


def _is_decimal(type: Type, precision: object, scale: object) -> bool:
    """Return whether a type can hold decimals of `precision` digits, of which `scale` (at most
    MOST_SCALE) are after the point. False if one of the two is no such number.
    """
    if not isinstance(precision, int) or not isinstance(scale, int):
        return False
    if isinstance(precision, bool) or isinstance(scale, bool) or precision < 1:
        return False
    if not 0 <= scale <= min(precision, MOST_SCALE):
        return False
    # a fixed of n bytes holds all numbers of up to log10(2^(8n - 1) - 1) digits; log10(2) is about 0.30103
    return type.kind is Kind.BYTES or (type.kind is Kind.FIXED and precision <= (8 * type.size - 1) * 30103 // 100_000)
