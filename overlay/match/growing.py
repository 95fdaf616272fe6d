"""Values whose schemas come from a schema registry one by one: the extractor takes up what its book has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from overlay.arrays import Bytes, Ints
from overlay.avro import parse_schema
from overlay.config.schema_book import SchemaBook
from overlay.config.values import ValueFormat, list_messages
from overlay.errors import SchemaError
from overlay.scan.avro.reader import AvroFormat
from overlay.scan.json.paths import Paths
from overlay.scan.protobuf.reader import ProtobufFormat
from overlay.scan.values import Extractor


class GrowingFormat:
    """Values of Avro or Protobuf with their schemas' ids in front, whose schemas are in `book`. An id that the book does
    not have when a slice is read makes the fields of its values UNDECODED: see to it that it is settled before.
    """

    def __init__(self, format: ValueFormat, book: SchemaBook) -> None:
        self._book = book
        self._parse: Callable[[Any], Any] = parse_schema if format is ValueFormat.AVRO else list_messages
        self._make: Callable[..., AvroFormat | ProtobufFormat] = (
            AvroFormat if format is ValueFormat.AVRO else ProtobufFormat
        )
        self._parsed: dict[int, Any] = {}

    def prepare(self, paths: Paths) -> GrowingExtractor:
        """Return an extractor of the fields at these paths, which goes on to take up new schemas."""
        return GrowingExtractor(self, self._book, paths)

    def compile(self, schemas: Mapping[int, Any], paths: Paths) -> Extractor:
        """Return an extractor for these schemas of the book. A schema that is too large to follow to the paths is left
        out, so that its values are UNDECODED.
        """
        for id in schemas.keys() - self._parsed.keys():
            self._parsed[id] = self._parse(schemas[id])
        types = {id: self._parsed[id] for id in schemas}
        try:
            return self._make(types, is_framed=True).prepare(paths)
        except SchemaError:
            types = {id: type for id, type in types.items() if self._fits(type, paths)}
            return self._make(types, is_framed=True).prepare(paths)

    def _fits(self, type: Any, paths: Paths) -> bool:
        try:
            self._make({0: type}, is_framed=True).prepare(paths)
        except SchemaError:
            return False
        return True


class GrowingExtractor:
    """Finds the fields of one plan in values by the schemas that the book has at the call of `find_room`. Not for two
    threads at once.
    """

    def __init__(self, format: GrowingFormat, book: SchemaBook, paths: Paths) -> None:
        self._format, self._book, self._paths = format, book, paths
        self._known = book.known
        self._extractor = format.compile(self._known, paths)

    def find_room(self, sizes: Ints) -> Ints:
        """Return how many bytes `extract` writes at most for a value of each of these sizes (bytes;
        below 0: no value). Schemas that are new in the book are taken up first. Until the next call,
        `extract` uses the same schemas, so that it needs no more room.
        """
        if self._book.known is not self._known:
            self._known = self._book.known
            self._extractor = self._format.compile(self._known, self._paths)
        return self._extractor.find_room(sizes)

    def extract(self, buf: Bytes, at: Ints, size: Ints, value_slot: int, low: int, high: int, end: int) -> None:
        """Search the values of the records low:high, as Extractor says."""
        self._extractor.extract(buf, at, size, value_slot, low, high, end)
