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
        """`types`: by the id of their schema. `is_framed`: whether each value has the id of its
        schema and the indexes of its type in front; if not, there is one type.
        """
        self._types, self._is_framed = types, is_framed

    def prepare(self, paths: Paths) -> ProtobufExtractor:
        """Return an extractor of the fields at these paths. Raises SchemaError if a schema is too
        large for that.
        """
        return ProtobufExtractor(compile_program(self._types, paths, is_framed=self._is_framed))


@dataclass(frozen=True, slots=True)
class ProtobufExtractor:
    """Finds the fields of one plan in Protobuf values, and writes each as a JSON text."""

    program: Program

    def find_room(self, sizes: Ints) -> Ints:
        """Return how many bytes `extract` writes at most for a value of each of these sizes (bytes;
        below 0: no value).
        """
        return self.program.find_room(sizes)

    def extract(self, buf: Bytes, at: Ints, size: Ints, value_slot: int, low: int, high: int, end: int) -> None:
        """Search the values of the records low:high, and write for each wanted path a JSON text to
        `buf`, from `end` on, where it begins to `at`, and how many bytes it has to `size`; for a
        path without a text the size is MISSING, MALFORMED or UNDECODED. `at` and `size` are
        [fields, records]; row `value_slot` has the place of the value, and is read.
        """
        extract(buf, at, size, value_slot, self.program, low, high, end)
