"""Environment variables in overlay.yaml, written `${NAME}`, which keep secrets out of files."""

from __future__ import annotations

import re
from collections.abc import Mapping

from overlay.errors import ConfigError

from .document import Document, Path, cut_secret, is_secret, show_path

_VARIABLE = re.compile(r"\$\$\{|\$\{(?P<name>[^}]*)\}?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def fill_variables(document: Document, environment: Mapping[str, str]) -> Document:
    """Return the document with each `${NAME}` in a text replaced by the variable of `environment`, keys
    not included; `$${` is a literal `${`.

    Raises ConfigError if a variable is not set, or if `${` is followed by no name with a `}`.
    """
    data = {name: _fill(document, environment, (name,), value) for name, value in document.data.items()}
    return Document(document.file, data, document.values, document.keys)


def _fill(document: Document, environment: Mapping[str, str], path: Path, value: object) -> object:
    if isinstance(value, dict):
        return {name: _fill(document, environment, (*path, name), item) for name, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_fill(document, environment, (*path, at), item) for at, item in enumerate(value))
    if not isinstance(value, str):
        return value

    def replace(found: re.Match[str]) -> str:
        name = found["name"]
        if name is None:
            return "${"
        if not _NAME.fullmatch(name) or not found[0].endswith("}"):
            shown = "what follows ${" if is_secret(path) else found[0]
            message = f"{shown} names no environment variable. Write ${{NAME}}, or $${{ for a plain ${{"
        elif name in environment:
            return environment[name]
        else:
            message = f"the environment variable {name} is not set. Set it, or write the value here"
        raise ConfigError(document.place(path), message, field=show_path(cut_secret(path)))

    return _VARIABLE.sub(replace, value)
