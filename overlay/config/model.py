"""The base of all config models: frozen, strict about types, and without unknown fields.

The docstrings of fields become their descriptions in the JSON schemas (docs/schema) and in messages.
They are read from the sources when they are asked for: pydantic would parse the sources of all models
at each start. A model's are read once: a message of one line must not cost the parsing of a module.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections.abc import Mapping
from functools import cache
from textwrap import dedent
from types import MappingProxyType
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)


class Model(BaseModel):
    """Base of the config models. Sequences are tuples, so that a loaded config cannot change.

    A model's validator is built when it is first needed: most commands need few of the models.
    """

    model_config = ConfigDict(
        defer_build=True,
        frozen=True,
        strict=True,
        extra="forbid",
        arbitrary_types_allowed=True,
    )


@cache
def describe_fields(model: type[BaseModel]) -> Mapping[str, str]:
    """Return the docstrings of a model's fields, by the fields' names, with those of its bases."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if not issubclass(kind, Model) or kind is Model:
            continue
        (tree,) = ast.parse(dedent(inspect.getsource(kind))).body
        assert isinstance(tree, ast.ClassDef)
        for statement, following in itertools.pairwise(tree.body):
            match statement, following:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    found[name] = inspect.cleandoc(text)
    return MappingProxyType(found)


def check_topic(name: str) -> str:
    """Return `name` if Kafka accepts it as a topic name. Raises ValueError otherwise."""
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise ValueError("a Kafka topic name has 1 to 249 of the characters a-z A-Z 0-9 . _ - and is not . or ..")
    return name


def _write_scalar(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else value


TopicName = Annotated[
    str, AfterValidator(check_topic), Field(json_schema_extra={"pattern": r"^[a-zA-Z0-9._-]{1,249}$"})
]

Scalar = Annotated[str, BeforeValidator(_write_scalar), WithJsonSchema({"type": ["string", "integer", "boolean"]})]
"""A string that a file may write as a number or true/false: Kafka's property values are strings."""
