"""Reading of a stream's Protobuf values: which message types there are, and a program for each set of
paths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from overlay.arrays import Bytes, Ints
from overlay.protobuf import Message
from overlay.scan.json.paths import Paths

from .program import Program, compile_program
from .search import extract

Types = Sequence[tuple[tuple[int, ...], Message]]
"""The message types of a schema, with the indexes by which serialisers name them."""


class ProtobufFormat:
    """Values of Protobuf. Either all are messages of one type, or each has the id of its schema and
    the indexes of its type in front, as serialisers with a schema registry write them.
    """

    def __init__(self, types: Mapping[int, Types], *, is_framed: bool) -> None:
        """`types`: by the id of their schema; if the values are not framed, there is one type."""
        self._types, self._is_framed = types, is_framed

    def prepare(self, paths: Paths) -> ProtobufExtractor:
        """Return what finds these paths. Raises SchemaError if a schema is too large for that."""
        return ProtobufExtractor(compile_program(self._types, paths, is_framed=self._is_framed))


@dataclass(frozen=True, slots=True)
class ProtobufExtractor:
    """Finds the fields of one plan in Protobuf values."""

    program: Program

    def find_room(self, sizes: Ints) -> Ints:
        """Return how many bytes the texts of a value have at most, for each of these sizes."""
        return self.program.find_room(sizes)

    def extract(self, buf: Bytes, at: Ints, size: Ints, value_slot: int, low: int, high: int, end: int) -> None:
        """Write place and size of each path's text; see search.extract."""
        extract(buf, at, size, value_slot, self.program, low, high, end)
