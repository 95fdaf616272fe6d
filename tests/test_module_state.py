"""State that all threads of a process share: objects of modules and classes that may change after they are imported.

The service runs kernels in threads, and a program may use the client library from several. So what a module owns is constant,
or it is listed below with the reason why threads may share it. Everything else belongs to an object that one thread uses at a
time.
"""

from __future__ import annotations

import ast
import dataclasses
import datetime
import enum
import importlib
import pathlib
import re
import struct
import threading
import types
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from functools import cache

import click
import numpy as np
import pyarrow as pa
import pytest

import overlay
import spark
from overlay.kernels import Kernel
from overlay.output.batch_builder import BatchBuilder
from overlay.scan import Decoder, make_plan
from overlay.scan.codec import Codec
from overlay.subject import Pattern

ROOTS = [pathlib.Path(str(package.__file__)).parent for package in (overlay, spark)]

SHARED = {
    "overlay.config.model.describe_fields": "cache has a lock of its own; mappings are read-only, and the same if made twice",
    "overlay.demo.service._OPENER": "urllib's opener: its handlers are set up at import, and opening changes nothing in it",
    "overlay.filter.arrow._compile_once": "lru_cache has a lock of its own; programs are frozen",
    "overlay.filter.arrow.programs._programs": "two threads that compile one node get equal programs, both valid",
    "overlay.filter.like.compile": "lru_cache has a lock of its own; patterns are frozen, and what they cache is constant",
    "overlay.kafka.message_headers._call": "a method's name; calling it changes nothing",
    "overlay.kafka.message_headers.left_out": "changed with _lock held",
    "overlay.filter.parse._load": "a parser that is made twice is the same; each parse has a state of its own",
    "overlay.index.ledger.ledger._NO_LOCK": "contextlib.nullcontext has no state",
    "overlay.scan.borrow.borrow": "what it makes at the first compilation, numba makes with its own lock held",
    "overlay.kernel_progress.progress": "two threads that look at the clock at once tell users twice, at worst",
    "overlay.kernels._stamp_file": "returns a string",
    "overlay.local.broker._children": "each use is one operation of a dict; the thread that removes a process waits for it",
    "overlay.logs._late": "set by a command before it opens threads; two threads that set logs up set up the same",
    "overlay.logs._open_nothing": "a file that takes whatever is written",
    "spark.interest._followed": "changed with _lock held",
    "spark.kept._kept": "changed with _lock held",
    "spark.kept.settle": "freezing objects twice is the same as once",
}
"""By full name: why threads may share it."""

ATOMS = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    range,
    enum.Enum,
    np.generic,
    np.dtype,
    re.Pattern,
    struct.Struct,
    datetime.datetime,
    datetime.timezone,
    pathlib.PurePath,
    # code and types
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ModuleType,
    Kernel,
    # Arrow's types and scalars cannot change
    pa.DataType,
    pa.Schema,
    pa.Scalar,
    # commands and their parameters are set up by decorators and never changed
    click.Command,
)
STATELESS_MODULES = ("typing", "types", "collections.abc", "__future__", "pyspark.sql.types")
LOCKS = (type(threading.Lock()), type(threading.RLock()))
MAKERS = (
    "dict",
    "list",
    "set",
    "bytearray",
    "defaultdict",
    "deque",
    "Counter",
    "OrderedDict",
    "Decoder",
    "Press",
    "Arena",
)
CHANGING = {
    *(
        "append",
        "extend",
        "insert",
        "remove",
        "pop",
        "clear",
        "sort",
        "reverse",
        "add",
        "discard",
        "update",
        "setdefault",
    ),
    *("popitem", "move_to_end", "appendleft", "popleft", "fill", "resize", "put"),
}
"""Methods that change a container."""


def list_modules() -> Iterator[types.ModuleType]:
    """Import every module of both packages but the `__main__`s."""
    for root in ROOTS:
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root.parent).with_suffix("").parts
            if parts[-1] != "__main__":
                yield importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))


def find_state(value: object) -> str:
    """Return what of a value may change, "" for nothing.

    Lists, dicts and sets are judged by what is in them: whether a function changes them is `find_changes`' matter.
    """
    if value is None or isinstance(value, ATOMS) or type(value).__module__ in STATELESS_MODULES:
        return ""
    if type(value) in LOCKS or type(value).__module__ == "overlay.logs":
        return ""
    if isinstance(value, np.ndarray):
        return "a writeable array" if value.size and value.flags.writeable else ""
    if isinstance(value, memoryview):
        return "" if value.readonly else "a writeable buffer"
    if isinstance(value, tuple | list | set | frozenset):
        return _find_first(value)
    if type(value) in (dict, types.MappingProxyType):
        return _find_first(value.values())  # type: ignore[attr-defined]
    if dataclasses.is_dataclass(value) and getattr(type(value), "__dataclass_params__").frozen:  # noqa: B009
        return _find_first(getattr(value, each.name) for each in dataclasses.fields(value))
    return f"an object of {type(value).__qualname__}"


def _find_first(values: Iterable[object]) -> str:
    return next((state for value in values if (state := find_state(value))), "")


def list_globals(module: types.ModuleType) -> Iterator[tuple[str, object]]:
    """Names that a module's own statements bind, with their values; what it imports belongs to other modules."""
    imported = {
        alias.asname or alias.name.split(".")[0]
        for node in ast.walk(parse(module))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    for name, value in vars(module).items():
        if not name.startswith("__") and name not in imported:
            yield f"{module.__name__}.{name}", value


def list_attributes(module: types.ModuleType) -> Iterator[tuple[str, object]]:
    """Attributes of a module's classes, which all their objects share, and defaults of parameters."""
    for node in ast.walk(parse(module)):
        if isinstance(node, ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.Assign | ast.AnnAssign) and _is_container(statement.value):
                    yield f"{module.__name__}.{node.name} line {statement.lineno}", ast.unparse(statement)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None and _is_container(default):
                    yield f"{module.__name__} line {default.lineno}", ast.unparse(default)


def _is_container(node: ast.expr | None) -> bool:
    """Whether an expression makes something that can change: a list, dict or set, or what a constructor of ours returns."""
    if isinstance(node, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp):
        return True
    return isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in MAKERS


def parse(module: types.ModuleType) -> ast.Module:
    return parse_text(pathlib.Path(str(module.__file__)).read_text(encoding="utf-8"))


@cache
def parse_text(text: str) -> ast.Module:
    return ast.parse(text)


def find_changes(tree: ast.Module, containers: Mapping[str, str]) -> Iterator[str]:
    """Yield the full names of containers that functions of a module change. `containers`: by their names in the module."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Global):
                yield from (f"{name} (global)" for name in node.names)
            if (name := _find_changed(node)) in containers and name not in _list_locals(function):
                yield containers[name]


def _find_changed(node: ast.AST) -> str:
    """The name of the container that a node changes, as far as its text tells; "" for none."""
    changed: ast.expr | None = None
    match node:
        case ast.Subscript(value=value, ctx=ast.Store() | ast.Del()) | ast.AugAssign(target=ast.Name() as value):
            changed = value
        case ast.Call(func=ast.Attribute(value=value, attr=method)) if method in CHANGING:
            changed = value
    return changed.id if isinstance(changed, ast.Name) else ""


def _list_locals(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    arguments = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
    stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return arguments | stored


def find_containers(module: types.ModuleType, owned: Mapping[int, str]) -> dict[str, str]:
    """The containers that a module has a name for, its own and imported ones, by that name."""
    return {name: owned[id(value)] for name, value in vars(module).items() if id(value) in owned}


def test_what_modules_share_does_not_change() -> None:
    found = {
        name: state for module in list_modules() for name, value in list_globals(module) if (state := find_state(value))
    }
    assert {name: state for name, state in found.items() if name not in SHARED} == {}


def test_functions_change_no_container_of_a_module() -> None:
    modules = list(list_modules())
    owned = {
        id(value): name
        for module in modules
        for name, value in list_globals(module)
        if isinstance(value, list | dict | set | bytearray | deque | MutableMapping)
    }
    changed = {name for module in modules for name in find_changes(parse(module), find_containers(module, owned))}
    assert changed - SHARED.keys() == set()


def test_classes_and_defaults_hold_no_containers() -> None:
    assert dict(each for module in list_modules() for each in list_attributes(module)) == {}


def test_what_may_be_shared_is_there() -> None:
    """An entry that nothing needs any more would hide what comes under its name."""
    known = {name for module in list_modules() for name, _ in list_globals(module)}
    assert SHARED.keys() <= known


def test_the_scan_sees_state() -> None:
    """The test's own eye, on what has been a fault: a decoder of a module, with buffers that each call writes."""
    changing: list[object] = [
        Decoder(make_plan()),
        BatchBuilder(),
        np.zeros(3),
        {"a": np.zeros(3)},
        [bytearray(3)],
        Counter(),
        iter([]),
    ]
    for value in changing:
        assert find_state(value), value
    constant: list[object] = [1, ("a", 2.0), {"a": [1]}, np.zeros(0), Codec.LZ4, re.compile("a"), Pattern(">")]
    for value in constant:
        assert not find_state(value), value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f():\n    known['a'] = 1", ["m.known"]),
        ("def f():\n    known.update(a=1)", ["m.known"]),
        ("class A:\n    def f(self):\n        del known[1]", ["m.known"]),
        ("f = lambda: known.pop(1)", ["m.known"]),
        ("def f():\n    global known\n    known = 1", ["known (global)"]),
        ("def f():\n    global count\n    count += 1", ["count (global)"]),
        ("known['a'] = 1", []),
        ("def f(known):\n    known['a'] = 1", []),
        ("def f():\n    known = {}\n    known['a'] = 1", []),
        ("def f():\n    return known['a']", []),
    ],
)
def test_the_scan_sees_changes(text: str, expected: list[str]) -> None:
    assert list(find_changes(ast.parse(text), {"known": "m.known"})) == expected
