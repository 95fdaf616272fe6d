"""JSON Schemas (draft 2020-12) of the config files, generated from the models for editors."""

from __future__ import annotations

import json

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from .consumer import ConsumerConfig
from .model import Model, describe_fields
from .service import ServiceConfig
from .stream import StreamConfig

MODELS: dict[str, type[Model]] = {"service": ServiceConfig, "stream": StreamConfig, "consumer": ConsumerConfig}


class _Generator(GenerateJsonSchema):
    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Return pydantic's schema of a model, with the docstrings of the fields added as their descriptions."""
        built = super().model_schema(schema)
        model: type[Model] = schema["cls"]
        texts = describe_fields(model)
        for name, info in model.model_fields.items():
            if name in texts:
                built["properties"][info.alias or name].setdefault("description", texts[name])
        return built

    def generate(self, schema: CoreSchema, mode: JsonSchemaMode = "validation") -> JsonSchemaValue:
        built = _tidy(super().generate(schema, mode))
        return {"$schema": self.schema_dialect, **built} if isinstance(built, dict) else {}


def _tidy(schema: object) -> object:
    """Return a JSON Schema without titles, without branches of type null, and without defaults that are null, an
    empty text or any mapping: these only distract in an editor.
    """
    if isinstance(schema, list):
        return [_tidy(item) for item in schema if item != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    kept = {
        name: _tidy(value)
        for name, value in schema.items()
        if not (name == "title" and isinstance(value, str)) and not (name == "default" and _is_idle(value))
    }
    branches = kept.get("anyOf")
    if isinstance(branches, list) and len(branches) == 1:
        del kept["anyOf"]
        kept = {**branches[0], **kept}
    return kept


def _is_idle(default: object) -> bool:
    return default is None or default == "" or isinstance(default, dict)


def build_schema(kind: str) -> dict[str, object]:
    """Return the schema of `service`, `stream` or `consumer` files.

    Raises KeyError for another kind.
    """
    return MODELS[kind].model_json_schema(by_alias=True, mode="validation", schema_generator=_Generator)


def write_schema(kind: str) -> str:
    """Return the schema of `service`, `stream` or `consumer` files as JSON text, exactly as
    docs/schema has it. Raises KeyError for another kind.
    """
    return json.dumps(build_schema(kind), indent=2, ensure_ascii=False) + "\n"
