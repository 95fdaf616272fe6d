"""Values that are no JSON: named as what they are, and read through a decoder where there is one."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.arrays import Bytes, Ints
from overlay.field import Field, FieldKind
from overlay.inspect.formats import ValueFormat
from overlay.inspect.formats import recognise as inspect
from overlay.scan import MALFORMED, MISSING, UNDECODED, Decoder, Encoding, Records, make_plan
from overlay.scan.values import FRAME, Documents, recognise
from tests.oracle.batches import Record
from tests.support.batches import build

PLAN = make_plan([Field(FieldKind.VALUE, "a"), Field(FieldKind.VALUE, "b.c")])

REGISTRIES = (ValueFormat.JSON_REGISTRY, ValueFormat.AVRO_REGISTRY, ValueFormat.PROTOBUF_REGISTRY)


def find(values: Sequence[bytes | None], decoder: Decoder) -> list[list[bytes | int]]:
    """Per value, the text of each field or the size that says why there is none."""
    records = [Record(i, 0, b"key", value, []) for i, value in enumerate(values)]
    (piece,) = [p for p in decoder.decode(np.frombuffer(build(records, codec=3), np.uint8)) if len_of(p)]
    assert isinstance(piece, Records)
    return [
        [
            piece.buf[at : at + size].tobytes() if size >= 0 else size
            for at, size in zip(piece.at[:2, row].tolist(), piece.size[:2, row].tolist(), strict=True)
        ]
        for row in range(len(piece))
    ]


def len_of(piece: object) -> int:
    assert isinstance(piece, Records)
    return len(piece)


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (b"\x00\x00\x00\x00\x07\x02\x06abc", UNDECODED),  # Avro of a registry
        (b'\x00\x00\x00\x00\x07{"a":1}', UNDECODED),  # JSON of a registry
        (b"Obj\x01\x04", UNDECODED),
        (b"\x00\x00\x00\x00\x07", MALFORMED),  # a frame around nothing
        (b"Obj\x02", MALFORMED),
        (b"\x08\x96\x01", MALFORMED),  # bare Protobuf has no log positions
        (b"hello", MALFORMED),
        (b"\xff", MALFORMED),
        (b"", MALFORMED),
        (b"[1]", MISSING),
        (b" 12", MISSING),
        (b"true", MISSING),
        (None, MISSING),
    ],
)
def test_a_value_without_fields_says_why(value: bytes | None, size: int) -> None:
    assert find([b'{"a":1}', value, b'{"b":{"c":2}}'], Decoder(PLAN)) == [
        [b"1", MISSING],
        [size, size],
        [MISSING, b"2"],
    ]


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=12) | st.binary(max_size=12).map(b"Obj\x01".__add__) | st.binary(max_size=12).map(b"\0".__add__)
)
def test_the_scan_and_init_name_the_same_formats(value: bytes) -> None:
    """`overlay init` looks closer, at a sample; what log positions itself they must call the same."""
    found = recognise(np.frombuffer(value, np.uint8), 0, len(value))
    form = inspect(value)
    assert (found == Encoding.REGISTRY) == (form in REGISTRIES)
    assert (found == Encoding.AVRO_FILE) == (form is ValueFormat.AVRO_FILE)


class Framed:
    """Reads JSON of a schema registry: its documents are the values without their frames."""

    def decode(self, buf: Bytes, at: Ints, size: Ints) -> Documents:
        texts = [buf[a + FRAME : a + n].tobytes() for a, n in zip(at.tolist(), size.tolist(), strict=True)]
        sizes = np.array([len(text) if text.startswith(b"{") else UNDECODED for text in texts], np.int64)
        ends = np.cumsum([len(text) for text in texts])
        return Documents(np.frombuffer(b"".join(texts), np.uint8), ends - [len(text) for text in texts], sizes)


documents = st.fixed_dictionaries(
    {}, optional={"a": st.integers(), "b": st.fixed_dictionaries({"c": st.text(max_size=5)})}
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(documents, st.sampled_from([b"", b"\0\0\0\0\x09"])), min_size=1, max_size=8))
def test_a_decoder_makes_fields_of_its_format_readable(values: list[tuple[dict[str, object], bytes]]) -> None:
    raw = [frame + json.dumps(document).encode() for document, frame in values]
    plain = [json.dumps(document).encode() for document, _ in values]
    decoder = Decoder(PLAN, decoders={Encoding.REGISTRY: Framed()})
    assert find(raw, decoder) == find(plain, Decoder(PLAN))


def test_a_decoder_leaves_what_it_cannot_read() -> None:
    decoder = Decoder(PLAN, decoders={Encoding.REGISTRY: Framed()})
    values = [b"\0\0\0\0\x09\x02\x06abc", b'\0\0\0\0\x09{"a":5}', b"Obj\x01", b'{"a":6}', b'\0\0\0\0\x09{"a']
    assert find(values, decoder) == [
        [UNDECODED, UNDECODED],
        [b"5", MISSING],
        [UNDECODED, UNDECODED],
        [b"6", MISSING],
        [MALFORMED, MALFORMED],
    ]
