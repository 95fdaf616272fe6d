"""Telling formats of values apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.inspect.formats import ValueFormat, count_formats, is_protobuf, recognise, schema_id

# field 1 = 150, field 2 = "testing": the two examples of Protobuf's page on its encoding
PROTOBUF = b"\x08\x96\x01" + b"\x12\x07testing"
FRAME = b"\x00\x00\x00\x00\x2a"


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (None, ValueFormat.NULL),
        (b"", ValueFormat.EMPTY),
        (b'{"a": 1}', ValueFormat.JSON),
        (b' \n{"a": 1}', ValueFormat.JSON),
        (b"[1, 2]", ValueFormat.JSON_ARRAY),
        (b"42", ValueFormat.TEXT),
        (b"hello\tworld", ValueFormat.TEXT),
        ("größe".encode(), ValueFormat.TEXT),
        (b'{"a": ', ValueFormat.JSON_BROKEN),
        (b"{", ValueFormat.JSON_BROKEN),
        (b'{"a": "\xff"}', ValueFormat.JSON_BROKEN),
        (b'{"a": NaN}', ValueFormat.JSON_BROKEN),
        (b"{'a': 1}", ValueFormat.JSON_BROKEN),
        (b'[{"a": 1}, {"a"', ValueFormat.JSON_BROKEN),
        ('{"a": 1}'.encode("utf-16-le"), ValueFormat.BINARY),
        (b"{a template}", ValueFormat.TEXT),
        (b"[INFO] started", ValueFormat.TEXT),
        (b"[2026-01-31] started", ValueFormat.TEXT),
        (b"Obj\x01\x04\x14avro.codec", ValueFormat.AVRO_FILE),
        (FRAME + b'{"a": 1}', ValueFormat.JSON_REGISTRY),
        (FRAME + b"\x00" + PROTOBUF, ValueFormat.PROTOBUF_REGISTRY),
        (FRAME + b"\x04\x02\x00" + PROTOBUF, ValueFormat.PROTOBUF_REGISTRY),
        (FRAME + b"\x06JFK\x06LAX\x02", ValueFormat.AVRO_REGISTRY),
        (PROTOBUF, ValueFormat.PROTOBUF),
        (b"\xff\xfe\xfd", ValueFormat.BINARY),
        (b"\x00\x01", ValueFormat.BINARY),
        (b"[" * 100_000, ValueFormat.JSON_BROKEN),
    ],
)
def test_recognises(value: bytes | None, wanted: ValueFormat) -> None:
    assert recognise(value) is wanted


def test_schema_id_is_read_from_the_frame() -> None:
    assert schema_id(FRAME + b"x") == 42
    assert schema_id(b'{"a": 1}') is None


def test_one_value_that_is_avro_makes_its_whole_schema_avro() -> None:
    lucky = FRAME + b"\x00" + PROTOBUF
    other = b"\x00\x00\x00\x00\x07\x00" + PROTOBUF
    counts = count_formats([lucky, FRAME + b"\x06JFK\x06LAX\x02", other])
    assert counts == {ValueFormat.AVRO_REGISTRY: 2, ValueFormat.PROTOBUF_REGISTRY: 1}


def test_one_binary_value_makes_bare_protobuf_a_coincidence() -> None:
    assert count_formats([PROTOBUF, PROTOBUF]) == {ValueFormat.PROTOBUF: 2}
    assert count_formats([PROTOBUF, b"\xff\xfe"]) == {ValueFormat.BINARY: 2}


def test_truncated_protobuf_is_none() -> None:
    assert is_protobuf(PROTOBUF)
    assert not any(is_protobuf(PROTOBUF[:end]) for end in (1, 2, 4, 5, 9))
    assert not is_protobuf(b"")


@given(st.binary(max_size=64))
def test_any_bytes_have_one_format(value: bytes) -> None:
    assert count_formats([value]).total() == 1
    assert count_formats([FRAME + value]).total() == 1
