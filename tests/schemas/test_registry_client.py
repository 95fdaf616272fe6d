"""Schemas of a schema registry as files, against a small registry over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from click.testing import CliRunner
from google.protobuf import any_pb2, descriptor_pb2, duration_pb2, timestamp_pb2, wrappers_pb2

from overlay.avro import find_types, parse_schema
from overlay.cli import overlay
from overlay.config.values import ValueFormat, ValuesConfig, list_messages, read_schemas
from overlay.errors import SchemaError
from overlay.protobuf import find_field, find_readings
from overlay.schemas.protobuf_files import join_files
from overlay.schemas.registry_client import RegistryError, SchemaRegistry
from tests.support.schema_registry import Registry, serve_registry

MONEY = {"type": "fixed", "name": "Money", "size": 4}
PLACE = {"type": "record", "name": "shop.geo.Place", "fields": [{"name": "name", "type": "string"}]}
CUSTOMER = {
    "type": "record",
    "name": "Customer",
    "namespace": "shop",
    "fields": [{"name": "home", "type": ["null", "shop.geo.Place"]}, {"name": "limit", "type": "Money"}],
}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "Customer"]},
        {"name": "others", "type": {"type": "array", "items": "Customer"}},
        {"name": "by_place", "type": {"type": "map", "values": "shop.geo.Place"}},
    ],
}


def refer(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "subject": name, "version": 1} for name in names]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    made = Registry()
    made.add("Money", 1, MONEY)
    made.add("shop.geo.Place", 2, PLACE)
    made.add("shop.Customer", 3, CUSTOMER, references=refer("shop.geo.Place", "Money"))
    made.add("orders-value", 7, {**ORDER, "fields": ORDER["fields"][:1]})
    made.add("orders-value", 70_000, ORDER, references=refer("shop.Customer", "shop.geo.Place"))
    return made


def pull(url: str, subject: str, folder: Path, **settings: str) -> list[tuple[str, bool]]:
    found = SchemaRegistry(url, settings).pull(subject, folder)
    return [(file.name, is_new) for file, is_new in found]


def test_files_are_what_a_stream_reads_and_other_readers_too(registry: Registry, tmp_path: Path) -> None:
    folder = tmp_path / "schemas" / "orders"
    with serve_registry(registry) as url:
        assert pull(url, "orders-value", folder) == [("7.avsc", True), ("70000.avsc", True)]
    values = read_schemas(ValuesConfig.model_validate({"format": "avro", "schemas": "schemas/orders"}), tmp_path)
    assert set(values.types) == {7, 70_000}
    root = values.types[70_000]
    assert [type.title for type in find_types(root, ["customer", "home", "name"])] == ["a string"]
    assert [type.title for type in find_types(root, ["customer", "limit"])] == ["a fixed Money"]
    written = json.loads((folder / "70000.avsc").read_text(encoding="utf-8"))
    parsed: Any = fastavro.parse_schema(written)
    assert parsed["name"] == "shop.Order"
    assert [each.name for each in folder.iterdir() if each.suffix != ".avsc"] == []


def test_what_is_there_is_kept_and_its_references_are_not_asked_for(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "70000.avsc").write_text("mine", encoding="utf-8")
    with serve_registry(registry) as url:
        assert pull(url, "orders-value", tmp_path) == [("7.avsc", True), ("70000.avsc", False)]
        assert pull(url, "orders-value", tmp_path) == [("7.avsc", False), ("70000.avsc", False)]
    assert (tmp_path / "70000.avsc").read_text(encoding="utf-8") == "mine"
    assert not [path for path, _ in registry.asked if "Customer" in path]


def test_a_registry_that_is_down_costs_nothing_that_is_there(registry: Registry, tmp_path: Path) -> None:
    with serve_registry(registry) as url:
        pull(url, "orders-value", tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(RegistryError, match=r"gives no answer: .*Schemas that are files already stay in use"):
        pull(url, "orders-value", tmp_path)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("settings", "sent"),
    [
        ({"basic.auth.user.info": "me:se:cret"}, "Basic bWU6c2U6Y3JldA=="),
        ({"bearer.auth.token": "secret"}, "Bearer secret"),
    ],
)
def test_credentials_are_sent_and_never_shown(
    registry: Registry, tmp_path: Path, settings: dict[str, str], sent: str
) -> None:
    registry.wanted = sent
    with serve_registry(registry) as url:
        assert pull(url, "Money", tmp_path, **settings) == [("1.avsc", True)]
        registry.wanted = "other"
        for given in (settings, {}):
            with pytest.raises(RegistryError) as caught:
                pull(url, "Money", tmp_path, **given)
            assert "refuses the credentials (401)" in str(caught.value)
            assert "secret" not in str(caught.value) and "se:cret" not in str(caught.value)


def test_a_redirect_is_not_followed(registry: Registry, tmp_path: Path) -> None:
    """Another host would be given the credentials."""
    other = Registry()
    with serve_registry(registry) as url, serve_registry(other) as elsewhere:
        registry.answers["/subjects/Money/versions?deleted=true"] = 302, {"Location": elsewhere}, b""
        with pytest.raises(RegistryError, match=f"at another address .302.: '{elsewhere}'"):
            pull(url, "Money", tmp_path, **{"bearer.auth.token": "secret"})
    assert other.asked == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>", "the answer is none of a schema registry"),
        (b"\xff", "the answer is none of a schema registry"),
        (b"[" * 100_000, "the answer is none of a schema registry"),
        (b"[]", "cannot be used: TypeError"),
        (b"{}", "cannot be used: KeyError: 'id'"),
        (b'{"id": 5, "schema": 7}', "cannot be used: TypeError"),
        (b'{"id": "../../x", "schema": "\\"int\\""}', "'../../x' is no id of a schema"),
        (b'{"id": 5, "schema": "{\\"type\\": \\"recrod\\"}"}', "unknown type 'recrod'"),
        (b'{"id": 5, "schema": "\\"int\\"", "references": [7]}', "cannot be used: TypeError"),
        (b'{"id": 5, "schemaType": "JSON", "schema": "{}"}', "only those of AVRO and PROTOBUF can be read"),
    ],
)
def test_what_cannot_be_used_is_named(registry: Registry, tmp_path: Path, body: bytes, words: str) -> None:
    registry.answers["/subjects/Money/versions/1?deleted=true"] = 200, {}, body
    with serve_registry(registry) as url, pytest.raises(RegistryError) as caught:
        pull(url, "Money", tmp_path)
    assert words in str(caught.value)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("location", ["http://[", "http://x\x1b[2J/", "ftp://x/"])
def test_a_redirect_to_what_is_no_address(location: str, registry: Registry, tmp_path: Path) -> None:
    registry.answers["/subjects/Money/versions?deleted=true"] = 302, {"Location": location}, b""
    with serve_registry(registry) as url, pytest.raises(RegistryError) as caught:
        pull(url, "Money", tmp_path)
    assert str(caught.value).isprintable()


def test_a_subject_that_is_not_there(registry: Registry, tmp_path: Path) -> None:
    with serve_registry(registry) as url:
        with pytest.raises(RegistryError, match=r"no such subject or version \(404\). Most are named TOPIC-value"):
            pull(url, "none", tmp_path)
        registry.answers["/subjects/Money/versions?deleted=true"] = 200, {}, b'["../x"]'
        with pytest.raises(RegistryError, match="the answer is none of a schema registry"):
            pull(url, "Money", tmp_path)


@pytest.mark.parametrize(
    ("url", "settings", "words"),
    [
        ("localhost:8081", {}, "is no URL of a schema registry"),
        ("file:///etc", {}, "is no URL of a schema registry"),
        ("http://me:secret@localhost", {}, "the URL has a user in it"),
        ("http://localhost?x=1", {}, "Leave out what follows the path"),
        ("http://[localhost", {}, "cannot be read: Invalid IPv6 URL"),
        ("http://localhost/größe", {}, "has characters that no URL has"),
        ("http://local host", {}, "has characters that no URL has"),
        ("http://localhost", {"sasl.password": "x"}, "there is no such setting. There are basic.auth.user.info,"),
        ("http://localhost", {"basic.auth.user.info": "a:b", "bearer.auth.token": "c"}, "one way to authenticate"),
        ("http://localhost", {"bearer.auth.token": "secret\n"}, "bearer.auth.token: a token has printable ASCII"),
        ("https://localhost", {"ssl.ca.location": "/none"}, "the certificates of ssl.* cannot be read"),
        ("https://localhost", {"ssl.key.location": "/none"}, "the certificates of ssl.* cannot be read"),
    ],
)
def test_what_is_refused_before_anything_is_sent(url: str, settings: dict[str, str], words: str) -> None:
    with pytest.raises(RegistryError) as caught:
        SchemaRegistry(url, settings)
    assert words in str(caught.value) and "secret" not in str(caught.value)


def test_a_namespace_is_not_given_to_a_name_that_has_none(registry: Registry, tmp_path: Path) -> None:
    """A record without a namespace would take that of the record that it is put into."""
    inner = {"type": "record", "name": "Note", "fields": [{"name": "next", "type": ["null", "Note"]}]}
    outer = {
        "type": "record",
        "name": "a.Outer",
        "fields": [{"name": "n", "type": "Note"}, {"name": "m", "type": "Note"}],
    }
    registry.add("Note", 20, inner)
    registry.add("t-value", 21, outer, references=refer("Note"))
    with serve_registry(registry) as url:
        pull(url, "t-value", tmp_path)
    root = parse_schema(json.loads((tmp_path / "21.avsc").read_text(encoding="utf-8")))
    assert [type.name for type in dict(root.fields).values()] == ["Note", "Note"]


def test_the_command(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.wanted = "Bearer secret"
    monkeypatch.setenv("REGISTRY_TOKEN", "secret")
    with serve_registry(registry) as url:
        words = [
            "registry",
            "Money",
            "--url",
            url,
            "--dir",
            str(tmp_path),
            "-X",
            "bearer.auth.token=env:REGISTRY_TOKEN",
        ]
        first, second = (CliRunner().invoke(overlay, words) for _ in range(2))
        wrong = CliRunner().invoke(overlay, ["registry", "Money", "--url", url, "--dir", str(tmp_path), "-X", "token"])
    assert (first.exit_code, first.output) == (0, f"wrote {tmp_path / '1.avsc'}\n")
    assert (second.exit_code, second.output) == (0, f"kept {tmp_path / '1.avsc'}\n")
    assert wrong.exit_code == 2 and "write NAME=VALUE" in wrong.output


@pytest.mark.parametrize("id", [-1, 1 << 32, True, 7.9, "7", None, [7]])
def test_an_id_that_no_value_has_in_front_is_refused(id: Any, registry: Registry, tmp_path: Path) -> None:
    """A file of that name would make a running service refuse the whole folder."""
    registry.add("odd", id, MONEY)
    with (
        serve_registry(registry) as url,
        pytest.raises(RegistryError, match=r"version 1 of subject odd .* no id of a schema"),
    ):
        pull(url, "odd", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_largest_id(registry: Registry, tmp_path: Path) -> None:
    registry.add("far", (1 << 32) - 1, MONEY)
    registry.add("far", 0, MONEY)
    with serve_registry(registry) as url:
        assert pull(url, "far", tmp_path) == [("4294967295.avsc", True), ("0.avsc", True)]


def make_files() -> tuple[bytes, bytes]:
    """Compiled files of an order and of a place that it imports, as a registry gives them."""
    place = descriptor_pb2.FileDescriptorProto(name="place.proto", package="shop", syntax="proto3")
    place.message_type.add(name="Place").field.add(name="country", number=1, label=1, type=9)
    order = descriptor_pb2.FileDescriptorProto(name="default", package="shop", syntax="proto3")
    order.dependency.extend(["place.proto", "google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    message = order.message_type.add(name="Order")
    message.field.add(name="place", number=1, label=1, type=11, type_name=".shop.Place")
    message.field.add(name="at", number=2, label=1, type=11, type_name=".google.protobuf.Timestamp")
    message.field.add(name="note", number=3, label=1, type=11, type_name=".google.protobuf.StringValue")
    message.field.add(name="price", number=4, label=1, type=11, type_name=".confluent.type.Decimal")
    return place.SerializeToString(), order.SerializeToString()


def add_files(registry: Registry) -> None:
    place, order = make_files()
    registry.add_file("place.proto", 40, 'syntax = "proto3";', place)
    reference = {"name": "place.proto", "subject": "place.proto", "version": 1}
    registry.add_file("places-value", 41, 'syntax = "proto3";', order, references=[reference])


def test_schemas_of_protobuf_are_compiled_by_the_registry(registry: Registry, tmp_path: Path) -> None:
    add_files(registry)
    with serve_registry(registry) as url:
        assert pull(url, "places-value", tmp_path / "schemas") == [("41.desc", True)]
        fetched = SchemaRegistry(url, {}).fetch(41, ValueFormat.PROTOBUF)
    values = read_schemas(ValuesConfig.model_validate({"format": "protobuf", "schemas": "schemas"}), tmp_path)
    assert fetched is not None and list_messages(fetched.schema)[0][1].name == "shop.Order"
    ((place, message),) = values.messages[41]
    assert place == (0,)
    kinds = {
        path: find_readings(find_field(message, path.split(".")))[0]
        for path in ("place.country", "at", "note.value", "price.scale")
    }
    assert kinds == {"place.country": "string", "at": "timestamp", "note.value": "string", "price.scale": "long"}
    # what protoc's own library makes of the file
    files = descriptor_pb2.FileDescriptorSet.FromString((tmp_path / "schemas" / "41.desc").read_bytes()).file
    assert {"shop", "google.protobuf", "confluent.type"} == {file.package for file in files}
    assert files[-1].message_type[0].name == "Order"


def test_a_registry_that_has_only_the_text_of_proto_files(registry: Registry) -> None:
    add_files(registry)
    registry.compiled.clear()
    with serve_registry(registry) as url, pytest.raises(SchemaError, match="Compile it with protoc"):
        SchemaRegistry(url, {}).fetch(41, ValueFormat.PROTOBUF)


def test_well_known_types_are_those_of_protobuf() -> None:
    """Field names, numbers and types, against the library's own descriptors."""
    files = descriptor_pb2.FileDescriptorSet.FromString(join_files({}, b"")).file
    found = {
        message.name: message for file in files if file.package == "google.protobuf" for message in file.message_type
    }
    known = {
        message.name: message
        for module in (any_pb2, duration_pb2, timestamp_pb2, wrappers_pb2)
        for message in descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb).message_type
    }
    assert known.keys() <= found.keys()
    for name, message in known.items():
        own = [(field.name, field.number, field.type) for field in found[name].field]
        assert own == [(field.name, field.number, field.type) for field in message.field], name


def test_an_id_is_asked_for(registry: Registry) -> None:
    with serve_registry(registry) as url:
        source = SchemaRegistry(url, {})
        fetched = source.fetch(70_000, ValueFormat.AVRO)
        assert fetched is not None
        assert [type.title for type in find_types(parse_schema(fetched.schema), ["customer", "limit"])] == [
            "a fixed Money"
        ]
        assert source.fetch(999, ValueFormat.AVRO) is None
        with pytest.raises(SchemaError, match="of avro, and the stream's values are of protobuf"):
            source.fetch(7, ValueFormat.PROTOBUF)
        source.check()
        registry.answers["/schemas/types"] = 200, {}, b"{}"
        with pytest.raises(RegistryError, match="none of a schema registry"):
            source.check()


def test_an_answer_that_comes_byte_by_byte_ends(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.schemas.registry_client.ANSWER_S", -1.0)
    with serve_registry(registry) as url, pytest.raises(RegistryError, match="takes longer than"):
        SchemaRegistry(url, {}).fetch(7, ValueFormat.AVRO)
