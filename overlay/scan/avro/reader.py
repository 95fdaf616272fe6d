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
        """`schemas`: by id; if the values are not framed, there is one."""
        self._schemas, self._is_framed = schemas, is_framed

    def prepare(self, paths: Paths) -> AvroExtractor:
        """Return what finds these paths. Raises SchemaError if a schema is too large for that."""
        return AvroExtractor(compile_program(self._schemas, paths, is_framed=self._is_framed))


@dataclass(frozen=True, slots=True)
class AvroExtractor:
    """Finds the fields of one plan in Avro values."""

    program: Program

    def find_room(self, sizes: Ints) -> Ints:
        """Return how many bytes the texts of a value have at most, for each of these sizes."""
        return self.program.find_room(sizes)

    def extract(self, buf: Bytes, at: Ints, size: Ints, value_slot: int, low: int, high: int, end: int) -> None:
        """Write place and size of each path's text; see search.extract."""
        extract(buf, at, size, value_slot, self.program, low, high, end)
