"""The project's own source as trees: which modules there are, and what they import."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import overlay

REPOSITORY = Path(overlay.__file__).parents[1]


@cache
def parse(path: Path) -> ast.Module:
    """Parse a module. `ast.parse` raises SystemError if the collector runs meanwhile and a finalizer parses as well, which
    writing a traceback does (Python 3.11)."""
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        gc.enable()


def list_modules(*folders: str) -> dict[str, Path]:
    """Return the modules in folders of the repository, by name. A package has the name of its folder."""
    modules = {}
    for path in sorted(path for folder in folders for path in (REPOSITORY / folder).rglob("*.py")):
        parts = path.relative_to(REPOSITORY).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def list_imported(path: Path) -> Iterator[tuple[str, str]]:
    """Yield what a file imports, wherever in it: the full name of a module, and the name taken from it, empty for none."""
    package = path.relative_to(REPOSITORY).parent.parts
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((module, alias.name) for alias in node.names)
