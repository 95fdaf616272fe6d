"""The format of a stream's values, as its file declares it, with the schemas that it names."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path as FilePath
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from overlay import avro, protobuf
from overlay.avro import Type, find_types, parse_schema
from overlay.errors import SchemaError
from overlay.field import Field as RecordField
from overlay.protobuf import Message, find_field, parse_descriptors

from .document import Path
from .model import Model
from .registry import RegistryConfig
from .schema_book import SchemaBook

SCHEMA_SUFFIX = ".avsc"
MOST_NESTED = 200
"""Most brackets of a schema within each other. pydantic writes no config with more than some 250."""


class ValueFormat(StrEnum):
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


SUFFIXES = {ValueFormat.AVRO: SCHEMA_SUFFIX, ValueFormat.PROTOBUF: ".desc"}
_COMPILED = "file_descriptor_set"
"""The member of a schema of Protobuf that has the contents of its file, as Base64."""

Schema = dict[str, Any] | tuple[Any, ...]
"""A schema: of Avro as the data of its JSON text, of Protobuf as a mapping with _COMPILED."""
Find = Callable[[Sequence[str]], Iterable[tuple[str, tuple[str, ...]]]]
"""Returns the types that a path leads to in one type of values: what messages call each, and what it can be read
as. Raises SchemaError if there is none."""


_ID = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


def _is_id(text: str) -> bool:
    """Return whether a text is the id of a schema: a decimal number from 0 to 2^32 - 1 without leading zeros."""
    return _ID.fullmatch(text) is not None and int(text) < 1 << 32


def _check_schema(value: object) -> object:
    if value is not None and not isinstance(value, str | dict | tuple):
        raise ValueError("a schema is the name of a file, or a mapping or a list as in such a file")
    return value


def _check_schemas(value: object) -> object:
    if isinstance(value, dict):
        if odd := [key for key in value if not _is_id(str(key))]:
            raise ValueError(f"{odd[0]!r} is no id of a schema. Ids are whole numbers, in quotes")
        if odd := [key for key, schema in value.items() if not isinstance(schema, dict | tuple)]:
            raise ValueError(f"the schema of {odd[0]} is no mapping and no list")
    elif value is not None and not isinstance(value, str):
        raise ValueError("schemas are the name of a folder, or a mapping of ids to schemas")
    return value


class ValuesConfig(Model):
    """How the values of a stream's messages are written."""

    format: Annotated[ValueFormat, Field(strict=False)] = ValueFormat.JSON
    """`json`; or `avro` or `protobuf`, which need one of schema, schemas and registry."""
    schema_: Annotated[str | Schema | None, BeforeValidator(_check_schema), Field(alias="schema")] = None
    """The schema of all values: the name of its file in the config folder, or the schema itself."""
    message: str = ""
    """With a schema of Protobuf: the full name of the message that the values are; may be left out if it has one."""
    schemas: Annotated[str | dict[str, Schema] | None, BeforeValidator(_check_schemas)] = None
    """The schemas of values that begin with their schema's id, as serialisers with a schema registry
    write them: the name of a folder in the config folder with a file for each (ID.avsc or ID.desc), or
    the schemas themselves by id. With a registry: the folder in which its schemas are kept."""
    registry: RegistryConfig | None = None
    """The schema registry that is asked for the schemas of values that begin with their schema's id."""
    _book: SchemaBook | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _check_format(self) -> Self:
        places = (("schema", self.schema_), ("schemas", self.schemas), ("registry", self.registry))
        given = [name for name, value in places if value is not None]
        if self.format is ValueFormat.JSON and given:
            raise ValueError(f"{given[0]} is for values of another format. Write format: avro, or format: protobuf")
        if self.format is not ValueFormat.JSON and (not given or ("schema" in given and len(given) > 1)):
            raise ValueError(f"format {self.format} needs exactly one of schema and schemas, or a registry")
        if self.registry is not None and isinstance(self.schemas, dict):
            raise ValueError("schemas beside a registry is the folder that keeps them. Name one, or leave it out")
        if self.message and (self.format is not ValueFormat.PROTOBUF or self.is_framed):
            raise ValueError("message goes with format: protobuf and a schema. Leave it out")
        if self.registry is not None:
            self._book = SchemaBook({}, None)
        return self

    @property
    def is_framed(self) -> bool:
        """Whether each value begins with the id of its schema."""
        return self.schemas is not None or self.registry is not None

    @property
    def place(self) -> str:
        """The field of the stream's file that says where the schemas are."""
        return "schema" if not self.is_framed else "schemas" if self.schemas is not None else "registry"

    @property
    def book(self) -> SchemaBook | None:
        """The schemas that are known so far of a stream with a registry; None without one."""
        return self._book

    @property
    def types(self) -> dict[int, Type]:
        """The schemas of Avro by id, parsed; a schema for all values has the id 0.

        Raises SchemaError. If the config names files, replace their names by their contents with `read_schemas`
        first.
        """
        return {id: parse_schema(schema) for id, schema in self._list_schemas()}

    @property
    def messages(self) -> dict[int, list[tuple[tuple[int, ...], Message]]]:
        """The message types of Protobuf by the id of their schema, with the indexes by which serialisers name them. A
        schema for all values has the id 0 and one type, whose indexes are given as (0,).

        Raises SchemaError.
        """
        if self.is_framed:
            return {id: list_messages(schema) for id, schema in self._list_schemas()}
        found = {id: parse_descriptors(_decompose(schema)) for id, schema in self._list_schemas()}
        return {id: [((0,), each.find_message(self.message))] for id, each in found.items()}

    def _list_schemas(self) -> Iterator[tuple[int, object]]:
        if self._book is not None:
            yield from self._book.known.items()
        elif isinstance(self.schemas, dict):
            yield from ((int(id), schema) for id, schema in self.schemas.items())
        elif self.schema_ is not None:
            yield 0, self.schema_

    def make_finders(self) -> list[Find]:
        """Return a finder for each type of values, by rising id of its schema; none for JSON, and none if a registry
        has them all. Of a Protobuf schema with several message types, the first comes last.

        Raises SchemaError.
        """
        match self.format:
            case ValueFormat.AVRO:
                return [partial(_find_avro, type) for _, type in sorted(self.types.items())]
            case ValueFormat.PROTOBUF:
                found = [message for _, places in sorted(self.messages.items()) for _, message in reversed(places)]
                if not found and self.registry is None:
                    raise SchemaError("the schemas define no message at the top level of their files")
                return [partial(_find_protobuf, message) for message in found]
            case _:
                return []

    def compile_programs(self, fields: Iterable[RecordField]) -> None:
        """Check that the programs which find these fields in the values can be compiled, as the scan does at its
        start. They are not kept. JSON needs none.

        Raises SchemaError if a schema is too large for that, or cannot be parsed.
        """
        # only here: most folders have no schemas, and commands that load them need no numpy
        from overlay.scan.avro.program import compile_program as compile_avro
        from overlay.scan.plan import make_plan
        from overlay.scan.protobuf.program import compile_program as compile_protobuf

        paths = make_plan(fields).paths
        if self.format is ValueFormat.AVRO:
            compile_avro(self.types, paths, is_framed=self.is_framed)
        elif self.format is ValueFormat.PROTOBUF:
            compile_protobuf(self.messages, paths, is_framed=self.is_framed)


def list_messages(schema: object) -> list[tuple[tuple[int, ...], Message]]:
    """Return the message types of a schema of Protobuf, with the indexes by which serialisers name them. Raises
    SchemaError if it cannot be used.
    """
    return parse_descriptors(_decompose(schema)).list_places()


def _find_avro(root: Type, path: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    return [(type.title, avro.find_readings(type)) for type in find_types(root, path)]


def _find_protobuf(root: Message, path: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    found = find_field(root, path)
    return [(found.title, protobuf.find_readings(found))]


def _decompose(schema: object) -> bytes:
    """Return the bytes of the compiled .proto file (a FileDescriptorSet) that a schema of Protobuf has as Base64.
    Raises SchemaError if `schema` is no mapping with such a member, or if that is no Base64.
    """
    coded = schema.get(_COMPILED) if isinstance(schema, Mapping) else None
    if not isinstance(coded, str):
        raise SchemaError(
            f"a schema of Protobuf is the name of a file, or {{{_COMPILED}: TEXT}} with the file in Base64"
        )
    try:
        return base64.b64decode(coded, validate=True)
    except ValueError as error:
        raise SchemaError(f"{_COMPILED} is not Base64: {error}") from error


def read_schemas(values: ValuesConfig, folder: FilePath) -> ValuesConfig:
    """Return the format with the contents of the files that it names in place of their names. All its schemas, those
    in the stream's file too, are parsed as a check. `folder`: that of overlay.yaml, to which the names are relative.

    Raises SchemaError, with the name of the file or folder if that cannot be read or parsed.
    """
    if values.registry is not None:
        return _open_book(values, folder)
    if isinstance(values.schema_, str):
        values = values.model_copy(update={"schema_": _read_file(values.format, folder / values.schema_)})
    elif isinstance(values.schemas, str):
        values = values.model_copy(update={"schemas": _read_folder(values.format, folder / values.schemas)})
    values.make_finders()
    return values


def _open_book(values: ValuesConfig, folder: FilePath) -> ValuesConfig:
    """Return the format with a book that has the schemas of the files in its folder, if it names one; there need be
    none. The schemas are no part of the config, so a new one is no change of it. Raises SchemaError.
    """
    if not isinstance(values.schemas, str):
        return values
    place = folder / values.schemas
    files = _read_files(values.format, place) if place.is_dir() else {}
    copy = values.model_copy()
    copy._book = SchemaBook({int(id): schema for id, schema in files.items()}, place)
    copy.make_finders()
    return copy


def _read_folder(format: ValueFormat, folder: FilePath) -> dict[str, Schema]:
    if not folder.is_dir():
        raise SchemaError(f"there is no folder {folder}")
    found = _read_files(format, folder)
    if not found:
        suffix = SUFFIXES[format]
        raise SchemaError(f"{folder} has no file ID{suffix}, such as 7{suffix}")
    return found


def _read_files(format: ValueFormat, folder: FilePath) -> dict[str, Schema]:
    suffix = SUFFIXES[format]
    found = {}
    for file in sorted(folder.glob(f"*{suffix}")):
        if not _is_id(file.stem):
            raise SchemaError(f"{file} is not named by the id of a schema. Rename it, such as 7{suffix}")
        found[file.stem] = _read_file(format, file)
    return found


def _read_file(format: ValueFormat, file: FilePath) -> Schema:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise SchemaError(f"{file} cannot be read: {error.strerror}") from error
    try:
        return read_schema(format, data)
    except json.JSONDecodeError as error:
        raise SchemaError(f"{file}:{error.lineno}:{error.colno} is not JSON: {error.msg}") from error
    except SchemaError as error:
        raise SchemaError(f"{file}: {error}") from error
    except (ValueError, RecursionError) as error:
        # text that is no UTF-8, a number of too many digits, too many brackets
        raise SchemaError(f"{file} is not JSON that can be read: {error}") from error


def read_schema(format: ValueFormat, data: bytes) -> Schema:
    """Return the schema that a file with these bytes has. Raises SchemaError if it cannot be used, and ValueError or
    RecursionError if an Avro schema is no JSON that can be read.
    """
    return _read_avro(data) if format is ValueFormat.AVRO else _read_protobuf(data)


def _read_avro(data: bytes) -> Schema:
    schema: Any = json.loads(data)
    _check_nesting(schema)
    parse_schema(schema)
    # a schema that is the name of a type would be taken for the name of a file
    return schema if isinstance(schema, dict) else tuple(schema) if isinstance(schema, list) else {"type": schema}


def _check_nesting(schema: object) -> None:
    """Raise SchemaError if a schema of a file of its own is nested too deeply. Of one in a stream's file, the reader of
    YAML has counted the levels.
    """
    level = [schema]
    for _ in range(MOST_NESTED):
        if not level:
            return
        level = [
            part
            for each in level
            if isinstance(each, dict | list | tuple)
            for part in (each.values() if isinstance(each, dict) else each)
        ]
    if any(isinstance(each, dict | list | tuple) for each in level):
        raise SchemaError(f"the schema is nested too deeply: {MOST_NESTED} levels of brackets are the most")


def _read_protobuf(data: bytes) -> Schema:
    parse_descriptors(data)
    return {_COMPILED: base64.b64encode(data).decode()}


def check_field(finders: Iterable[Find], field: RecordField, kind: str = "") -> Iterator[tuple[Path, str]]:
    """Yield a path and a message if something is wrong with a field of the values, else nothing: path () if no type
    has it, ("type",) if it can never be read as the property type `kind`. With `kind` "" only the first is checked.
    `finders`: one for each type of values (`make_finders`), at least one.
    """
    found: dict[str, tuple[str, ...]] = {}
    reasons: list[str] = []
    for find in finders:
        try:
            found |= dict(find(field.path))
        except SchemaError as error:
            reasons.append(str(error))
    readings = list(dict.fromkeys(reading for each in found.values() for reading in each))
    if not found:
        yield (), f"found {str(field)!r}, but {reasons[-1]}" + (" (of the latest schema)" if len(reasons) > 1 else "")
    elif kind and kind not in readings:
        yield ("type",), f"is {kind}, but {field.name} is {' or '.join(found)}. It can be read as {', '.join(readings)}"
