"""The format of a stream's values: what a file may say, what its schemas must have, and the place of each problem."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from overlay.config import Loaded
from overlay.config.identity import identify
from overlay.config.loader import sign
from overlay.config.values import ValueFormat, ValuesConfig
from overlay.index.skip.config_fingerprint import find_config_fingerprint
from tests.config.folders import load_files, write_folder

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {
            "name": "customer",
            "type": [
                "null",
                {"type": "record", "name": "Customer", "fields": [{"name": "country", "type": "string"}]},
            ],
        },
        {"name": "lines", "type": {"type": "array", "items": "string"}},
    ],
}
SCHEMA = json.dumps(ORDER)
NESTED = json.dumps({**ORDER, "doc": json.loads("[" * 250 + "]" * 250)})
"""More brackets than pydantic writes, in a member that Avro does not look at."""
FILE = "values: {format: avro, schema: schemas/order.avsc}\n"
IDS = "values: {format: avro, schemas: schemas/orders}\n"
FILES = {"schemas/order.avsc": SCHEMA, "schemas/orders/7.avsc": SCHEMA}


def read(folder: Path, text: str, files: dict[str, str] | None = None) -> Loaded:
    return load_files(folder, {"streams/s.yaml": f"name: S\ntopics: [t]\n{text}", **FILES, **(files or {})})


def declare(of: str, type: str = "string") -> str:
    return f"properties: {{x: {{type: {type}, from: '{{value:{of}}}'}}}}\n"


@pytest.mark.parametrize(
    "values",
    [
        FILE,
        IDS,
        f"values: {{format: avro, schema: {SCHEMA}}}\n",
        f"values: {{format: avro, schemas: {{'7': {SCHEMA}}}}}\n",
    ],
)
def test_schemas_of_files_and_in_place(values: str, tmp_path: Path) -> None:
    loaded = read(tmp_path, values + declare("customer.country"))
    assert loaded.problems == ()
    config = loaded.streams["S"].values
    assert config.format is ValueFormat.AVRO
    assert config.is_framed == ("schemas" in values.replace("schemas/", ""))
    assert [type.name for type in config.types.values()] == ["Order"]
    assert list(config.types) == ([7] if config.is_framed else [0])


def test_json_has_no_schemas(tmp_path: Path) -> None:
    loaded = read(tmp_path, "values: json\n" + declare("any.thing"))
    assert loaded.problems == ()
    assert loaded.streams["S"].values.types == {}


def write_compiled(folder: Path) -> None:
    """Write a compiled schema of Protobuf, of the messages A and B, as a file and by an id."""
    message = descriptor_pb2.FileDescriptorProto(name="x.proto", package="shop", syntax="proto3")
    message.message_type.add(name="A").field.add(name="total", number=1, label=1, type=1)
    message.message_type.add(name="B").field.add(name="lines", number=1, label=3, type=9)
    data = descriptor_pb2.FileDescriptorSet(file=[message]).SerializeToString()
    (folder / "ids").mkdir()
    for name in ("shop.desc", "ids/7.desc"):
        (folder / name).write_bytes(data)


PROTOBUF = "values: {format: protobuf, schema: shop.desc, message: shop.A}\n"


@pytest.mark.parametrize("values", [PROTOBUF, "values: {format: protobuf, schemas: ids}\n"])
def test_compiled_schemas(values: str, tmp_path: Path) -> None:
    write_compiled(tmp_path)
    loaded = read(tmp_path, values + declare("total", "double"))
    assert loaded.problems == ()
    config = loaded.streams["S"].values
    names = [message.name for _, message in config.messages[7 if config.is_framed else 0]]
    assert names == (["shop.A", "shop.B"] if config.is_framed else ["shop.A"])
    # what is loaded stands for itself, without its file
    assert ValuesConfig.model_validate(config.model_dump(by_alias=True)).make_finders()


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("values: {format: protobuf}\n", "3:9: values", "format protobuf needs exactly one of schema and schemas"),
        ("values: {format: protobuf, schema: shop.desc}\n", "3:36: values.schema", "which message are the values?"),
        (PROTOBUF.replace("shop.A", "shop.C"), "3:36: values.schema", "there is no message 'shop.C'"),
        ("values: {format: protobuf, schema: bad.desc}\n", "3:36: values.schema", "bad.desc: is no compiled schema"),
        ("values: {format: protobuf, schema: {}}\n", "3:36: values.schema", "or {file_descriptor_set: TEXT}"),
        ("values: {format: protobuf, schema: {file_descriptor_set: '?'}}\n", "3:36: values.schema", "is not Base64"),
        ("values: {format: protobuf, schemas: ids, message: A}\n", "3:9: values", "message goes with"),
        ("values: {format: avro, schema: x, message: A}\n", "3:9: values", "message goes with"),
        ("values: {format: protobuf, schemas: schemas}\n", "3:37: values.schemas", "has no file ID.desc"),
        ("values: {format: protobuf, schemas: none}\n" + declare("a"), "3:37: values.schemas", "define no message"),
        (PROTOBUF + declare("lines"), "4:38: properties.x.from", "message shop.A has no field 'lines'"),
        (PROTOBUF + declare("total"), "4:24: properties.x.type", "is string, but total is a double"),
    ],
)
def test_problems_of_compiled_schemas(text: str, place: str, words: str, tmp_path: Path) -> None:
    write_folder(tmp_path, {"bad.desc": "hello"})
    write_compiled(tmp_path)
    (tmp_path / "none").mkdir()
    empty = descriptor_pb2.FileDescriptorSet(file=[descriptor_pb2.FileDescriptorProto(name="a.proto")])
    (tmp_path / "none" / "1.desc").write_bytes(empty.SerializeToString())
    (problem,) = read(tmp_path, text).problems
    assert str(problem).startswith(f"{tmp_path}/streams/s.yaml:{place}: ")
    assert words in problem.message


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("values: avro\n", "3:9: values", "exactly one of schema and schemas"),
        ("values: {format: avr}\n", "3:18: values.format", "Did you mean avro?"),
        ("values: {schema: x}\n", "3:9: values", "schema is for values of another format. Write format: avro"),
        ("values: {format: avro, schema: x, schemas: y}\n", "3:9: values", "exactly one of"),
        ("values: {format: avro, schema: 12}\n", "3:32: values.schema", "the name of a file"),
        ("values: {format: avro, schemas: 12}\n", "3:33: values.schemas", "the name of a folder"),
        ("values: {format: avro, schemas: {'7': {}, x: {}}}\n", "3:33: values.schemas", "'x' is no id of a schema"),
        ("values: {format: avro, schemas: {'7': {}, '07': {}}}\n", "3:33: values.schemas", "'07' is no id of a schema"),
        ("values: {format: avro, schemas: {'4294967296': {}}}\n", "3:33: values.schemas", "is no id of a schema"),
        ("values: {format: avro, schemas: {'7': 3}}\n", "3:33: values.schemas", "the schema of 7 is no mapping"),
        ("values: {format: avro, schema: {}}\n", "3:32: values.schema", "the schema has no type"),
        (
            "values: {format: avro, schema: none.avsc}\n",
            "3:32: values.schema",
            "none.avsc cannot be read: No such file",
        ),
        ("values: {format: avro, schema: bad.avsc}\n", "3:32: values.schema", "bad.avsc:2:1 is not JSON"),
        ("values: {format: avro, schema: latin.avsc}\n", "3:32: values.schema", "latin.avsc is not JSON"),
        ("values: {format: avro, schema: deep.avsc}\n", "3:32: values.schema", "deep.avsc is not JSON"),
        (
            "values: {format: avro, schema: nested.avsc}\n",
            "3:32: values.schema",
            "nested.avsc: the schema is nested too",
        ),
        ("values: {format: avro, schema: digits.avsc}\n", "3:32: values.schema", "digits.avsc is not JSON that can be"),
        (
            "values: {format: avro, schema: wrong.avsc}\n",
            "3:32: values.schema",
            "field 'x' of record R has the unknown",
        ),
        ("values: {format: avro, schemas: none}\n", "3:33: values.schemas", "there is no folder"),
        ("values: {format: avro, schemas: streams}\n", "3:33: values.schemas", "streams has no file ID.avsc"),
        ("values: {format: avro, schemas: schemas}\n", "3:33: values.schemas", "order.avsc is not named by the id"),
        (FILE + declare("customer.contry"), "4:38: properties.x.from", "Did you mean country?"),
        (FILE + declare("customer"), "4:38: properties.x.from", "a record Customer. Name one of its fields"),
        (FILE + declare("lines"), "4:38: properties.x.from", "lines is an array. It cannot be read"),
        (FILE + declare("lines.x"), "4:38: properties.x.from", "which has no fields to name"),
        (
            FILE + declare("id"),
            "4:24: properties.x.type",
            "is string, but id is a long. It can be read as long, double",
        ),
        (IDS + declare("none"), "4:38: properties.x.from", "has no field 'none'"),
        (FILE + "subject: {template: 's.{value:no}'}\n", "4:21: subject.template", "has no field 'no'"),
        (FILE + "filter_value: {template: 's.{value:no}'}\n", "4:26: filter_value.template", "has no field 'no'"),
    ],
)
def test_problems(text: str, place: str, words: str, tmp_path: Path) -> None:
    files = {
        "bad.avsc": "{\n",
        "deep.avsc": "[" * 100_000,
        "nested.avsc": NESTED,
        "digits.avsc": SCHEMA.replace('"long"', '{"type": "long", "x": ' + "1" * 5_000 + "}"),
        "wrong.avsc": '{"type": "record", "name": "R", "fields": [{"name": "x", "type": "lnog"}]}',
    }
    write_folder(tmp_path, {})
    (tmp_path / "latin.avsc").write_bytes(b'"\xff"')
    loaded = read(tmp_path, text, files)
    (problem,) = loaded.problems
    assert str(problem).startswith(f"{tmp_path}/streams/s.yaml:{place}: ")
    assert words in problem.message
    assert list(loaded.streams) == ["FLIGHTS"]


@pytest.mark.parametrize(
    ("levels", "leaf", "is_read"), [(200, "1", True), (200, "", True), (201, "1", False), (201, "", False)]
)
def test_the_most_brackets_that_the_message_names_are_read(
    tmp_path: Path, levels: int, leaf: str, is_read: bool
) -> None:
    inner = levels - 1  # the schema itself is a bracket
    schema = json.dumps({**ORDER, "doc": json.loads("[" * inner + leaf + "]" * inner)})
    loaded = read(tmp_path, FILE, {"schemas/order.avsc": schema})
    assert ("S" in loaded.streams) is is_read
    if is_read:
        assert "[" * inner in loaded.streams["S"].model_dump_json()
    else:
        assert "200 levels of brackets are the most" in loaded.problems[0].message


def test_a_field_of_one_schema_of_several_is_enough(tmp_path: Path) -> None:
    fields = [{"name": "more", "type": "string"}]
    later = json.dumps({"type": "record", "name": "Order", "fields": fields})
    files = {"schemas/orders/70.avsc": later}
    assert read(tmp_path, IDS + declare("more"), files).problems == ()
    assert read(tmp_path, IDS + declare("id", "long"), files).problems == ()
    (problem,) = read(tmp_path, IDS + declare("none"), files).problems
    assert "has no field 'none'. Its fields are more (of the latest schema)" in problem.message


def test_a_changed_schema_is_a_change_of_the_folder(tmp_path: Path) -> None:
    """Both for what watches the files, and for who compares configs."""
    first = read(tmp_path, FILE + declare("id", "long"))
    before = sign(tmp_path)
    changed = SCHEMA.replace('"long"', '"int"')
    second = read(tmp_path, FILE + declare("id", "long"), {"schemas/order.avsc": changed + "\n"})
    assert sign(tmp_path) != before
    assert first.streams["S"] != second.streams["S"]
    assert identify(first).digest != identify(second).digest


def test_a_schema_as_deep_as_may_be_has_an_identity(tmp_path: Path) -> None:
    nested = json.dumps({**ORDER, "doc": json.loads("[" * 198 + "]" * 198)})
    loaded = read(tmp_path, IDS, {"schemas/orders/7.avsc": nested})
    assert loaded.problems == ()
    assert identify(loaded).digest


@pytest.mark.parametrize(
    ("values", "field", "of"),
    [(FILE, "id", "avro"), (IDS, "id", "avro"), (PROTOBUF, "total", "protobuf")],
)
def test_a_schema_that_is_too_large_for_the_scan(
    values: str, field: str, of: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A session that found it out would end, again and again."""
    write_compiled(tmp_path)
    text = values + "subject: {template: 's.{value:" + field + "}'}\n"
    assert read(tmp_path, text).problems == ()
    monkeypatch.setattr(f"overlay.scan.{of}.program.MOST_ROWS", 0)
    loaded = read(tmp_path, text)
    (problem,) = loaded.problems
    assert problem.field == ("values.schemas" if values == IDS else "values.schema")
    assert "the schema is too large to follow" in problem.message
    assert list(loaded.streams) == ["FLIGHTS"]


def test_records_that_name_each_other_in_a_long_chain(tmp_path: Path) -> None:
    """Nested by names alone, each text within the next: more levels than Python calls functions within each other."""
    first = {"type": "record", "name": "R0", "fields": []}
    chain = [
        first,
        *({**first, "name": f"R{i}", "fields": [{"name": "f", "type": f"R{i - 1}"}]} for i in range(1, 3_000)),
    ]
    fields = [{"name": "n", "type": "int"}, *({"name": f"f{i}", "type": each} for i, each in enumerate(chain))]
    schema = {
        "type": "record",
        "name": "Root",
        "fields": [
            {"name": "types", "type": {"type": "record", "name": "Types", "fields": fields}},
            {"name": "last", "type": "R2999"},
            {"name": "id", "type": "long"},
        ],
    }
    loaded = read(tmp_path, FILE + declare("id", "long"), {"schemas/order.avsc": json.dumps(schema)})
    assert loaded.problems == ()


def test_links_that_lead_back_or_nowhere_are_not_followed(tmp_path: Path) -> None:
    read(tmp_path, FILE)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "8.avsc").write_text(SCHEMA, encoding="utf-8")
    schemas = tmp_path / "schemas"
    before = sign(tmp_path)
    for name, target in (("a", "a"), ("b", "."), ("c", "."), ("d", "none"), ("e", "../outside")):
        (schemas / name).symlink_to(target)
    found = sign(tmp_path)
    assert {Path(path).name for path, *_ in found} == {Path(path).name for path, *_ in before} | {"8.avsc"}
    assert len(found) < 50


def asks(url: str = "http://localhost:8081", **more: object) -> str:
    values = {"format": "avro", "registry": {"url": url, **more}}
    return f"values: {json.dumps(values)}\n"


def test_a_registry_needs_no_schemas(tmp_path: Path) -> None:
    loaded = read(tmp_path, asks(**{"basic.auth.user.info": "env:REGISTRY_USER"}) + declare("customer.country"))
    assert loaded.problems == ()
    config = loaded.streams["S"].values
    assert config.book is not None and config.is_framed and not config.types
    assert config.registry is not None and config.registry.settings == {"basic.auth.user.info": "env:REGISTRY_USER"}


def test_schemas_of_the_folder_beside_a_registry_are_known_and_no_part_of_the_config(tmp_path: Path) -> None:
    text = asks().replace('"registry"', '"schemas": "schemas/orders", "registry"')
    first = read(tmp_path / "a", text + declare("customer.country"))
    assert first.problems == ()
    values = first.streams["S"].values
    assert set(values.types) == {7} and values.book is not None
    assert values.book.folder == tmp_path / "a" / "schemas" / "orders"
    second = read(tmp_path / "b", text + declare("customer.country"), {"schemas/orders/8.avsc": SCHEMA})
    assert set(second.streams["S"].values.types) == {7, 8}
    assert first.streams["S"] == second.streams["S"]
    assert identify(first).digest == identify(second).digest
    assert find_config_fingerprint(first.streams["S"]) == find_config_fingerprint(second.streams["S"])
    wrong = read(tmp_path / "c", text + declare("customer.county"))
    assert "Did you mean country?" in str(wrong.problems[0])


def test_credentials_of_a_registry_are_in_no_digest(tmp_path: Path) -> None:
    plain, with_token = (
        read(tmp_path / str(len(settings)), asks(**settings))
        for settings in ({}, {"bearer.auth.token": "env:TOKEN", "ssl.ca.location": "/ca.pem"})
    )
    assert identify(plain).digest == identify(with_token).digest
    assert plain.streams["S"] != with_token.streams["S"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ('{format: json, registry: {url: "http://r"}}', "registry is for values of another format"),
        (
            '{format: avro, schema: schemas/order.avsc, registry: {url: "http://r"}}',
            "needs exactly one of schema and schemas",
        ),
        ("{format: avro, registry: {url: 'http://r'}, schemas: {'7': {type: int}}}", "is the folder that keeps them"),
        (
            '{format: protobuf, message: M, registry: {url: "http://r"}}',
            "message goes with format: protobuf and a schema",
        ),
        ("{format: avro, registry: {url: 'ftp://r'}}", "is no URL of a schema registry"),
        ("{format: avro, registry: {url: 'http://me:SECRET@r'}}", "the URL has a user in it"),
        ("{format: avro, registry: {}}", "url"),
        (
            "{format: avro, registry: {url: 'http://r', basic.auth.user.info: 'me:SECRET'}}",
            "Write env:NAME or file:PATH",
        ),
        ("{format: avro, registry: {url: 'http://r', bearer.auth.token: 'env:'}}", "names no environment variable"),
        (
            "{format: avro, registry: {url: 'http://r', basic.auth.user.info: 'env:A', bearer.auth.token: 'env:B'}}",
            "exclude each other",
        ),
        ("{format: avro, registry: {url: 'http://r', ssl.key.location: /k}}", "needs ssl.certificate.location too"),
    ],
)
def test_a_registry_that_cannot_be_asked_is_refused(values: str, words: str, tmp_path: Path) -> None:
    problems = [str(problem) for problem in read(tmp_path, f"values: {values}\n").problems]
    assert len(problems) == 1 and words in problems[0] and "SECRET" not in problems[0], problems
