"""Pydantic's errors translated to config errors.

Each one names the file, and as far as they apply line, column and field, the value found and the values allowed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from overlay.errors import ConfigError

from .codes import ERRORS
from .consumer import JETSTREAM_FIELDS, ConsumerConfig
from .document import Document, Path, is_secret, show_path
from .model import describe_fields
from .service import KafkaProperties, ServiceConfig
from .suggestion import suggest, suggest_name

_HIDDEN = "a value that is not shown here"
_USER_OF_URL = re.compile(r"(?<=://)[^/@\s]*@")
_KINDS = {
    "string_type": "a text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}

M = TypeVar("M", bound=BaseModel)


def validate(model: type[M], document: Document) -> tuple[M | None, tuple[ConfigError, ...]]:
    """Return the model of a document and (), or None and all errors that pydantic finds."""
    try:
        return model.model_validate(document.data), ()
    except ValidationError as error:
        errors = error.errors(include_url=False)
        unknown = [found["loc"] for found in errors if found["type"] == "extra_forbidden"]
        told = [
            found for found in errors if not (found["type"] == "missing" and _is_meant(model, found["loc"], unknown))
        ]
        return None, tuple(_translate(model, document, found) for found in told)


def _is_meant(model: type[BaseModel], missing: Path, unknown: Iterable[Path]) -> bool:
    """Return whether the error of one of these unknown fields suggests the missing one, which then needs no error of its
    own.
    """
    beside = (path for path in unknown if path[:-1] == missing[:-1])
    return any(_word_unknown(model, path).endswith(f" Did you mean {missing[-1]}?") for path in beside)


def _translate(model: type[BaseModel], document: Document, found: ErrorDetails) -> ConfigError:
    path = _trim(document, found)
    message, key = _word(model, document, path, found)
    code = _code(model, path)
    if code is not None:
        message += f" (JetStream {ERRORS[code].label})"
    return ConfigError(document.place(path, key=key), message, field=show_path(path), code=code)


def _trim(document: Document, found: ErrorDetails) -> Path:
    """Return the steps of pydantic's path that lead to a value of the file, without the others. For a missing or an
    unknown field the path is returned as it is.

    Pydantic's path also names branches of unions, which are in no file.
    """
    if found["type"] in ("missing", "extra_forbidden"):
        return found["loc"]
    path: Path = ()
    for step in found["loc"]:
        if (*path, step) in document.values:
            path = (*path, step)
    return path


def _code(model: type[BaseModel], path: Path) -> int | None:
    """Return 10025, as servers answer ill-formed configs, for an error in a consumer's file, one about an unknown
    field too. None for an error in a field that only the overlay has, and in other files.
    """
    own = path and path[0] in ConsumerConfig.model_fields and path[0] not in JETSTREAM_FIELDS
    return 10025 if model is ConsumerConfig and not own else None


def _word(model: type[BaseModel], document: Document, path: Path, found: ErrorDetails) -> tuple[str, bool]:
    """Return the message of an error, and whether its place is that of the key instead of the
    value.
    """
    kind = found["type"]
    context: Mapping[str, Any] = found.get("ctx") or {}
    # errors about the key
    if kind == "extra_forbidden":
        return _word_unknown(model, path), True
    if kind == "missing":
        return "is missing. Add it" + _describe(model, path), False
    # errors about the value: its type, a word that is not allowed, a rule of the model
    is_text = isinstance(found["input"], str) and _KINDS.get(kind) == "a mapping"
    value = _show(path, found["input"], is_open=model is not ServiceConfig, is_text=is_text)
    if kind in _KINDS:
        hint = ""
        if kind == "string_type" and isinstance(found["input"], int | float):
            hint = " Put it in quotes"
        return f"found {value}, wants {_KINDS[kind]}.{hint or ' Change the value'}", False
    if kind in ("enum", "literal_error"):
        allowed = _allowed(str(context["expected"]))
        near = suggest(found["input"], allowed) if isinstance(found["input"], str) else ""
        return f"found {value}, allowed are {', '.join(allowed)}.{near}", False
    if kind == "value_error":
        return f"found {value}: {context['error']}", False
    return f"found {value}: {_lower(found['msg'])}", False


def _word_unknown(model: type[BaseModel], path: Path) -> str:
    owner = find_model(model, path[:-1])
    known = [info.alias or name for name, info in owner.model_fields.items()] if owner else []
    near = suggest_name(str(path[-1]), known)
    why = " (only properties that reach every client in use are taken)" if owner is KafkaProperties else ""
    return f"is not a known field{why}.{near or ' Known are ' + ', '.join(known)}"


def _describe(model: type[BaseModel], path: Path) -> str:
    """Return `: ` and the description of a missing field, which is the docstring of the model's
    field; "" if it has none.
    """
    owner = find_model(model, path[:-1])
    if owner is None:
        return ""
    for name, info in owner.model_fields.items():
        if (info.alias or name) == path[-1] and (text := describe_fields(owner).get(name)):
            return f": {text.rstrip('.')}"
    return ""


def _allowed(expected: str) -> list[str]:
    """Return the allowed words from the `expected` text of pydantic's error."""
    words = [word.strip(" '") for word in expected.replace(" or ", ", ").split(",") if word.strip()]
    return ["true" if word == "True" else word for word in words]


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _show(path: Path, value: object, *, is_open: bool, is_text: bool) -> str:
    """Return a value in YAML flow style, with secrets hidden and long values cut.

    Unless `is_open`, as in overlay.yaml, only single values are shown: the name of a secret among others may be misspelt.
    `is_text`: whether the value is a text in place of a mapping, which may have lines with secrets.
    """
    if is_secret(path[-1:]):
        return _HIDDEN
    if value is None:
        return "nothing"
    if isinstance(value, dict) and (not is_open or "kafka" in value):
        return "a mapping"
    if not is_open and isinstance(value, tuple):
        return "a list"
    if not is_open and is_text:
        return "a text"
    text = json.dumps(_hide(value), ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def _hide(value: object) -> object:
    """Return a value without what is under the names of secrets in it, and without users and passwords in URLs."""
    if isinstance(value, str):
        return _USER_OF_URL.sub("***@", value)
    if isinstance(value, dict):
        return {key: _HIDDEN if is_secret((key,)) else _hide(part) for key, part in value.items()}
    return tuple(map(_hide, value)) if isinstance(value, list | tuple) else value


def find_model(model: Any, path: Path) -> type[BaseModel] | None:
    """Return the model for `path` in a file of `model`; for a list or mapping, the model of its
    items.

    A step that names no field (an index, a key of a mapping, an unknown name) changes nothing.
    Returns None if the last field found holds no model, such as a text.
    """
    for step in path:
        candidates = list(_models(model))
        model = next((info.annotation for kind in candidates for info in _fields(kind, step)), model)
    return next(_models(model), None)


def _fields(kind: type[BaseModel], step: str | int) -> Iterator[Any]:
    for name, info in kind.model_fields.items():
        if step in (name, info.alias):
            yield info


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) is not None:
        for part in get_args(annotation):
            yield from _models(part)
