"""Values that are not JSON: recognised by their first bytes, and turned into JSON by a decoder if
there is one.

What. Fields of values are searched in JSON documents. A value of Avro or Protobuf has fields too,
but not in a form that the JSON pass could find, and it would be wrong to call it broken JSON: its
fields are UNDECODED. A decoder turns the values of one format into JSON documents. These are put
after the slice's own bytes and searched like any other, so that subjects, types and filters need
not know of formats.

How a format is recognised. A container file of Avro names itself. Serialisers with a schema
registry write a zero byte and a four-byte schema id first; no JSON begins so. Only the registry can
say whether Avro, Protobuf or JSON follows; the decoder has to ask it. Bare Protobuf and bare Avro
have no marks and cannot be told from damage: they count as malformed.

Source of the frame: Confluent's page on the wire format of its serialisers.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from overlay.arrays import Bytes, Int, Int8s, Ints
from overlay.kernels import kernel

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


@dataclass(frozen=True, slots=True)
class Documents:
    """JSON documents: number i is buf[at[i]:at[i]+size[i]]. A size of MALFORMED or UNDECODED says
    why there is none.
    """

    buf: Bytes
    at: Ints
    size: Ints


class ValueDecoder(Protocol):
    """A decoder for the values of one Encoding. Pure: the caller fetches and supplies schemas."""

    def decode(self, buf: Bytes, at: Ints, size: Ints) -> Documents:
        """Return a document for each value buf[at[i]:at[i]+size[i]]. Raises nothing, whatever the
        bytes are.
        """


Decoders = Mapping[Encoding, ValueDecoder]

NO_DECODERS: Decoders = {}


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


def decode(buf: Bytes, at: Ints, size: Ints, decoders: Decoders) -> Bytes:
    """Decode those of the values buf[at[i]:at[i]+size[i]] that are in a format of `decoders`.

    Returns `buf` with their JSON documents appended (the same array if there are none). `at` and
    `size` of these values are changed in place to those of the documents.
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
def _recognise_all(buf: Bytes, at: Ints, size: Ints) -> Int8s:
    encodings = np.zeros(at.size, np.int8)
    for i in range(at.size):
        if size[i] > 0:
            encodings[i] = recognise(buf, at[i], at[i] + size[i])
    return encodings
