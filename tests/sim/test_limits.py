"""Limits that a history makes small are small for the code that reads them."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

import overlay

from .limits import RECORD_CACHE, SMALL
from .world import LIMITS

ROOM = Path(overlay.__file__).parent


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def list_early(module: ast.Module) -> Iterator[ast.AST]:
    """Yield what is evaluated when a module is imported, and not when it runs: defaults of arguments and of fields."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from node.args.defaults
            yield from filter(None, node.args.kw_defaults)
        elif isinstance(node, ast.ClassDef):
            yield from (each.value for each in node.body if isinstance(each, ast.AnnAssign) and each.value)


def _name(path: Path, name: str) -> str:
    """Return the full name of a constant."""
    return ".".join((*path.relative_to(ROOM.parent).with_suffix("").parts, name))


@pytest.mark.parametrize("limit", sorted({*SMALL, *LIMITS} - {RECORD_CACHE}))
def test_a_limit_is_read_where_it_is_changed(limit: str) -> None:
    """Not as the default of an argument, and not under a name that another module of the service has imported, unless that one
    has a limit of its own."""
    module, _, name = limit.rpartition(".")
    path = ROOM.parent.joinpath(*module.split(".")).with_suffix(".py")
    early = [node for default in list_early(parse(path)) for node in ast.walk(default)]
    assert not [node.lineno for node in early if isinstance(node, ast.Name) and node.id == name]
    copies = [
        other
        for other in ROOM.rglob("*.py")
        if "client" not in other.parts and _name(other, name) not in SMALL
        for node in ast.walk(parse(other))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").split(".")[-1] == module.split(".")[-1]
        and name in {alias.name for alias in node.names}
    ]
    assert not copies
