"""Values that are not JSON: recognised by their first bytes, or declared by a stream's file.

What. Fields of values are searched in JSON documents. A value of Avro or Protobuf has fields too,
but not in a form that the JSON pass could find, and it would be wrong to call it broken JSON: its
fields are UNDECODED. If the stream's file declares another format, its DeclaredFormat takes the place
of the JSON pass for all values. It writes the wanted fields as JSON texts behind the slice's own
bytes, so that subjects, types and filters need not know of formats.

How a format is recognised. A container file of Avro names itself. Serialisers with a schema
registry write a zero byte and a four-byte schema id first; no JSON begins so. Only the registry can
say whether Avro, Protobuf or JSON follows. Bare Protobuf and bare Avro have no marks and cannot be
told from damaged JSON: they are read as JSON, and mostly count as malformed.

Source of the frame: Confluent's page on the wire format of its serialisers.
"""

from __future__ import annotations

import enum
from typing import Protocol

import numpy as np

from overlay.arrays import Bytes, Int, Ints
from overlay.kernels import kernel

from .json.paths import Paths
from .states import MALFORMED, UNDECODED

FRAME = 5
"""Bytes before the payload of a serialiser with a schema registry: a zero and the schema id."""
AVRO_FILE = b"Obj\x01"
"""First bytes of a container file of Avro."""


class Encoding(enum.IntEnum):
    """Formats that can be told from a value's first bytes. JSON also stands for every format that
    cannot.
    """

    JSON = 0  # or an unknown format
    REGISTRY = 1
    AVRO_FILE = 2


class Extractor(Protocol):
    """Finds the fields of one plan in values of one format, and writes each as a JSON text."""

    def find_room(self, sizes: Ints) -> Ints:
        """Return how many bytes `extract` writes at most for a value of each of these sizes (bytes;
        below 0: no value).
        """

    def extract(self, buf: Bytes, at: Ints, size: Ints, value_slot: int, low: int, high: int, end: int) -> None:
        """Search the values of the records low:high, and write for each wanted path a JSON text to
        `buf`, from `end` on, where it begins to `at`, and its bytes to `size`. `at` and `size` are
        [fields, records]; row `value_slot` has the place of the value, and is read.

        For a path without a text, the size is MISSING, MALFORMED or UNDECODED. `buf` must have the
        bytes of `find_room`. Raises nothing, whatever the bytes are.
        """


class DeclaredFormat(Protocol):
    """A format that a stream's file declares for its values, with all that is needed to read it."""

    def prepare(self, paths: Paths) -> Extractor:
        """Return an extractor of the fields at these paths in values of the format. Raises
        SchemaError if a schema is too large for that.
        """


@kernel
def recognise(buf: Bytes, pos: Int, end: Int) -> Encoding:
    """Return the Encoding of the value buf[pos:end], by its first bytes. JSON is returned for all
    that is not recognised, so it does not mean that the value is JSON.
    """
    if pos < end and buf[np.uintp(pos)] == 0:
        return Encoding.REGISTRY if end - pos > FRAME else Encoding.JSON
    if end - pos < len(AVRO_FILE):
        return Encoding.JSON
    for i in range(len(AVRO_FILE)):
        if buf[np.uintp(pos + i)] != AVRO_FILE[i]:
            return Encoding.JSON
    return Encoding.AVRO_FILE


@kernel
def read_schema_id(buf: Bytes, pos: Int, end: Int) -> Int:
    """Return the id of the schema in front of the value buf[pos:end], as serialisers with a schema
    registry write it. MALFORMED if the value has none, UNDECODED if it is in another known format.
    """
    if end - pos < FRAME or buf[np.uintp(pos)] != 0:
        return np.int64(UNDECODED) if recognise(buf, pos, end) != Encoding.JSON else np.int64(MALFORMED)
    id = np.int64(0)
    for i in range(1, FRAME):
        id = id << 8 | np.int64(buf[np.uintp(pos + i)])
    return id
