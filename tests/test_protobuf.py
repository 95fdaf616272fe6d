"""Compiled schemas of Protobuf, against the protobuf package. Reading by them: tests/scan/protobuf."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, timestamp_pb2
from hypothesis import given

from overlay.errors import SchemaError
from overlay.protobuf import DEEPEST, Kind, Message, find_field, find_readings, parse_descriptors
from tests.support.protobuf import compile_file, files, make_class


def compare(message: Message, known: Any) -> None:
    """Check a type of messages against the descriptor of the protobuf package."""
    assert message.name == known.full_name
    assert list(message.fields) == [field.name for field in known.fields]
    for field in known.fields:
        found = message.fields[field.name]
        assert (found.number, found.kind, found.is_repeated) == (field.number, field.type, field.is_repeated)
        assert found.has_presence == field.has_presence or field.is_repeated
        siblings = [] if field.containing_oneof is None else [each.name for each in field.containing_oneof.fields]
        own = [each.name for each in message.fields.values() if each.oneof >= 0 and each.oneof == found.oneof]
        assert sorted(siblings) == sorted(own)
        if field.enum_type is not None:
            assert found.symbols == {each.number: each.name for each in field.enum_type.values}
        if field.message_type is not None:
            assert found.message is not None
            compare(found.message, field.message_type)


@given(files())
def test_types_are_those_of_the_protobuf_package(file: Any) -> None:
    found = parse_descriptors(compile_file(file))
    assert [message.name for message in found.top] == ["shop.M"]
    compare(found.find_message(""), make_class(file).DESCRIPTOR)


def make_set(*files: Any) -> bytes:
    made = descriptor_pb2.FileDescriptorSet()
    for file in files:
        made.file.add().CopyFrom(file)
    return bytes(made.SerializeToString())


def own_set() -> bytes:
    """The schema of schemas: nested messages, messages that contain themselves, enums."""
    made = descriptor_pb2.FileDescriptorProto()
    descriptor_pb2.DESCRIPTOR.CopyToProto(made)
    return make_set(made)


def test_indexes_name_messages_from_the_outside_in() -> None:
    places = {
        message.name.removeprefix("google.protobuf."): place
        for place, message in parse_descriptors(own_set()).list_places()
    }
    known = descriptor_pb2.DESCRIPTOR.message_types_by_name
    assert places["FileDescriptorSet"] == (0,)
    outer = list(known).index("DescriptorProto")
    inner = [each.name for each in known["DescriptorProto"].nested_types].index("ReservedRange")
    assert places["DescriptorProto.ReservedRange"] == (outer, inner)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("name", "a string"),
        ("options.java_package", "a string"),
        ("options.optimize_for", "an enum"),
        ("options.deprecated", "a bool"),
        ("nme", "message google.protobuf.FileDescriptorProto has no field 'nme'. Did you mean name?"),
        ("options.x", "options has no field 'x'. Its fields are java_package"),
        ("options", "options is a message google.protobuf.FileOptions. Name one of its fields: options.java_package"),
        ("dependency", "dependency is a repeated string. It cannot be read"),
        ("message_type.name", "message_type is a repeated message google.protobuf.DescriptorProto, which has no"),
        ("name.x", "name is a string, which has no fields to name"),
    ],
)
def test_where_a_path_leads(path: str, found: str) -> None:
    root = parse_descriptors(own_set()).find_message("google.protobuf.FileDescriptorProto")
    try:
        said = find_field(root, path.split(".")).title
    except SchemaError as error:
        said = str(error)
    assert said.startswith(found)


def test_a_timestamp_can_be_read_and_another_message_cannot() -> None:
    file = descriptor_pb2.FileDescriptorProto(
        name="x.proto", syntax="proto3", dependency=[timestamp_pb2.DESCRIPTOR.name]
    )
    message = file.message_type.add(name="M")
    message.field.add(name="at", number=1, label=1, type=11, type_name=".google.protobuf.Timestamp")
    message.field.add(name="next", number=2, label=1, type=11, type_name=".M")
    root = parse_descriptors(compile_file(file)).find_message("M")
    assert find_readings(find_field(root, ["next"] * 5 + ["at"])) == ("timestamp", "long", "double")
    assert find_field(root, ["at", "seconds"]).kind is Kind.INT64
    assert find_readings(root.fields["next"]) == ()
    with pytest.raises(SchemaError, match="has 101 steps"):
        find_field(root, ["next"] * (DEEPEST + 1))


def test_what_is_refused() -> None:
    sound = own_set()
    for data in (b"", b"hello", b"\x0a\x7f", sound[:-1], b'{"type": "record"}', b"\xff" * 12):
        with pytest.raises(SchemaError, match="is no compiled schema"):
            parse_descriptors(data)
    lacking = descriptor_pb2.FileDescriptorProto(name="x.proto")
    lacking.message_type.add(name="M").field.add(name="a", number=1, label=1, type=11, type_name=".other.N")
    with pytest.raises(SchemaError, match=r"field 'a' of M has the type other[.]N, which is missing"):
        parse_descriptors(make_set(lacking))


def test_messages_by_name() -> None:
    found = parse_descriptors(own_set())
    with pytest.raises(SchemaError, match=r"which message are the values[?] Name one under `message`: google"):
        found.find_message("")
    with pytest.raises(SchemaError, match=r"Did you mean google[.]protobuf[.]FileOptions[?]"):
        found.find_message("google.protobuf.FileOption")


def test_groups_are_no_way_to_a_field() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="x.proto", syntax="proto2")
    message = file.message_type.add(name="M")
    message.nested_type.add(name="G").field.add(name="x", number=1, label=1, type=5)
    message.field.add(name="g", number=1, label=1, type=10, type_name=".M.G")
    root = parse_descriptors(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()).top[0]
    for path, words in ((["g", "x"], "g is a group M.G, which has no fields"), (["g"], "a group M.G. It cannot be")):
        with pytest.raises(SchemaError, match=words):
            find_field(root, path)


def make_edition() -> Any:
    """Return a file of an edition: fields without presence by default, but for one field and one message."""
    file = descriptor_pb2.FileDescriptorProto(name="e.proto", syntax="editions", edition="EDITION_2023")
    file.options.features.field_presence = descriptor_pb2.FeatureSet.IMPLICIT
    one, two = file.message_type.add(name="One"), file.message_type.add(name="Two")
    two.options.features.message_encoding = descriptor_pb2.FeatureSet.DELIMITED
    for message in (one, two):
        message.field.add(name="plain", number=1, label=1, type=5)
        message.field.add(name="own", number=2, label=1, type=5).options.features.field_presence = 1
        message.field.add(name="inner", number=3, label=1, type=11, type_name=".One")
    return file


def test_features_of_an_edition_are_those_that_the_protobuf_package_finds() -> None:
    file = make_edition()
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = parse_descriptors(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    for message in found.top:
        theirs = pool.FindMessageTypeByName(message.name).fields_by_name
        for field in message.fields.values():
            assert field.has_presence == theirs[field.name].has_presence, field
            assert field.kind == theirs[field.name].type, field
    assert found.top[1].fields["inner"].kind is Kind.GROUP
    with pytest.raises(SchemaError, match="inner is a group One, which has no fields to name"):
        find_field(found.top[1], ["inner", "plain"])
