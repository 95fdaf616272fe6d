from __future__ import annotations

import json
from pathlib import Path

import pytest

from overlay.config import load
from overlay.config.schema import MODELS, build_schema, write_schema

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "flights"


@pytest.mark.parametrize("kind", MODELS)
def test_the_schemas_in_docs_are_those_of_the_models(kind: str) -> None:
    written = (ROOT / "docs" / "schema" / f"{kind}.json").read_text(encoding="utf-8")
    assert written == write_schema(kind), "run `overlay schema --out docs/schema`"


@pytest.mark.parametrize("kind", MODELS)
def test_every_field_has_its_description(kind: str) -> None:
    schema = build_schema(kind)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    definitions = schema["$defs"]
    assert isinstance(definitions, dict)
    for part in (schema, *(found for found in definitions.values() if "properties" in found)):
        fields = part["properties"]
        assert isinstance(fields, dict)
        assert part["additionalProperties"] is False
        assert [name for name, field in fields.items() if not field.get("description")] == []


def test_durations_take_texts_and_integers() -> None:
    fields = build_schema("consumer")["properties"]
    assert isinstance(fields, dict)
    assert [branch["type"] for branch in fields["ack_wait"]["anyOf"]] == ["string", "integer"]


@pytest.mark.parametrize("file", sorted(EXAMPLE.rglob("*.yaml")), ids=lambda file: file.name)
def test_the_first_line_of_an_example_names_its_schema(file: Path) -> None:
    kind = {"streams": "stream", "consumers": "consumer"}.get(file.parent.name, "service")
    comment, _, schema = file.read_text(encoding="utf-8").splitlines()[0].partition("=")
    assert comment == "# yaml-language-server: $schema"
    assert (file.parent / schema).resolve() == ROOT / "docs" / "schema" / f"{kind}.json"
    assert json.loads((file.parent / schema).read_text(encoding="utf-8"))


def test_the_example_is_sound() -> None:
    loaded = load(EXAMPLE)
    assert loaded.problems == ()
    assert list(loaded.streams) == ["FLIGHTS"]
    assert {config.filters for config in loaded.consumers.values()} == {
        ("flights.JFK.LAX.AA",),
        ("flights.*.SFO.UA",),
        ("flights.LGA.>", "flights.EWR.ORD.*"),
        (),
    }
