"""A mutant: the product with one fault, made in memory as its modules are imported.

A change names a module and the lines that it replaces. The text has to be in the module exactly once, so that a mutant of
code that has changed since is an error, and never a product without a fault.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

ROOT = Path(__file__).resolve().parents[3]


class Stale(Exception):
    """The text that a change replaces is not in its module, or is there more than once."""


@dataclass(frozen=True, slots=True)
class Change:
    """Lines of a module and what takes their place."""

    module: str
    before: str
    after: str

    @property
    def path(self) -> Path:
        """The module's file."""
        return ROOT.joinpath(*self.module.split(".")).with_suffix(".py")

    def apply(self, source: str) -> str:
        """Return the changed source. Raises Stale."""
        if (count := source.count(self.before)) != 1:
            raise Stale(f"{self.module} has {count} times, not once:\n{self.before}")
        return source.replace(self.before, self.after)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault of the product. `about`: which mend it takes out, or which fault it plants, and what that leads to."""

    name: str
    about: str
    changes: tuple[Change, ...]
    mend: str = ""
    """The commit of this repository that mended the fault; empty if the fault is planted by hand."""
    history: str = ""
    """The scripted history that finds it, as pytest names it below tests/sim; empty for one that seeds draw."""
    waits_for: str = ""
    """What is missing until a history finds it; such a mutant is held to fit the source, and looked for only by name."""

    def read(self) -> dict[str, str]:
        """Return the changed sources by module. Raises Stale."""
        sources: dict[str, str] = {}
        for change in self.changes:
            source = sources.get(change.module)
            sources[change.module] = change.apply(change.path.read_text(encoding="utf-8") if source is None else source)
        return sources

    def install(self) -> None:
        """Have this process import the changed modules. Raises Stale, and RuntimeError if it has one of them already."""
        sources = self.read()
        if known := sorted(sources.keys() & sys.modules.keys()):
            raise RuntimeError(f"imported before they could be changed: {', '.join(known)}")
        sys.meta_path.insert(0, _Finder(sources))


@dataclass(slots=True)
class _Finder(MetaPathFinder):
    """Finds the modules that are changed."""

    sources: dict[str, str]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.sources:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self.sources[fullname])
        return spec


class _Loader(SourceFileLoader):
    """Compiles a changed source, and leaves no bytecode behind that another process could take for the product's."""

    def __init__(self, fullname: str, path: str, source: str) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        """Return the changed module's code."""
        code: CodeType = compile(self._source, self.path, "exec", dont_inherit=True)
        return code
