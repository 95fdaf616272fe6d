"""Reading of a stream's Avro values: which schemas there are, and a program for each set of paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from overlay.arrays import Bytes, Ints
from overlay.avro import Type
from overlay.scan.json.paths import Paths

from .program import Program, compile_program
from .search import extract


class AvroFormat:
    """Values of Avro. Either all have one schema, or each has its schema's id in front, as
    serialisers with a schema registry write it.
    """

    def __init__(self, schemas: Mapping[int, Type], *, is_framed: bool) -> None:
        """`schemas`: by id. `is_framed`: whether each value has its schema's id in front; if not,
        there is one schema.
        """
        self._schemas, self._is_framed = schemas, is_framed

    def prepare(self, paths: Paths) -> AvroExtractor:
        """Return an extractor of the fields at these paths. Raises SchemaError if a schema is too
        large for that.
        """
        return AvroExtractor(compile_program(self._schemas, paths, is_framed=self._is_framed))


@dataclass(frozen=True, slots=True)
class AvroExtractor:
    """Finds the fields of one plan in Avro values, and writes each as a JSON text."""

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
