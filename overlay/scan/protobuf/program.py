"""Tables by which fields are found in Protobuf values: message types and wanted paths as rows of
integers.

A node stands for a message on the way to a wanted field, its rows for those of its fields that
matter: those that are wanted, those that lead on, and the others of the same oneof, since each of
these takes the place of a wanted one. The nodes of one message and of those within it are in
preorder, and so are their rows: what is below a node is a range of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from overlay.arrays import Bytes, Ints
from overlay.errors import SchemaError
from overlay.protobuf import Field, Kind, Message, find_readings, is_time
from overlay.scan.json.paths import Paths
from overlay.scan.path_tree import PathNode, make_tree
from overlay.scan.scalars.writing import MOST as MOST_NUMBER

# columns of a node
FIRST: Final = 0  # its own rows are FIRST:LAST
LAST: Final = 1
ROWS: Final = 2  # its rows and those below it are FIRST:ROWS
AFTER: Final = 3  # the nodes below node n are n+1:AFTER
_NODE_COLUMNS: Final = 4

# columns of a row
NUMBER: Final = 0  # of the field
WIRE: Final = 1  # the wire type of its values
OP: Final = 2
SLOT: Final = 3  # the row of the plan's arrays that it answers, -1 for none
NODE: Final = 4  # the node of a message that leads on, -1 for none
GROUP: Final = 5  # its oneof, -1 for none
IMPLICIT: Final = 6  # whether a message without it has its default value
SYMBOLS: Final = 7  # of an enum: its symbols are SYMBOLS:SYMBOLS_END
SYMBOLS_END: Final = 8
_ROW_COLUMNS: Final = 9

# how a row's values are written
SIGNED: Final = 0  # a varint of 64 bits
SIGNED_32: Final = 1
UNSIGNED: Final = 2
UNSIGNED_32: Final = 3
ZIGZAG: Final = 4
ZIGZAG_32: Final = 5
TRUTH: Final = 6
SYMBOL: Final = 7
FIXED: Final = 8  # 8 bytes, or 4
FIXED_SIGNED: Final = 9
REAL: Final = 10
TEXT: Final = 11
TIME: Final = 12
OTHER: Final = 13  # what cannot be read

_OPS = {
    Kind.INT64: SIGNED, Kind.INT32: SIGNED_32, Kind.UINT64: UNSIGNED, Kind.UINT32: UNSIGNED_32,
    Kind.SINT64: ZIGZAG, Kind.SINT32: ZIGZAG_32, Kind.BOOL: TRUTH, Kind.ENUM: SYMBOL,
    Kind.FIXED64: FIXED, Kind.FIXED32: FIXED, Kind.SFIXED64: FIXED_SIGNED, Kind.SFIXED32: FIXED_SIGNED,
    Kind.DOUBLE: REAL, Kind.FLOAT: REAL, Kind.STRING: TEXT, Kind.BYTES: TEXT,
}  # fmt: skip
_WIRES = {
    **dict.fromkeys((Kind.FIXED64, Kind.SFIXED64, Kind.DOUBLE), 1),
    **dict.fromkeys((Kind.STRING, Kind.BYTES, Kind.MESSAGE), 2),
    Kind.GROUP: 3,
    **dict.fromkeys((Kind.FIXED32, Kind.SFIXED32, Kind.FLOAT), 5),
}
"""Wire types; those of all other kinds are 0."""

MOST_ROWS = 100_000
"""Most rows for one message type."""
_SWELL = 8
"""Most bytes of text for each byte of a field, and most bytes of a default value, but for symbols."""


@dataclass(frozen=True, slots=True)
class Program:
    """The searches in messages of one or more types.

    Type i belongs to the schema ids[i], ascending. Serialisers name it by the indexes
    places[bounds[i]:bounds[i+1]], and its node is roots[i]. `is_framed`: each value has id and indexes
    in front; otherwise there is one type. `slots`: the rows of the plan's arrays that are answered.
    Symbol i of the enums has the number numbers[i] and the text symbols[symbol_bounds[i]:...]; those
    of an enum are ascending. `longest`: most bytes of a number's or a symbol's text.
    """

    nodes: Ints
    rows: Ints
    ids: Ints
    roots: Ints
    places: Ints
    bounds: Ints
    is_framed: bool
    slots: Ints
    numbers: Ints
    symbols: Bytes
    symbol_bounds: Ints
    longest: int

    def find_room(self, sizes: Ints) -> Ints:
        """Return how many bytes the texts of all answers have at most together, for a value of each
        of these sizes (bytes; below 0: no value).
        """
        sizes, count = sizes.clip(0), self.slots.size
        swell = max(_SWELL, self.longest if self.symbols.size else 0)
        # no two paths read the same bytes as a string, of which an escape makes twice as many
        return np.minimum((sizes + count) * swell, sizes * 2 + count * (self.longest + 2))


def compile_program(
    types: Mapping[int, Sequence[tuple[tuple[int, ...], Message]]], paths: Paths, *, is_framed: bool
) -> Program:
    """Return the program that finds the paths in messages of these types. `types`: by the id of a
    schema its message types, each with the indexes by which serialisers name it.

    Raises SchemaError if a type needs too many rows.
    """
    compiler, wish = _Compiler(), make_tree(paths)
    ids: list[int] = []
    roots: list[int] = []
    places: list[tuple[int, ...]] = []
    for id in sorted(types):
        for place, message in types[id]:
            ids.append(id)
            places.append(place)
            roots.append(compiler.write_type(message, wish))
    return Program(
        np.array(compiler.nodes, np.int64).reshape(-1, _NODE_COLUMNS),
        np.array(compiler.rows, np.int64).reshape(-1, _ROW_COLUMNS),
        np.array(ids, np.int64),
        np.array(roots, np.int64),
        np.array([index for place in places for index in place], np.int64),
        np.cumsum([0, *map(len, places)]).astype(np.int64),
        is_framed,
        np.ascontiguousarray(paths.slots),
        np.array(compiler.numbers, np.int64),
        np.frombuffer(b"".join(compiler.symbols), np.uint8),
        np.cumsum([0, *map(len, compiler.symbols)]).astype(np.int64),
        max(MOST_NUMBER, *map(len, compiler.symbols), 0),
    )


class _Compiler:
    """Writes the nodes and rows of a program."""

    def __init__(self) -> None:
        self.nodes: list[list[int]] = []
        self.rows: list[list[int]] = []
        self.numbers: list[int] = []
        self.symbols: list[bytes] = []
        self._first = 0
        """The first row of the message type that is being written."""
        self._enums: dict[int, tuple[int, int]] = {}

    def write_type(self, message: Message, wish: PathNode) -> int:
        """Write the nodes and rows of a message type of the schemas, with a row limit of its own.
        Return the number of its node. Raises SchemaError beyond MOST_ROWS rows.
        """
        self._first = len(self.rows)
        return self.write(message, wish)

    def write(self, message: Message, wish: PathNode) -> int:
        """Write the node of a message and those below it, with their rows. Return the number of the
        message's node. `wish`: what is wanted of the message.
        """
        number, first = len(self.nodes), len(self.rows)
        node = [first, 0, 0, 0]
        self.nodes.append(node)
        wanted = {name: step for name, step in wish.steps.items() if name in message.fields}
        oneofs = {message.fields[name].oneof for name in wanted} - {-1}
        for name, each in message.fields.items():
            if name in wanted or each.oneof in oneofs:
                self._put(each, wanted.get(name, PathNode()))
        node[1] = len(self.rows)
        for row in range(first, node[1]):
            below, step = self._below(row, message, wanted)
            if below is not None:
                self.rows[row][NODE] = self.write(below, step)
        node[2], node[3] = len(self.rows), len(self.nodes)
        return number

    def _below(self, row: int, message: Message, wanted: Mapping[str, PathNode]) -> tuple[Message | None, PathNode]:
        """Return the message type of a row that leads on to a wanted field, and what is wanted of
        it; (None, an empty node) for another row.
        """
        number = self.rows[row][NUMBER]
        for name, step in wanted.items():
            each = message.fields[name]
            if each.number == number and step.steps and not each.is_repeated and each.kind is Kind.MESSAGE:
                return each.message, step
        return None, PathNode()

    def _put(self, each: Field, wish: PathNode) -> None:
        if len(self.rows) - self._first >= MOST_ROWS:
            raise SchemaError("the schema is too large to follow to the fields that are asked for")
        first, last = self._list_symbols(each) if each.kind is Kind.ENUM else (0, 0)
        op = TIME if is_time(each) else _OPS.get(each.kind, OTHER)
        if not find_readings(each):
            op = OTHER
        implicit = int(wish.slot >= 0 and op != OTHER and not each.has_presence)
        wire = 2 if each.is_repeated else _WIRES.get(each.kind, 0)
        self.rows.append([each.number, wire, op, wish.slot, -1, each.oneof, implicit, first, last])

    def _list_symbols(self, each: Field) -> tuple[int, int]:
        """Return the range (first, end) of an enum field's symbols in `symbols`, to which they are
        added if they are not there yet.
        """
        key = id(each.symbols)
        if key not in self._enums:
            first = len(self.numbers)
            for number in sorted(each.symbols):
                self.numbers.append(number)
                text = each.symbols[number].encode().replace(b"\\", b"\\\\").replace(b'"', b'\\"')
                self.symbols.append(b'"' + text + b'"')
            self._enums[key] = first, len(self.numbers)
        return self._enums[key]
