"""Values that are no JSON: known by their first bytes, and made JSON by a decoder where there is one.

What. Fields of values are looked for in JSON documents. A value of Avro or Protobuf has fields too, but not in a form that
the JSON pass could find, and it would be wrong to call it broken JSON: its fields are UNDECODED. A decoder turns the values
of one format into JSON documents; they are put behind the slice's own bytes and looked through like any other, so that
subjects, types and filters know nothing of formats.

How a format is known. A container file of Avro names itself. Serialisers with a schema registry begin with a zero byte
and a four-byte schema id; no JSON does. Whether Avro, Protobuf or JSON follows only the registry can say for sure, which
is for the decoder to ask. Bare Protobuf and bare Avro have no marks and cannot be told from damage: they count as malformed.

Source of the frame: Confluent's page on the wire format of its serialisers.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from overlay.kernels import kernel

from .header import Bytes

Ints = npt.NDArray[np.int64]

FRAME = 5
"""Bytes before what a serialiser with a schema registry writes: a zero and the schema id."""
AVRO_FILE = b"Obj\x01"
"""How a container file of Avro begins."""


class Encoding(enum.IntEnum):
    """Formats that a value says it is in."""

    JSON = 0  # or nothing that is known
    REGISTRY = 1
    AVRO_FILE = 2


@dataclass(frozen=True, slots=True)
class Documents:
    """JSON documents: number i is buf[at[i]:at[i]+size[i]]. MALFORMED or UNDECODED as a size says why there is none."""

    buf: Bytes
    at: Ints
    size: Ints


class ValueDecoder(Protocol):
    """Reads the values of one Encoding. Pure as the scan is: schemas are fetched elsewhere and asked for by the caller."""

    def decode(self, buf: Bytes, at: Ints, size: Ints) -> Documents:
        """A document for each value buf[at[i]:at[i]+size[i]]. Raises nothing, whatever the bytes are."""


Decoders = Mapping[Encoding, ValueDecoder]

NO_DECODERS: Decoders = {}


@kernel
def recognise(buf, pos, end):  # type: ignore[no-untyped-def]
    """The Encoding of the value pos:end."""
    if pos < end and buf[np.uintp(pos)] == 0:
        return 1 if end - pos > FRAME else 0
    if end - pos < len(AVRO_FILE):
        return 0
    for i in range(len(AVRO_FILE)):
        if buf[np.uintp(pos + i)] != AVRO_FILE[i]:
            return 0
    return 2


def decode(buf: Bytes, at: Ints, size: Ints, decoders: Decoders) -> Bytes:
    """Decode those of the values buf[at[i]:at[i]+size[i]] that are in a format of `decoders`.

    Returns the bytes with the documents behind them; `at` and `size` of these values are changed to the documents'.
    """
    encodings = _recognise_all(buf, at, size)
    parts, end = [buf], buf.size
    for encoding, decoder in decoders.items():
        rows = np.flatnonzero(encodings == encoding)
        if rows.size:
            made = decoder.decode(buf, at[rows], size[rows])
            at[rows], size[rows] = made.at + end, made.size
            parts.append(made.buf)
            end += made.buf.size
    return np.concatenate(parts) if len(parts) > 1 else buf


@kernel
def _recognise_all(buf, at, size):  # type: ignore[no-untyped-def]
    encodings = np.zeros(at.size, np.int8)
    for i in range(at.size):
        if size[i] > 0:
            encodings[i] = recognise(buf, at[i], at[i] + size[i])
    return encodings
