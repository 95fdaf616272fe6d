"""Fields of Protobuf values, found in the bytes: against the protobuf package, and the slow twin where bytes are broken."""

from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overlay.field import Field, FieldKind
from overlay.protobuf import Message, parse_descriptors
from overlay.scan import MALFORMED, MISSING, UNDECODED, Decoder, Records, make_plan
from overlay.scan.protobuf.reader import ProtobufFormat, Types
from tests.oracle import protobuf as twin
from tests.oracle.batches import Record
from tests.support.batches import build
from tests.support.protobuf import SYMBOLS, TIMESTAMP, compile_file, files, fill, list_paths, make_class
from tests.support.tight_arena import TightArena

SLOW_DRAWS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
Path = tuple[str, ...]
Text = bytes | int
ANSWERS = {twin.MISSING: MISSING, twin.BROKEN: MALFORMED, twin.UNKNOWN: UNDECODED}
NAMES = {number: name for name, number in SYMBOLS.items()}


def find(
    types: Mapping[int, Types], values: Sequence[bytes | None], paths: Sequence[Path], *, framed: bool = False
) -> list[list[Text]]:
    """Per value, per path."""
    plan = make_plan([Field(FieldKind.VALUE, ".".join(path)) for path in paths])
    arena = TightArena()
    decoder = Decoder(plan, arena=arena, values=ProtobufFormat(types, is_framed=framed))
    records = [Record(i, 0, b"k", value, []) for i, value in enumerate(values)]
    found: list[list[Text]] = []
    for piece in decoder.decode(np.frombuffer(build(records), np.uint8)):
        assert isinstance(piece, Records)
        for row in range(len(piece)):
            slots = zip(piece.at[: len(paths), row].tolist(), piece.size[: len(paths), row].tolist(), strict=True)
            found.append([piece.buf[at : at + size].tobytes() if size >= 0 else size for at, size in slots])
    arena.check()
    assert len(found) == len(values)
    return found


def only(message: Message) -> dict[int, Types]:
    return {0: [((0,), message)]}


def spells(text: Text, wanted: Any) -> bool:
    """Whether a text is that of a Python value, or an answer that of the twin."""
    match wanted:
        case object() if wanted in (twin.MISSING, twin.BROKEN, twin.UNKNOWN):
            return text == ANSWERS[wanted]
        case object() if wanted is twin.OTHER:
            return text == b"{}"
        case bool():
            return text == json.dumps(wanted).encode()
        case bytes():
            return text == b'"' + wanted.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
        case int():
            return text == b"%d" % wanted
        case float() if not math.isfinite(wanted):
            return text == b"NaN"
        case float():
            read = float(json.loads(text)) if isinstance(text, bytes) else math.nan
            return struct.pack("<d", read + 0.0) == struct.pack("<d", wanted + 0.0)
    raise AssertionError(f"{wanted!r} is no value of a field")


def look_up(message: Any, path: Path) -> Any:
    """Return the field of a message of the protobuf package, as the twin gives it."""
    field = message.DESCRIPTOR.fields_by_name.get(path[0])
    if field is None or (field.has_presence and not message.HasField(path[0])):
        return twin.MISSING
    value = getattr(message, path[0])
    if len(path) > 1:
        return look_up(value, path[1:]) if field.message_type is not None else twin.MISSING
    if field.message_type is not None:
        is_time = field.message_type.full_name == TIMESTAMP
        return value.seconds * 1000 + value.nanos // 1_000_000 if is_time else twin.OTHER
    if field.enum_type is not None:
        return NAMES[value].encode()
    return value.encode() if isinstance(value, str) else value


@st.composite
def encoded(draw: st.DrawFn) -> tuple[Any, Message, list[Path], list[bytes]]:
    """The class of a type of messages, the type, some paths, some messages as the protobuf package encodes them."""
    file = draw(files())
    kind = make_class(file)
    paths = st.lists(st.sampled_from([*list_paths(kind.DESCRIPTOR)]), min_size=1, max_size=5, unique=True)
    count = draw(st.integers(1, 3))
    values = [fill(draw, kind()).SerializeToString() for _ in range(count)]
    return kind, parse_descriptors(compile_file(file)).find_message("shop.M"), draw(paths), values


@SLOW_DRAWS
@given(encoded())
def test_fields_are_what_the_protobuf_package_reads(drawn: tuple[Any, Message, list[Path], list[bytes]]) -> None:
    """Also of two messages one after the other, which are one with the fields of both."""
    kind, message, paths, values = drawn
    values = [*values, values[0] + values[-1]]
    for value, texts in zip(values, find(only(message), values, paths), strict=True):
        read = kind.FromString(value)
        for path, text in zip(paths, texts, strict=True):
            wanted = look_up(read, path)
            assert spells(text, wanted), (path, text, wanted)
            assert spells(text, twin.find(message, value, path))


@SLOW_DRAWS
@given(encoded(), st.data())
def test_broken_values_are_what_the_twin_says(
    drawn: tuple[Any, Message, list[Path], list[bytes]], data: st.DataObject
) -> None:
    """Cut, changed, random; with and without a frame. Each path as if it were the only one."""
    _, message, paths, values = drawn
    framed = data.draw(st.booleans())
    types = {7: [((0,), message)]} if framed else only(message)
    broken = [data.draw(_break(value)) for value in values]
    if framed:
        heads = [b"\0\0\0\0\x07\0", b"\0\0\0\0\x07\x02\0", b"\0\0\0\0\x07\x02\x02", b"\0\0\0\0\x08\0", b"\0", b""]
        broken = [data.draw(st.sampled_from(heads)) + value for value in broken]
    found = find(types, broken, paths, framed=framed)
    assert found == [[find(types, [value], [path], framed=framed)[0][0] for path in paths] for value in broken]
    for value, texts in zip(broken, found, strict=True):
        for path, text in zip(paths, texts, strict=True):
            wanted = twin.find_framed(types, value, path) if framed else twin.find(message, value, path)
            assert spells(text, wanted), (value, path, text, wanted)


def _break(value: bytes) -> st.SearchStrategy[bytes]:
    changed = st.tuples(st.integers(0, max(len(value) - 1, 0)), st.binary(min_size=1, max_size=2)).map(
        lambda change: value[: change[0]] + change[1] + value[change[0] + 1 :]
    )
    return st.integers(0, len(value)).map(lambda end: value[:end]) | changed | st.binary(max_size=24) | st.just(value)


def read_file(text: str) -> Any:
    """Return a file of messages, from a few words for each field: `M: a int64 1, n N 2; N: s string 1`."""
    from google.protobuf import descriptor_pb2

    made = descriptor_pb2.FileDescriptorProto(name="x.proto", package="shop", syntax="proto3")
    for part in text.split("; "):
        name, _, fields = part.partition(": ")
        message = made.message_type.add(name=name)
        for each in filter(None, fields.split(", ")):
            own, kind, number = each.split()
            field = message.field.add(name=own, number=int(number), label=1)
            if kind[0].isupper():
                field.type, field.type_name = 11, f".shop.{kind}"
            else:
                field.type = descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    return made


def test_a_message_is_found_by_id_and_indexes() -> None:
    types = {
        id: parse_descriptors(compile_file(read_file(text))).list_places()
        for id, text in ((7, "A: x int64 1; B: x string 1"), (70_000, "C: y int64 1"))
    }
    first, second = b"\x08\x05", b"\x0a\x01z"
    values = [
        b"\0\0\0\0\x07\0" + first,
        b"\0\0\0\0\x07\x02\0" + first,
        b"\0\0\0\0\x07\x02\x02" + second,
        b"\0\0\1\x11\x70\0" + first,
        b"\0\0\0\0\x07\x02\x04" + first,  # the third message
        b"\0\0\0\0\x07\x04\0\0" + first,  # one within the first
        b"\0\0\0\0\x09\0" + first,
        b"\0\0\0\0\x07\x01" + first,  # -1 indexes
        b"\0\0\0\0\x07\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # more than there are bytes
        b"\0\0\0\0\x07",
        first,
        b"\0\0\0\0\x07\0",  # the empty message
    ]
    assert [texts[0] for texts in find(types, values, [("x",)], framed=True)] == [
        *(b"5", b"5", b'"z"', MISSING, UNDECODED, UNDECODED, UNDECODED),
        *(MALFORMED, MALFORMED, MALFORMED, MALFORMED, b"0"),
    ]


def test_an_empty_value_is_a_message_of_defaults() -> None:
    message = parse_descriptors(compile_file(read_file("M: a int64 1, n N 2, t bool 3; N: s string 1"))).top[0]
    paths = [("a",), ("t",), ("n", "s"), ("n",)]
    assert find(only(message), [b"", None, b"\x12\0"], paths) == [
        [b"0", b"false", MISSING, MISSING],
        [MISSING] * 4,
        [b"0", b"false", b'""', b"{}"],
    ]


@pytest.mark.parametrize("deep", [1, 50, 100_000])
def test_groups_within_groups_take_no_stack(deep: int) -> None:
    message = parse_descriptors(compile_file(read_file("M: a int64 1"))).top[0]
    value = b"\x13" * deep + b"\x14" * deep + b"\x08\x05"
    assert find(only(message), [value, value[1:]], [("a",)]) == [[b"5"], [MALFORMED]]


def test_sizes_beyond_everything() -> None:
    message = parse_descriptors(compile_file(read_file("M: a int64 1, s string 2"))).top[0]
    for size in (b"\x7f", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"):
        assert find(only(message), [b"\x12" + size + b"x", b"\x1a" + size], [("s",)]) == [[MALFORMED], [MALFORMED]]


@pytest.mark.parametrize(
    "part", [b"\x12\x00", b"\x12\x02\x08\x05", b"\x1a\x00", b"\x13", b"\x13\x14", b"\x08\x05", b"\x80"]
)
def test_a_message_made_to_cost_much_costs_what_its_bytes_do(part: bytes) -> None:
    """A megabyte of messages that stand again and again, each of which takes the place of the one before."""
    file = read_file("M: a int64 1, n M 2, o M 3")
    file.message_type[0].oneof_decl.add(name="choice")
    for field in file.message_type[0].field[1:]:
        field.oneof_index = 0
    message = parse_descriptors(compile_file(file)).top[0]
    paths = [("a",), *(("n",) * depth + ("a",) for depth in range(1, 20)), ("o", "a")]
    texts = find(only(message), [part * (1_000_000 // len(part)), b"\x1a\x00" + part * 100_000], paths)
    assert {text for each in texts for text in each} <= {b"0", b"5", MISSING, MALFORMED}


def test_many_schemas_of_one_stream() -> None:
    """The limit on rows is one for each type: a registry keeps all versions that there have been."""
    parsed = parse_descriptors(
        compile_file(read_file("M: n M 1, " + ", ".join(f"f{i} int64 {i}" for i in range(2, 90))))
    )
    types = {id: parsed.list_places() for id in range(1, 121)}
    paths = [(*("n",) * depth, f"f{i}") for depth in range(10) for i in range(2, 90)]
    (texts,) = find(types, [b"\0\0\0\0\x78\0\x10\x05"], paths, framed=True)
    assert texts[:2] == [b"5", b"0"] and set(texts[88:]) == {MISSING}


def test_indexes_are_not_read_anew_for_each_type() -> None:
    """A producer chooses the indexes: a hundred of them cost no more than one, however many types a schema has."""
    (message,) = parse_descriptors(compile_file(read_file("M: x int64 1"))).top
    plan = make_plan([Field(FieldKind.VALUE, "x")])
    types = {7: [((i,), message) for i in range(3_000)]}

    def measure(indexes: bytes) -> float:
        """Return the processor's seconds for 300 values of a type that is not there; the least of some runs."""
        decoder = Decoder(plan, values=ProtobufFormat(types, is_framed=True))
        records = [Record(i, 0, None, b"\0\0\0\0\7" + indexes, []) for i in range(300)]
        data, times = np.frombuffer(build(records), np.uint8), []
        for _ in range(4):
            begin = time.thread_time()
            (piece,) = (piece for piece in decoder.decode(data) if isinstance(piece, Records) and len(piece))
            times.append(time.thread_time() - begin)
            assert set(piece.size[0].tolist()) == {UNDECODED}
        return min(times)

    assert measure(b"\xc8\x01" + b"\0" * 100) < 4 * measure(b"\2\xfe\x7f")
