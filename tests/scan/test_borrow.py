"""`borrow` in the source of every kernel: it takes parameters alone (overlay/scan/borrow.py says why)."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import overlay
import spark

ROOTS = [Path(str(package.__file__)).parent for package in (overlay, spark)]
HOME = Path("scan/borrow.py")
OWNERLESS = ("_disown", "intrinsic", "meminfo")
"""What only borrow.py may name: ways to make an array without an owner."""


def find_faults(source: str) -> list[str]:
    """Return what is wrong with the uses of `borrow` in a module."""
    tree = ast.parse(source)
    faults = [f"line {node.lineno}: {name} is for borrow.py alone" for node, name in _find_ownerless(tree)]
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    uses = list(_find_uses(tree))
    faults += [f"line {use.lineno}: borrow may only be called" for use in uses if id(use) not in called]
    faults += [f"line {alias.lineno}: borrow is imported by another name" for alias in _find_renames(tree)]
    kernels = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and _is_kernel(node)]
    inside = {id(node) for function in kernels for node in ast.walk(function)}
    faults += [f"line {use.lineno}: borrow is called outside a kernel" for use in uses if id(use) not in inside]
    for function in kernels:
        faults += _check_kernel(function)
    return faults


def _find_ownerless(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.alias, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                if name in OWNERLESS:
                    yield node, name


def _is_borrow(node: ast.AST) -> bool:
    return (isinstance(node, ast.Name) and node.id == "borrow") or (
        isinstance(node, ast.Attribute) and node.attr == "borrow"
    )


def _find_uses(tree: ast.AST) -> Iterator[ast.expr]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.expr) and _is_borrow(node))


def _find_renames(tree: ast.AST) -> Iterator[ast.alias]:
    aliases = (node for node in ast.walk(tree) if isinstance(node, ast.alias))
    return (alias for alias in aliases if alias.name == "borrow" and alias.asname not in (None, "borrow"))


def _is_kernel(function: ast.FunctionDef) -> bool:
    names = [ast.unparse(each.func if isinstance(each, ast.Call) else each) for each in function.decorator_list]
    return any(name.split(".")[-1] in ("kernel", "njit", "jit") for name in names)


def _is_inline(function: ast.FunctionDef) -> bool:
    return any(
        isinstance(each, ast.Call) and any(keyword.arg == "inline" for keyword in each.keywords)
        for each in function.decorator_list
    )


def _check_kernel(function: ast.FunctionDef) -> Iterator[str]:
    borrowing = [statement for statement in function.body if any(_is_borrow(node) for node in ast.walk(statement))]
    if not borrowing:
        return
    where = f"line {function.lineno}: {function.name}"
    if _is_inline(function):
        yield f'{where} is inlined before types are known: its parameters are no parameters. Take inline="..." away'
    parameters = {each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}
    borrowed: set[str] = set()
    for statement in borrowing:
        if not isinstance(statement, ast.Assign):
            yield f"{where} borrows in line {statement.lineno} otherwise than by an assignment at the top of its body"
            continue
        for call in (node for node in ast.walk(statement.value) if isinstance(node, ast.Call)):
            if not _is_borrow(call.func):
                continue
            match call.args:
                case [ast.Name(id=name)] if name in parameters and not call.keywords:
                    if _is_bound_before(function, statement, name):
                        yield f"{where} borrows {name}, which is bound to something else by then"
                case _:
                    yield f"{where} borrows {ast.unparse(call)}: only a parameter has a holder. Have the caller pass it in"
        borrowed |= {node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            if given := {each.id for each in parts if isinstance(each, ast.Name)} & borrowed:
                yield f"{where} returns the borrowed {', '.join(sorted(given))}"


def _is_bound_before(function: ast.FunctionDef, borrowing: ast.stmt, name: str) -> bool:
    """Whether a statement before `borrowing` binds the name. Statements at the top of a body are run once, in order."""
    return any(
        isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)
        for statement in function.body[: function.body.index(borrowing)]
        for node in ast.walk(statement)
    )


def test_kernels_borrow_parameters_only() -> None:
    faults = {}
    for root in ROOTS:
        for path in sorted(root.rglob("*.py")):
            if path.relative_to(root) != HOME and (found := find_faults(path.read_text(encoding="utf-8"))):
                faults[str(path.relative_to(root.parent))] = found
    assert faults == {}


def test_the_check_sees_the_kernels_that_borrow() -> None:
    """The check's own eye: the extraction borrows, so taking its parameters away is seen."""
    source = (ROOTS[0] / "scan" / "json" / "search.py").read_text(encoding="utf-8")
    assert find_faults(source) == []
    assert find_faults(source.replace(" met: Ints,", "", 1))


@pytest.mark.parametrize(
    "body",
    [
        # what the extraction did once: made in the kernel, then replaced by its borrowed self
        "@kernel\ndef f(a):\n    b = np.zeros(3)\n    b = borrow(b)\n    b[0] = 1",
        "@kernel\ndef f(a):\n    b = np.zeros(3)\n    c = borrow(b)\n    c[0] = b[0]",
        "@kernel\ndef f(a):\n    a = np.zeros(3)\n    a = borrow(a)",
        "@kernel\ndef f(a):\n    a, b = borrow(a), borrow(np.zeros(3))",
        "@kernel\ndef f(a):\n    a = borrow(a[1:])",
        "@kernel\ndef f(a):\n    b = a\n    b = borrow(b)",
        "@kernel\ndef f(a):\n    for a in a:\n        pass\n    a = borrow(a)",
        "@kernel\ndef f(a):\n    while True:\n        a = borrow(a)",
        "@kernel\ndef f(a):\n    return borrow(a)",
        "@kernel\ndef f(a):\n    a = borrow(a)\n    return 1, a",
        "@kernel\ndef f(a):\n    g(borrow(a))",
        '@kernel(inline="always")\ndef f(a):\n    a = borrow(a)',
        "def f(a):\n    a = borrow(a)",
        "@kernel\ndef f(a):\n    take = borrow\n    a = take(a)",
        "from overlay.scan.borrow import borrow as take",
        "from overlay.scan.borrow import _disown",
        "from numba.extending import intrinsic",
        "@kernel\ndef f(a):\n    a = borrow.borrow(np.zeros(3))",
    ],
)
def test_other_uses_are_refused(body: str) -> None:
    assert find_faults(body)


@pytest.mark.parametrize(
    "body",
    [
        """
        @kernel
        def f(a, b):
            a, c = borrow(a), borrow(b)
            a = a[1:]
            return a[0] + c.size
        """,
        "@kernel(forceinline=True)\ndef f(a):\n    a = borrow(a)\n    a[0] = 1",
    ],
)
def test_parameters_may_be_borrowed(body: str) -> None:
    assert find_faults(textwrap.dedent(body)) == []
