"""Every name of overlay/ and spark/ is used by overlay/, spark/ or bench/: what only tests use is not there.

A name of a module counts as used where the module itself or one that imports it loads it. A method or a field counts as used
where any module loads an attribute of its name. So a method may hide behind another of the same name; what is found is unused.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pytest

from tests.support.source import REPOSITORY, list_imported, list_modules, parse

DOCUMENTED = {
    "overlay.client.client.Client.ordered": "docs/client.md",
    "overlay.client.client.Client.read_async": "docs/reading.md",
    "overlay.client.control.control.Control.in_progress": "docs/client.md",
    "overlay.client.read.reading.Reading.to_table": "docs/reading.md",
    "overlay.client.subscribe.message.AsyncMessage.ack_sync": "docs/client.md",
    "overlay.client.subscribe.message.AsyncMessage.in_progress": "docs/client.md",
    "overlay.client.subscribe.message.Message.ack_sync": "docs/client.md",
    "overlay.client.subscribe.message.Message.in_progress": "docs/client.md",
    "overlay.client.subscribe.pulling.PullConsumer.fetch_async": "docs/client.md",
    "overlay.faust.message.AgentMessage.content": "docs/faust.md",
    "overlay.faust.topic.agent_topic": "docs/faust.md",
    "spark.acks.ack": "docs/spark.md",
    "spark.acks.nak": "docs/spark.md",
    "spark.acks.term": "docs/spark.md",
    "spark.counts.explain_counts": "docs/spark-source.md",
    "spark.columns.find_in_envelope": "docs/spark-source.md",
    "spark.columns.to_column": "docs/spark-source.md",
    "spark.source.read_stream_consumer": "docs/spark.md",
}
"""What programs of users call, and the page that says so."""
KEPT = {
    "overlay.client.control.consumer_info.ConsumerInfo._repr_html_": "notebooks call it",
    "overlay.client.read.reading.Reading._repr_html_": "notebooks call it",
    "overlay.client.subscribe.message.Delivered._repr_html_": "notebooks call it",
    "overlay.load_ipython_extension": "IPython calls it for `%load_ext overlay`",
    "overlay.client.subscribe.order.OrderState.renewals": "applications read it as `messages.state`",
    "overlay.kernels.Kernel._numba_type_": "numba asks an object for its type by this name",
    "overlay.local.broker.Broker.restart": "the embedded Kafka is there for tests",
    "overlay.local.node.plan_cluster": "the embedded Kafka is there for tests",
}
"""What stays, with the reason."""

FOLDERS = ("overlay", "spark")
GRAMMAR = REPOSITORY / "overlay" / "filter" / "grammar.lark"
"""Its rules are methods of the class that builds trees."""
REGISTRARS = {"command", "group", "register", "field_validator", "model_validator"}
"""Decorators that hand a function to a library, which calls it."""
PLAIN = {"Protocol", "Generic", "ABC", *vars(builtins)}
"""Bases from elsewhere that use only special methods of a class. Others may use any: a library calls its callbacks."""
FIELDS = {"Enum", "StrEnum", "IntEnum", "IntFlag", "NamedTuple", "TypedDict", "BaseModel"}
"""Bases that find fields by value, place or name, and call no methods."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef | ast.Assign | ast.AnnAssign


def list_definitions(body: Iterable[ast.stmt]) -> Iterator[tuple[str, Definition]]:
    """Yield the names that the statements of a module or a class define. Names of one assignment count as one, the first."""
    for node in body:
        if isinstance(node, Function | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node
        elif isinstance(node, ast.Assign):
            yield from ((target.id, node) for target in node.targets if isinstance(target, ast.Name))


def list_decorators(node: Definition) -> set[str]:
    """Return the last words of a definition's decorators."""
    decorators = [] if isinstance(node, ast.Assign | ast.AnnAssign) else node.decorator_list
    called = [each.func if isinstance(each, ast.Call) else each for each in decorators]
    return {ast.unparse(each).rpartition(".")[2] for each in called}


def list_bases(node: ast.ClassDef) -> set[str]:
    """Return the bases of a class, without what they are of."""
    return {ast.unparse(base).partition("[")[0] for base in node.bases}


def count_names(node: ast.AST) -> Counter[str]:
    """Count the plain names that a tree loads."""
    return Counter(each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load))


def count_attributes(node: ast.AST) -> Counter[str]:
    """Count the attributes that a tree loads, also by patterns and by names in strings."""
    found = Counter[str]()
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load):
            found[each.attr] += 1
        elif isinstance(each, ast.MatchClass):
            found.update(each.kwd_attrs)
        elif isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value.isidentifier():
            found[each.value] += 1
    return found


@dataclass
class Source:
    """The trees of all modules. `folders`: whose definitions are judged; all modules count as users."""

    modules: Mapping[str, Path]
    folders: tuple[str, ...]
    importers: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """By module and name, the modules that take the name from there; an empty name for the module as a whole."""

    def __post_init__(self) -> None:
        for name, path in self.modules.items():
            for module, taken in list_imported(path):
                whole = f"{module}.{taken}" if taken else module
                if whole in self.modules:
                    self.importers.setdefault((whole, ""), set()).add(name)
                # also then: a package may pass on a name that is called as one of its modules
                self.importers.setdefault((module, taken), set()).add(name)

    @cached_property
    def attributes(self) -> Counter[str]:
        """How often each attribute is loaded."""
        return sum((count_attributes(parse(path)) for path in self.modules.values()), Counter[str]())

    @cached_property
    def classes(self) -> dict[str, list[tuple[Path, ast.ClassDef]]]:
        """All classes of the project by name."""
        found: dict[str, list[tuple[Path, ast.ClassDef]]] = {}
        for path in self.modules.values():
            for node in ast.walk(parse(path)):
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, []).append((path, node))
        return found

    def find_roots(self, path: Path, node: ast.ClassDef) -> set[str]:
        """Return the last words of the bases that a class has from elsewhere, by itself or by its bases."""
        outside = {taken for module, taken in list_imported(path) if module not in self.modules}
        found = set[str]()
        for base in list_bases(node):
            if base in outside or base not in self.classes:
                found.add(base.rpartition(".")[2])
            else:
                found |= {root for place in self.classes[base] for root in self.find_roots(*place)}
        return found

    def find_unused(self) -> Iterator[str]:
        """Yield the full names that nothing uses."""
        for name, path in self.modules.items():
            if name.split(".")[0] in self.folders:
                yield from self._find_in_module(name, parse(path))

    def _find_in_module(self, module: str, tree: ast.Module) -> Iterator[str]:
        loaded = count_names(tree)
        for name, node in list_definitions(tree.body):
            within = count_names(node)[name] if isinstance(node, Function | ast.ClassDef) else 0
            is_told = list_decorators(node) & REGISTRARS or name.startswith("__")
            if not is_told and loaded[name] == within and not self._is_taken(module, name):
                yield f"{module}.{name}"
        for each in ast.walk(tree):
            if isinstance(each, ast.ClassDef):
                roots = self.find_roots(self.modules[module], each)
                yield from (f"{module}.{each.name}.{name}" for name in self._find_in_class(each, roots))

    def _is_taken(self, module: str, name: str) -> bool:
        """Return whether another module uses a name of this one. A package that only passes it on is not a user."""
        for user in self.importers.get((module, name), ()):
            is_package = self.modules[user].name == "__init__.py"
            passes_on = is_package and not count_names(parse(self.modules[user]))[name]
            if not passes_on or self._is_taken(user, name):
                return True
        users = self.importers.get((module, ""), ())
        return any(count_attributes(parse(self.modules[user]))[name] for user in users)

    def _find_in_class(self, node: ast.ClassDef, roots: set[str]) -> Iterator[str]:
        if roots - PLAIN - FIELDS:
            return
        for name, each in list_definitions(node.body):
            is_function = isinstance(each, Function)
            is_found = bool(roots & FIELDS) and not is_function
            is_told = name.startswith("__") or name == "_" or list_decorators(each) & REGISTRARS or name in RULES
            within = count_attributes(each)[name] if is_function else 0
            if not is_found and not is_told and self.attributes[name] == within:
                yield name


RULES = set(re.findall(r"\w+", GRAMMAR.read_text(encoding="utf-8")))


def find_unused() -> set[str]:
    return set(Source(list_modules(*FOLDERS, "bench"), FOLDERS).find_unused())


def test_nothing_is_there_that_only_tests_use() -> None:
    assert find_unused() == DOCUMENTED.keys() | KEPT.keys()


@pytest.mark.parametrize("name", DOCUMENTED)
def test_what_users_call_is_documented(name: str) -> None:
    text = (REPOSITORY / DOCUMENTED[name]).read_text(encoding="utf-8")
    assert re.search(rf"\b{name.rpartition('.')[2]}\b", text)


MODULE = """
from enum import Enum

from .other import taken

LIMIT, _SPARE = 1, 2

class Colour(Enum):
    RED = 1

class Used:
    field: int
    lost: int

    def call(self):
        return self.field + LIMIT

    def spare(self):
        return self.spare()

def recurse():
    return recurse()

def passed_on():
    return Used().call(), taken, Colour
"""


def test_unused_names_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.source.REPOSITORY", tmp_path)
    (tmp_path / "p").mkdir()
    texts = {
        "__init__": "from .namesake import namesake\nfrom .used import passed_on, recurse",
        "used": MODULE,
        "other": "taken = spare_too = 1",
        "namesake": "def namesake():\n    return 1",
        "user": "from p import namesake\nnamesake()",
    }
    modules = {}
    for name, text in texts.items():
        path = tmp_path / "p" / f"{name}.py"
        path.write_text(text)
        modules["p" if name == "__init__" else f"p.{name}"] = path
    assert set(Source(modules, ("p",)).find_unused()) == {
        *("p.other.spare_too", "p.used.Used.lost", "p.used.Used.spare", "p.used.passed_on", "p.used.recurse"),
    }
