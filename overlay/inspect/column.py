"""Columns of a sample: how often each field occurs, how many values it has, its best type."""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from overlay.config.stream import PropertyType
from overlay.field import Field, FieldKind

from .formats import parse_json
from .sample import SampledRecord

MAX_DEPTH = 6
MAX_COLUMNS = 1000
"""A limit against documents with ids as field names, where every id would become a column."""

FIT = 0.99
"""The share of values that decides on the type of numbers, booleans and times; the others are read as NULL."""

_CODE = re.compile(r"-?0[0-9]+", re.ASCII)
_LONG = re.compile(r"-?(?:0|[1-9][0-9]{0,18})", re.ASCII)
_DOUBLE = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[-+]\d\d:\d\d)", re.ASCII)
_LONG_MAX = 1 << 63

Cell = tuple[str, PropertyType] | None
"""A value as text, with the type it has by itself; None if it is absent, null or empty."""


@dataclass(frozen=True, slots=True)
class SampledField:
    """One field over all sampled records. `texts[i]` is its value in record i, None if absent, null or empty, and
    `types[i]` the type that this has by itself. `rows`: number of records that could have the field: for a field of
    JSON those with a JSON object, else all. `type`: the one that `choose_type` returns. `present`: number of records
    with a value. `counts`: number of records by value.
    """

    field: Field
    texts: tuple[str | None, ...]
    types: tuple[PropertyType | None, ...]
    rows: int
    type: PropertyType = dataclasses.field(init=False)
    present: int = dataclasses.field(init=False)
    counts: Counter[str] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        counts = Counter(text for text in self.texts if text is not None)
        cells = [cell for cell in zip(self.texts, self.types, strict=True) if cell[1] is not None]
        object.__setattr__(self, "type", choose_type(cells))
        object.__setattr__(self, "counts", counts)
        object.__setattr__(self, "present", counts.total())

    @property
    def distinct(self) -> int:
        return len(self.counts)

    @property
    def share(self) -> float:
        """The share of `rows` that have a value, 0 to 1."""
        return self.present / self.rows if self.rows else 0.0

    @property
    def misfits(self) -> tuple[int, ...]:
        """The numbers of the records whose value is not of `type`, rising."""
        pairs = enumerate(self.types)
        return tuple(row for row, own in pairs if own and join_types((own, self.type)) is not self.type)

    @property
    def fits_template(self) -> bool:
        """Whether a template can name the field.

        Names that contain braces cannot be written in braces.
        """
        return not set("{}") & set(self.field.name)


def find_columns(records: Sequence[SampledRecord]) -> tuple[SampledField, ...]:
    """Return the headers, scalar JSON fields and key of the records as columns, one for each name that occurs,
    MAX_COLUMNS at most.

    They come in that order, each kind in the order of first occurrence. If a record has several headers of one name,
    the last one counts.
    """
    cells: dict[Field, list[Cell]] = {}
    objects = 0
    for row, record in enumerate(records):
        document = parse_json(record.value or b"")
        objects += isinstance(document, dict)
        for name, cell in _read_record(record, document):
            column = cells.get(name)
            if column is None:
                if len(cells) >= MAX_COLUMNS:
                    continue
                column = cells[name] = []
            column.extend([None] * (row - len(column)))
            # of several headers with one name the last counts; it overwrites the others here
            column[row:] = [cell]
    kinds = (FieldKind.HEADER, FieldKind.VALUE, FieldKind.KEY)
    found = (_make_column(name, column, len(records), objects) for name, column in cells.items())
    return tuple(sorted(found, key=lambda column: kinds.index(column.field.kind)))


def find_arrays(records: Iterable[SampledRecord]) -> dict[str, SampledRecord]:
    """Return the paths of JSON fields that hold arrays, MAX_COLUMNS at most, in the order of first occurrence, each
    with the first record in which it holds one.
    """
    found: dict[str, SampledRecord] = {}
    for record in records:
        document = parse_json(record.value or b"")
        for path in _list_arrays(document, ()) if isinstance(document, dict) else ():
            if len(found) < MAX_COLUMNS:
                found.setdefault(path, record)
    return found


def count_unnamed(records: Iterable[SampledRecord]) -> int:
    """Return the number of records with JSON fields that no path can name.

    Such names are empty, contain a dot, or have half of a surrogate pair. Objects within more than MAX_DEPTH others
    are not looked at.
    """
    documents = (parse_json(record.value or b"") for record in records)
    return sum(1 for document in documents if isinstance(document, dict) and _has_unnamed(document, 0))


def guess_type(text: str) -> PropertyType:
    """Return the narrowest type that the text can be read as. A number with a leading zero, such as
    `007`, is a string, as its zeros mean something.
    """
    if text in ("true", "false"):
        return PropertyType.BOOLEAN
    if _LONG.fullmatch(text) and -_LONG_MAX <= int(text) < _LONG_MAX:
        return PropertyType.LONG
    if _DOUBLE.fullmatch(text):
        return PropertyType.DOUBLE
    return PropertyType.TIMESTAMP if _is_time(text) else PropertyType.STRING


def join_types(types: Iterable[PropertyType]) -> PropertyType:
    """Return the narrowest type that can represent values of all given types; STRING if none is given."""
    distinct = set(types)
    if len(distinct) == 1:
        return distinct.pop()
    if PropertyType.BINARY in distinct:
        return PropertyType.BINARY
    return PropertyType.DOUBLE if distinct == {PropertyType.LONG, PropertyType.DOUBLE} else PropertyType.STRING


def choose_type(cells: Sequence[tuple[str | None, PropertyType | None]]) -> PropertyType:
    """Return the narrowest type that can represent all values, or else the one of numbers, booleans or times that at
    least FIT of them have. `cells`: the values, each with the type that it has by itself.

    If one of the others is a number with a leading zero, such as `007`, the values are taken for codes: no number.
    """
    counts = Counter(own for _, own in cells if own is not None)
    whole = join_types(counts)
    if whole not in (PropertyType.STRING, PropertyType.BINARY):
        return whole
    numbers = (PropertyType.LONG, PropertyType.DOUBLE)
    for group in ((PropertyType.BOOLEAN,), (PropertyType.TIMESTAMP,), numbers):
        if counts and sum(counts[each] for each in group) >= FIT * counts.total():
            codes = group is numbers and any(_CODE.fullmatch(text or "") for text, _ in cells)
            return whole if codes else join_types(each for each in group if counts[each])
    return whole


def _make_column(name: Field, cells: list[Cell], rows: int, objects: int) -> SampledField:
    """Return a column of these cells. If there are fewer than `rows`, the last rows have none, and
    `cells` is extended in place. `objects`: how many of the rows have a JSON object.
    """
    cells.extend([None] * (rows - len(cells)))
    texts = tuple(cell[0] if cell else None for cell in cells)
    judged = objects if name.kind is FieldKind.VALUE else rows
    return SampledField(name, texts, tuple(cell[1] if cell else None for cell in cells), judged)


def _read_record(record: SampledRecord, document: object) -> Iterator[tuple[Field, Cell]]:
    """Yield the fields of a record with their values: headers, JSON fields, and the key.
    `document`: its value, if that is JSON.
    """
    for name, value in record.headers:
        if name:
            yield Field(FieldKind.HEADER, name), _read_bytes(value)
    if isinstance(document, dict):
        yield from _read_object(document, ())
    if record.key is not None:
        yield Field(FieldKind.KEY), _read_bytes(record.key)


def _read_object(document: dict[str, object], path: tuple[str, ...]) -> Iterator[tuple[Field, Cell]]:
    """Yield the scalar fields of a JSON object, those of nested objects with a path such as `a.b`. `path`: the names
    that lead to this object. Left out are arrays, names that no path can contain, and what has a path of more than
    MAX_DEPTH names.
    """
    for name, value in document.items():
        if not _is_nameable(name):
            continue
        here = (*path, name)
        if isinstance(value, dict):
            if len(here) < MAX_DEPTH:
                yield from _read_object(value, here)
        elif not isinstance(value, list):
            yield Field(FieldKind.VALUE, ".".join(here)), _read_scalar(value)


def _list_arrays(document: dict[str, object], path: tuple[str, ...]) -> Iterator[str]:
    """Yield the paths of arrays in a JSON object that a path of at most MAX_DEPTH names can lead to. Arrays within
    arrays are not looked for. `path`: the names that lead to this object.
    """
    for name, value in document.items():
        here = (*path, name)
        if isinstance(value, list) and _is_nameable(name):
            yield ".".join(here)
        elif isinstance(value, dict) and _is_nameable(name) and len(here) < MAX_DEPTH:
            yield from _list_arrays(value, here)


def _has_unnamed(document: dict[str, object], depth: int) -> bool:
    return any(
        not _is_nameable(name) or (isinstance(value, dict) and depth < MAX_DEPTH and _has_unnamed(value, depth + 1))
        for name, value in document.items()
    )


def _is_nameable(name: str) -> bool:
    """Return whether a path can name the field: its name is not empty, has no dot, which separates the steps of a
    path, and no half of a surrogate pair, which a file cannot contain.
    """
    return bool(name) and "." not in name and not any("\ud800" <= letter <= "\udfff" for letter in name)


def _read_bytes(value: bytes | None) -> Cell:
    """Return a header or key as text with its type; None if it is null or empty. Bytes that are no
    printable text are BINARY.
    """
    if not value:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return value.decode("utf-8", "backslashreplace"), PropertyType.BINARY
    if not all(letter.isprintable() or letter.isspace() for letter in text):
        return text, PropertyType.BINARY
    return text, guess_type(text)


def _read_scalar(value: object) -> Cell:
    """Return a JSON scalar as text with its type; None for null and the empty string. A JSON text is a TIMESTAMP or a
    STRING, also if it spells a number; a whole number beyond 64 bits is a DOUBLE.
    """
    match value:
        case bool():
            return ("true" if value else "false"), PropertyType.BOOLEAN
        case int() if -_LONG_MAX <= value < _LONG_MAX:
            return str(value), PropertyType.LONG
        case int() | float():
            return _show_double(value), PropertyType.DOUBLE
        case str() if value:
            return value, PropertyType.TIMESTAMP if _is_time(value) else PropertyType.STRING
    return None


def _show_double(value: float) -> str:
    try:
        return repr(float(value))
    except OverflowError:
        return "inf" if value > 0 else "-inf"


def _is_time(text: str) -> bool:
    if not _TIME.fullmatch(text):
        return False
    try:
        datetime.datetime.fromisoformat(text.replace(" ", "T").upper())
    except ValueError:
        return False
    return True
