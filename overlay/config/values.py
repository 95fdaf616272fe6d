"""The format of a stream's values, as its file declares it, with the schemas that it names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path as FilePath
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from overlay.avro import Type, find_readings, find_types, parse_schema
from overlay.errors import SchemaError
from overlay.field import Field as RecordField

from .document import Path
from .model import Model

SCHEMA_SUFFIX = ".avsc"


class ValueFormat(StrEnum):
    JSON = "json"
    AVRO = "avro"


Schema = dict[str, Any] | tuple[Any, ...]
"""A schema of Avro, as the data of its JSON text."""


_ID = re.compile(r"[0-9]{1,10}", re.ASCII)


def _is_id(text: str) -> bool:
    """Return whether a text is the id of a schema: a whole number of 32 bits."""
    return _ID.fullmatch(text) is not None and int(text) < 1 << 32


def _check_schema(value: object) -> object:
    if not isinstance(value, str | dict | tuple):
        raise ValueError("a schema is the name of a file, or a mapping or a list as in such a file")
    return value


def _check_schemas(value: object) -> object:
    if isinstance(value, dict):
        if odd := [key for key in value if not _is_id(str(key))]:
            raise ValueError(f"{odd[0]!r} is no id of a schema. Ids are whole numbers, in quotes")
        if odd := [key for key, schema in value.items() if not isinstance(schema, dict | tuple)]:
            raise ValueError(f"the schema of {odd[0]} is no mapping and no list")
    elif not isinstance(value, str):
        raise ValueError("schemas are the name of a folder, or a mapping of ids to schemas")
    return value


class ValuesConfig(Model):
    """How the values of a stream's messages are written."""

    format: Annotated[ValueFormat, Field(strict=False)] = ValueFormat.JSON
    """`json`, or `avro`, which needs one of schema and schemas."""
    schema_: Annotated[str | Schema | None, BeforeValidator(_check_schema), Field(alias="schema")] = None
    """The schema of all values: the name of its file in the config folder, or the schema itself."""
    schemas: Annotated[str | dict[str, Schema] | None, BeforeValidator(_check_schemas)] = None
    """The schemas of values that begin with their schema's id, as serialisers with a schema registry
    write them: the name of a folder in the config folder with a file ID.avsc for each, or the
    schemas themselves by id."""

    @model_validator(mode="after")
    def _check_format(self) -> Self:
        given = [name for name, value in (("schema", self.schema_), ("schemas", self.schemas)) if value is not None]
        if self.format is ValueFormat.JSON and given:
            raise ValueError(f"{given[0]} is for values of Avro. Write format: avro")
        if self.format is ValueFormat.AVRO and len(given) != 1:
            raise ValueError("format avro needs exactly one of schema and schemas")
        return self

    @property
    def is_framed(self) -> bool:
        """Whether each value begins with the id of its schema."""
        return self.schemas is not None

    @property
    def types(self) -> dict[int, Type]:
        """The schemas by id, parsed; a schema for all values has the id 0. Empty for JSON.

        Raises SchemaError. Schemas that files name are read by `read_schemas` first.
        """
        if isinstance(self.schemas, dict):
            return {int(id): parse_schema(schema) for id, schema in self.schemas.items()}
        return {0: parse_schema(self.schema_)} if self.schema_ is not None else {}


def read_schemas(values: ValuesConfig, folder: FilePath) -> ValuesConfig:
    """Return the format with the contents of the files that it names in place of their names, all
    of them parsed once. `folder`: from which on the names count.

    Raises SchemaError with the name of the file.
    """
    if isinstance(values.schema_, str):
        values = values.model_copy(update={"schema_": _read_file(folder / values.schema_)})
    elif isinstance(values.schemas, str):
        values = values.model_copy(update={"schemas": _read_folder(folder / values.schemas)})
    _ = values.types
    return values


def _read_folder(folder: FilePath) -> dict[str, Schema]:
    if not folder.is_dir():
        raise SchemaError(f"there is no folder {folder}")
    found = {}
    for file in sorted(folder.glob(f"*{SCHEMA_SUFFIX}")):
        if not _is_id(file.stem):
            raise SchemaError(f"{file} is not named by the id of a schema. Rename it, such as 7{SCHEMA_SUFFIX}")
        found[file.stem] = _read_file(file)
    if not found:
        raise SchemaError(f"{folder} has no file ID{SCHEMA_SUFFIX}, such as 7{SCHEMA_SUFFIX}")
    return found


def _read_file(file: FilePath) -> Schema:
    try:
        schema = json.loads(file.read_bytes())
    except OSError as error:
        raise SchemaError(f"{file} cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise SchemaError(f"{file}:{error.lineno}:{error.colno} is not JSON: {error.msg}") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise SchemaError(f"{file} is not JSON: {error}") from error
    try:
        parse_schema(schema)
    except SchemaError as error:
        raise SchemaError(f"{file}: {error}") from error
    return tuple(schema) if isinstance(schema, list) else schema  # type: ignore[no-any-return]


def check_field(types: dict[int, Type], field: RecordField, kind: str = "") -> Iterator[tuple[Path, str]]:
    """Yield what is wrong with a field of the values, if there is something: at () if no schema has
    it, at ("type",) if it is never of the property type `kind`.
    """
    found: list[Type] = []
    reason = ""
    for id in sorted(types):
        try:
            found += find_types(types[id], field.path)
        except SchemaError as error:
            reason = str(error)
    readings = list(dict.fromkeys(reading for type in found for reading in find_readings(type)))
    if not found:
        yield (), f"found {str(field)!r}, but {reason}" + (" (of the latest schema)" if len(types) > 1 else "")
    elif kind and kind not in readings:
        titles = " or ".join(dict.fromkeys(type.title for type in found))
        yield ("type",), f"is {kind}, but {field.name} is {titles}. It can be read as {', '.join(readings)}"
