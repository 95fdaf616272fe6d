"""What the package may import: the overlay's pure parts, what fetches, and no service, command or view."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import spark

ROOT = Path(spark.__file__).parent
SHELL = {"cli", "view", "demo", "gateway", "control"}
TASKS = ("daemon", "scan", "form", "partitions", "columns", "comparing", "values", "pushdown", "plan")
"""What executors load: these name no session, so that nothing there starts Java."""


def list_imports(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = "spark" if node.level else ""
            found.add(".".join(filter(None, (package, node.module))))
    return found


@pytest.mark.parametrize("file", sorted(ROOT.glob("*.py")), ids=lambda file: file.name)
def test_nothing_comes_from_the_shell(file: Path) -> None:
    parts = [name.split(".") for name in list_imports(file)]
    assert [".".join(p) for p in parts if p[0] == "overlay" and len(p) > 1 and p[1] in SHELL] == []
    assert [".".join(p) for p in parts if p[0] in ("bench", "tests", "faust")] == []


@pytest.mark.parametrize("name", TASKS)
def test_tasks_know_no_session(name: str) -> None:
    imported = list_imports(ROOT / f"{name}.py")
    assert not {"pyspark.sql.SparkSession", "spark.session", "spark.java"} & imported
    assert not any(module.startswith("overlay.local") for module in imported)


def test_loading_the_source_loads_no_shell() -> None:
    """With all that it imports in turn."""
    text = (
        "import sys, spark.datasource, spark.columns; print([m for m in sys.modules if m.startswith(('overlay.cli.',"
        " 'overlay.view', 'overlay.demo', 'overlay.local', 'overlay.worker.service', 'faust', 'aiohttp'))])"
    )
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=100)
    assert found.stdout.strip() == "[]"


def test_the_daemon_has_what_a_task_needs() -> None:
    """In a process of its own, since what it loads stays: its kernels find the record, and no second thread of Python runs."""
    text = (
        "import sys, threading, spark.daemon as d; print(d.load_kernels(), threading.active_count(),"
        " 'spark.scan' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=100)
    assert found.stdout.split() == ["2", "1", "True"]
