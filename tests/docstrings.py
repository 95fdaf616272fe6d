"""`python -m tests.docstrings [--seed N] [--count N]`: docstrings picked at random, with signatures and without bodies.

For a reading test: a reader who has not seen the code says of each what it promises, and an author judges how many
were misread.
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def find_docstrings(folder: Path) -> Iterator[str]:
    """Yield the signature and the docstring of every class and function that has one. A method is named with its class."""
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        owners = {child: node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for child in node.body}
        for node in ast.walk(tree):
            if isinstance(node, Definition) and (text := ast.get_docstring(node)):
                place, first = path.relative_to(ROOT), spell(node, owners.get(node, ""))
                yield f"{place}\n{first}\n    {text.replace(chr(10), chr(10) + '    ')}\n"


def spell(node: Definition, owner: str = "") -> str:
    """Return the first line of a definition. `owner`: the class of a method."""
    name = f"{owner}.{node.name}" if owner else node.name
    if isinstance(node, ast.ClassDef):
        return f"class {name}({', '.join(map(ast.unparse, node.bases))}):"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"def {name}({ast.unparse(node.args)}){returns}:"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.docstrings", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    options = parser.parse_args()
    every = [text for room in ("overlay", "spark") for text in find_docstrings(ROOT / room)]
    for number, text in enumerate(random.Random(options.seed).sample(every, options.count), 1):
        sys.stdout.write(f"{number}. {text}\n")


if __name__ == "__main__":
    main()
