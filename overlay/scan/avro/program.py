"""Programs that find fields in Avro values: schemas and wanted paths as rows of integers.

Avro's bytes say nothing of their meaning, so a reader has to follow the schema from the first field
on. A program has the steps of one search, for one set of wanted paths: it passes over what no path
wants, and reads what one does. It ends at the last wanted field, and nothing behind that is read.

Each row is one instruction; the columns and the instructions are described below, and search.py
carries them out. Consecutive fields that are passed over share a row where they can. A record that is
passed over is a routine, which all its users call: so a record that contains itself makes no program
without end. On the way to a wanted field records and unions are written out, as often as paths lead
through them.

A path that a schema does not have is missing in all values of that schema. So is a path that leads
through null. A path that ends at a record, an array or a map is answered with OTHER, a text that no
property type can be read from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from overlay.arrays import Bytes, Ints
from overlay.avro import Kind, Type
from overlay.errors import SchemaError
from overlay.scan.json.paths import Paths
from overlay.scan.path_tree import PathNode, make_tree
from overlay.scan.scalars.writing import MOST as MOST_NUMBER

# columns of a row
OP: Final = 0
A: Final = 1  # a count, or a row to continue at, or the slot that is answered
B: Final = 2
C: Final = 3
_COLUMNS: Final = 4

# passing over: A is how many bytes, how many numbers, how many sized texts
SKIP: Final = 0
NUMBERS: Final = 1
SIZED: Final = 2
LAST_PASSING: Final = SIZED
# answering slot A
TEXT: Final = 3
FIXED: Final = 4  # B bytes
LONG: Final = 5
TIME: Final = 6  # a number of B ms each, or of which C make one ms
ENUM: Final = 7  # C symbols, the first is number B
DOUBLE: Final = 8
FLOAT: Final = 9
BOOLEAN: Final = 10
DECIMAL: Final = 11  # B digits after the point; C bytes, or a sized text if C is -1
ABSENT: Final = 12
OTHER: Final = 13  # B is the bracket that opens the text
LAST_ANSWER: Final = OTHER
# the way through the program
CHOOSE: Final = 14  # among A branches; the next A rows have in A where each begins
JUMP: Final = 15  # to A
END: Final = 16
REPEAT: Final = 17  # blocks of items: the next rows are one item; A is the row after all, B is 1 if items have no bytes
AGAIN: Final = 18  # the end of an item; A is the row of its REPEAT
CALL: Final = 19  # the routine at A
RETURN: Final = 20

MOST_ROWS = 100_000
"""Most rows for one schema."""
_INLINE = 8
"""Most fields of a record that is passed over in place."""

_FIXED_SIZES = {Kind.BOOLEAN: 1, Kind.FLOAT: 4, Kind.DOUBLE: 8}
_NUMBERS = (Kind.INT, Kind.LONG, Kind.ENUM)
_TIMES = {
    "date": (Kind.INT, 86_400_000, 1),
    **{f"{local}timestamp-millis": (Kind.LONG, 1, 1) for local in ("", "local-")},
    **{f"{local}timestamp-micros": (Kind.LONG, 1, 1_000) for local in ("", "local-")},
    **{f"{local}timestamp-nanos": (Kind.LONG, 1, 1_000_000) for local in ("", "local-")},
}
"""By logical type: the kind that has it, ms for each, and how many make one ms."""
_SWELLS = {BOOLEAN: 5, LONG: 3, TIME: 11, DOUBLE: 4, FLOAT: 7, TEXT: 2, FIXED: 2, DECIMAL: 12}
"""Most bytes of text that one byte of a value becomes, by what is answered; two more bytes for each
answer come on top.
"""


@dataclass(frozen=True, slots=True)
class Program:
    """The searches in values of one or more schemas.

    Schema i has the id ids[i], ascending, and its search begins at row entries[i]. `is_framed`: each
    value names its schema's id in front; otherwise there is one schema. `slots`: the rows of the
    plan's arrays that are answered. Symbol i of the enums is symbols[bounds[i]:bounds[i+1]].
    `swell`: most bytes of text for each byte of a value. `longest`: most bytes of a number's or a
    symbol's text.
    """

    rows: Ints
    ids: Ints
    entries: Ints
    is_framed: bool
    slots: Ints
    symbols: Bytes
    bounds: Ints
    swell: int
    longest: int

    def find_room(self, sizes: Ints) -> Ints:
        """Return how many bytes the texts of all answers have at most together, for a value of each
        of these sizes (bytes; below 0: no value).
        """
        sizes, count = sizes.clip(0), self.slots.size
        # no two paths read the same bytes as a string, of which an escape makes twice as many
        return np.minimum(sizes * self.swell, sizes * 2 + count * self.longest) + 2 * count


def compile_program(schemas: Mapping[int, Type], paths: Paths, *, is_framed: bool) -> Program:
    """Return the program that finds the paths in values of these schemas, by id.

    Raises SchemaError if a schema needs too many rows.
    """
    compiler = _Compiler()
    root = make_tree(paths)
    ids = sorted(schemas)
    entries = []
    for id in ids:
        entries.append(compiler.begin_schema())
        compiler.write(schemas[id], root, is_needed=False)
        compiler.put(END)
    compiler.write_routines()
    bounds = np.cumsum([0, *(len(symbol) for symbol in compiler.symbols)])
    return Program(
        np.array(compiler.rows, np.int64).reshape(-1, _COLUMNS),
        np.array(ids, np.int64),
        np.array(entries, np.int64),
        is_framed,
        np.ascontiguousarray(paths.slots),
        np.frombuffer(b"".join(compiler.symbols), np.uint8),
        bounds.astype(np.int64),
        compiler.swell,
        max(MOST_NUMBER, *map(len, compiler.symbols), 0),
    )


class _Compiler:
    """Writes the rows of a program."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []
        self.symbols: list[bytes] = []
        self.swell = 2
        self._first = 0
        """The first row of the schema that is being written."""
        self._label = 0
        """A row to which others jump. No row in front of it takes up what comes after it."""
        self._routines: dict[Type, int] = {}
        """The number of each routine; CALL rows have it until their routine is written."""
        self._empty: dict[Type, bool] = {}
        """Whether the values of a record have no bytes."""

    def begin_schema(self) -> int:
        """Begin a schema or a routine, with a row limit of its own. Return the number of its first
        row.
        """
        self._first = len(self.rows)
        return self.begin()

    def begin(self) -> int:
        """Return the number of the next row, as a place to jump to. Rows before it are not extended
        by later ones any more.
        """
        self._label = len(self.rows)
        return self._label

    def put(self, op: int, a: int = 0, b: int = 0, c: int = 0) -> int:
        """Append a row and return its number. Raises SchemaError if the schema has MOST_ROWS rows."""
        if len(self.rows) - self._first >= MOST_ROWS:
            raise SchemaError("the schema is too large to follow to the fields that are asked for")
        self.rows.append([op, a, b, c])
        self.swell = max(self.swell, _SWELLS.get(op, 0))
        return len(self.rows) - 1

    def write(self, type: Type, wish: PathNode | None, *, is_needed: bool) -> None:
        """Write the rows that answer what is wanted of a value and move over it. `wish`: the wanted
        paths from the value on, None if none leads to it. `is_needed`: whether something behind the
        value is read; if not, the rows need not reach its end.
        """
        if wish is None:
            if is_needed:
                self._pass(type)
        elif type.kind is Kind.RECORD:
            self._write_record(type, wish, is_needed=is_needed)
        elif type.kind is Kind.UNION:
            self._write_union(type, wish, is_needed=is_needed)
        else:
            self._put_absent(*wish.steps.values())
            if type.kind in (Kind.ARRAY, Kind.MAP):
                self._put_other(wish, b"[" if type.kind is Kind.ARRAY else b"{")
                self.write(type, None, is_needed=is_needed)
            elif wish.slot < 0:
                self.write(type, None, is_needed=is_needed)
            else:
                self._put_answer(type, wish.slot)

    def _put_absent(self, *wishes: PathNode) -> None:
        for wish in wishes:
            for slot in wish.list_slots():
                self.put(ABSENT, slot)

    def _put_other(self, wish: PathNode, bracket: bytes) -> None:
        if wish.slot >= 0:
            self.put(OTHER, wish.slot, bracket[0])

    def _write_record(self, type: Type, wish: PathNode, *, is_needed: bool) -> None:
        self._put_other(wish, b"{")
        names = [name for name, _ in type.fields]
        self._put_absent(*(step for name, step in wish.steps.items() if name not in names))
        last = max((i for i, name in enumerate(names) if name in wish.steps), default=-1)
        for i, (name, part) in enumerate(type.fields):
            self.write(part, wish.steps.get(name), is_needed=is_needed or i < last)

    def _write_union(self, type: Type, wish: PathNode | None, *, is_needed: bool) -> None:
        count = len(type.parts)
        choice = self.put(CHOOSE, count)
        for _ in range(count):
            self.put(JUMP)
        leaving = []
        for i, part in enumerate(type.parts):
            self.rows[choice + 1 + i][A] = self.begin()
            self.write(part, wish, is_needed=is_needed)
            if not is_needed:
                self.put(END)
            elif i < count - 1:
                leaving.append(self.put(JUMP))
        after = self.begin()
        for row in leaving:
            self.rows[row][A] = after

    def _put_answer(self, type: Type, slot: int) -> None:
        kind, logical = type.kind, type.logical
        if kind is Kind.NULL:
            self.put(ABSENT, slot)
        elif logical == "decimal":
            self.put(DECIMAL, slot, type.scale, type.size if kind is Kind.FIXED else -1)
        elif kind in (Kind.STRING, Kind.BYTES):
            self.put(TEXT, slot)
        elif kind is Kind.FIXED:
            self.put(FIXED, slot, type.size)
        elif kind is Kind.ENUM:
            self.put(ENUM, slot, len(self.symbols), len(type.symbols))
            self.symbols += (spell(symbol) for symbol in type.symbols)
            self.swell = max(self.swell, *map(len, self.symbols), 0)
        elif logical in _TIMES and _TIMES[logical][0] is kind:
            self.put(TIME, slot, *_TIMES[logical][1:])
        elif kind in (Kind.INT, Kind.LONG):
            self.put(LONG, slot)
        else:
            self.put({Kind.DOUBLE: DOUBLE, Kind.FLOAT: FLOAT, Kind.BOOLEAN: BOOLEAN}[kind], slot)

    def _pass(self, type: Type) -> None:
        """Write the rows that pass over a value."""
        kind = type.kind
        if self._is_empty(type):
            return
        if kind in _FIXED_SIZES or kind is Kind.FIXED:
            self._put_passing(SKIP, _FIXED_SIZES.get(kind, type.size))
        elif kind in _NUMBERS:
            self._put_passing(NUMBERS, 1)
        elif kind in (Kind.STRING, Kind.BYTES):
            self._put_passing(SIZED, 1)
        elif kind is Kind.UNION:
            self._write_union(type, None, is_needed=True)
        elif kind in (Kind.ARRAY, Kind.MAP):
            self._pass_blocks(type)
        elif len(type.fields) <= _INLINE and not any(part.kind in _LONG_WAYS for _, part in type.fields):
            self._pass_fields(type)
        else:
            self.put(CALL, self._routines.setdefault(type, len(self._routines)))

    def _put_passing(self, op: int, count: int) -> None:
        last = len(self.rows) - 1
        if last >= self._label and self.rows[last][OP] == op:
            self.rows[last][A] += count
        else:
            self.put(op, count)

    def _pass_fields(self, type: Type) -> None:
        for _, part in type.fields:
            self._pass(part)

    def _pass_blocks(self, type: Type) -> None:
        (part,) = type.parts
        repeat = self.put(REPEAT)
        self.begin()
        if type.kind is Kind.MAP:
            self._put_passing(SIZED, 1)
        elif self._is_empty(part):
            self.rows[repeat][B] = 1
        self._pass(part)
        self.put(AGAIN, repeat)
        self.rows[repeat][A] = self.begin()

    def _is_empty(self, type: Type) -> bool:
        """Return whether all values of a type have no bytes. If False, each value has at least one
        byte.
        """
        # without recursion: records that name each other may form a chain of any length
        left = [type] if type.kind is Kind.RECORD and type not in self._empty else []
        while left:
            record = left[-1]
            # meanwhile, for a record that contains itself at once: it has no values at all
            self._empty.setdefault(record, False)
            parts = dict.fromkeys(part for _, part in record.fields if part.kind is Kind.RECORD)
            unknown = [part for part in parts if part not in self._empty]
            left += unknown
            if not unknown:
                self._empty[left.pop()] = all(self._has_no_bytes(part) for _, part in record.fields)
        return self._has_no_bytes(type)

    def _has_no_bytes(self, type: Type) -> bool:
        """Return whether values of a type have no bytes. Of a record, `_empty` must know it already."""
        if type.kind is Kind.RECORD:
            return self._empty[type]
        return type.kind is Kind.NULL or (type.kind is Kind.FIXED and type.size == 0)

    def write_routines(self) -> None:
        """Write the routines that are called, and those that these call, and put their places into
        the CALL rows.
        """
        places: list[int] = []
        while len(places) < len(self._routines):
            type = list(self._routines)[len(places)]
            places.append(self.begin_schema())
            self._pass_fields(type)
            self.put(RETURN)
        for row in self.rows:
            if row[OP] == CALL:
                row[A] = places[row[A]]


_LONG_WAYS = (Kind.RECORD, Kind.UNION, Kind.ARRAY, Kind.MAP)


def spell(text: str) -> bytes:
    """Return a text as a JSON string of which only quotes and backslashes are escaped."""
    return b'"' + text.encode("utf-8", "surrogatepass").replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
