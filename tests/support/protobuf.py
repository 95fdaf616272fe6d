"""Strategies for schemas of Protobuf and for messages of them, by the protobuf package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]
Types = descriptor_pb2.FieldDescriptorProto

TIMESTAMP = "google.protobuf.Timestamp"
SCALARS = (
    *("DOUBLE", "FLOAT", "INT64", "UINT64", "INT32", "FIXED64", "FIXED32", "BOOL", "STRING", "BYTES", "UINT32", "ENUM"),
    *("SFIXED32", "SFIXED64", "SINT32", "SINT64"),
)
SYMBOLS = {"ZERO": 0, "ONE": 1, "OTHER": -3}


@st.composite
def files(draw: st.DrawFn) -> Any:
    """A FileDescriptorProto of a package `shop` with a message `M` and messages within it."""
    syntax = draw(st.sampled_from(["proto2", "proto3"]))
    made = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax=syntax)
    made.dependency.append("google/protobuf/timestamp.proto")
    enum = made.enum_type.add(name="Kind")
    for name, number in SYMBOLS.items():
        enum.value.add(name=name, number=number)
    _fill_message(draw, made.message_type.add(name="M"), "shop.M", 2, syntax == "proto3")
    return made


def _fill_message(draw: Draw, message: Any, full: str, depth: int, is_proto3: bool) -> None:
    oneofs = draw(st.integers(0, 2))
    for i in range(oneofs):
        message.oneof_decl.add(name=f"choice_{i}")
    names = draw(st.lists(st.sampled_from("abcdef"), max_size=5, unique=True))
    numbers = draw(st.lists(st.integers(1, 40), min_size=len(names), max_size=len(names), unique=True))
    for name, number in zip(names, numbers, strict=True):
        field = message.field.add(name=name, number=number, label=Types.LABEL_OPTIONAL)
        kind = draw(st.sampled_from([*SCALARS, "MESSAGE", "MESSAGE", "TIMESTAMP"]))
        if kind == "TIMESTAMP" or (kind == "MESSAGE" and not depth):
            field.type, field.type_name = Types.TYPE_MESSAGE, f".{TIMESTAMP}"
        elif kind == "MESSAGE":
            field.type, field.type_name = Types.TYPE_MESSAGE, f".{full}.N{name}"
            _fill_message(draw, message.nested_type.add(name=f"N{name}"), f"{full}.N{name}", depth - 1, is_proto3)
        else:
            field.type = Types.Type.Value(f"TYPE_{kind}")
            if kind == "ENUM":
                field.type_name = ".shop.Kind"
        where = draw(st.sampled_from(["plain", "plain", "repeated", "optional", *(f"{i}" for i in range(oneofs))]))
        if where == "repeated":
            field.label = Types.LABEL_REPEATED
        elif where.isdecimal():
            field.oneof_index = int(where)
        elif where == "optional" and is_proto3:
            field.proto3_optional = True
    _tidy_oneofs(message)


def _tidy_oneofs(message: Any) -> None:
    """Take out oneofs without fields, and add those of fields that are `optional` in proto3, as protoc does."""
    used = sorted({field.oneof_index for field in message.field if field.HasField("oneof_index")})
    kept = [message.oneof_decl[i].name for i in used]
    del message.oneof_decl[:]
    for name in kept:
        message.oneof_decl.add(name=name)
    for field in message.field:
        if field.HasField("oneof_index"):
            field.oneof_index = used.index(field.oneof_index)
        elif field.proto3_optional:
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")


def compile_file(file: Any) -> bytes:
    """Return a FileDescriptorSet, as protoc writes it with --include_imports."""
    made = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(made.file.add())
    made.file.add().CopyFrom(file)
    return bytes(made.SerializeToString())


def make_class(file: Any, name: str = "shop.M") -> Any:
    """Return the class of a message of a file."""
    pool = descriptor_pool.DescriptorPool()
    timestamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(timestamp)
    pool.Add(timestamp)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def list_paths(message: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of a type of messages that lead to no repeated field, and of each message one that it has not."""
    yield (*before, "none")
    for field in message.fields:
        if field.is_repeated:
            continue
        yield (*before, field.name)
        if field.message_type is not None:
            yield from list_paths(field.message_type, (*before, field.name))


_INT32, _INT64 = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
_UINT32, _UINT64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "DOUBLE": st.floats() | st.just(0.0),
    "FLOAT": st.floats(width=32),
    **dict.fromkeys(("INT32", "SINT32", "SFIXED32"), _INT32),
    **dict.fromkeys(("INT64", "SINT64", "SFIXED64"), _INT64),
    **dict.fromkeys(("UINT32", "FIXED32"), _UINT32),
    **dict.fromkeys(("UINT64", "FIXED64"), _UINT64),
    "BOOL": st.booleans(),
    "STRING": st.text(max_size=9) | st.sampled_from(['"', "a\\b"]),
    "BYTES": st.binary(max_size=9),
    "ENUM": st.sampled_from([*SYMBOLS.values()]),
}


def fill(draw: Draw, message: Any) -> Any:
    """Set some fields of a message to values, and return it."""
    for field in message.DESCRIPTOR.fields:
        if not draw(st.booleans()):
            continue
        if field.message_type is not None:
            for _ in range(draw(st.integers(1, 2)) if field.is_repeated else 1):
                inner = getattr(message, field.name).add() if field.is_repeated else getattr(message, field.name)
                inner.SetInParent()
                if field.message_type.full_name == TIMESTAMP:
                    inner.seconds = draw(st.integers(-62_135_596_800, 253_402_300_799))
                    inner.nanos = draw(st.integers(0, 999_999_999))
                else:
                    fill(draw, inner)
            continue
        values = VALUES[Types.Type.Name(field.type).removeprefix("TYPE_")]
        if field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(values, max_size=3)))
        else:
            setattr(message, field.name, draw(values))
    return message
