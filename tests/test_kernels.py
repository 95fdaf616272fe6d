"""The cache of compiled functions: what several processes leave in it, and what makes it stale."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from overlay.kernels import Files, kernel


@kernel
def add(a: Any, b: Any) -> Any:
    return a + b


def test_a_signature_is_never_given_another_s_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that have both seen an empty index, and write one after the other."""
    first, second = (Files(str(tmp_path), "f", "stamp") for _ in range(2))
    for files in (first, second):
        monkeypatch.setattr(files, "_load_index", dict)
    first.save("int", "code for int")
    second.save("float", "code for float")
    first.save("int", "code for int")
    reader = Files(str(tmp_path), "f", "stamp")
    assert [reader.load("int"), reader.load("float")] == ["code for int", None]


def test_what_is_kept(tmp_path: Path) -> None:
    files = Files(str(tmp_path), "f", "stamp")
    for signature in ("int", "float", "int"):
        files.save(signature, f"code for {signature}")
    assert [files.load("int"), files.load("float"), files.load("str")] == ["code for int", "code for float", None]
    assert len(list(tmp_path.glob("*.nbc"))) == 2
    changed = Files(str(tmp_path), "f", "another stamp")
    assert changed.load("int") is None
    changed.save("int", "new code")
    assert changed.load("int") == "new code" and len(list(tmp_path.glob("*.nbc"))) == 1
    assert not list(tmp_path.glob("*.tmp*"))


def test_functions_use_this_cache() -> None:
    """numba's name for it is private."""
    assert isinstance(add._cache._cache_file, Files)
    assert add(1, 2) == 3 and sum(add.stats.cache_misses.values()) + sum(add.stats.cache_hits.values()) == 1


MODULES = {
    "low.py": "from overlay.kernels import kernel\n@kernel\ndef low(x):\n    return x + 1\n",
    "middle.py": "from overlay.kernels import kernel\nimport low\n@kernel\ndef middle(x):\n    return low.low(x)\n",
    "constant.py": "ADDED = 10\n",
    "top.py": """
        from overlay.kernels import kernel
        from middle import middle
        from constant import ADDED
        @kernel
        def top(x):
            return middle(x) + ADDED
        print(top(0), sum(top.stats.cache_hits.values()))
    """,
}


def run_module(folder: Path, name: str = "top", **environment: str) -> str:
    """Run a module of a folder in a process of its own, with the folder's own cache, and return what it prints."""
    inherited = {key: value for key, value in os.environ.items() if key not in ("NUMBA_BOUNDSCHECK", "NUMBA_CACHE_DIR")}
    path = os.pathsep.join((str(folder), os.getcwd()))
    command = [sys.executable, "-B", "-m", name]
    done = subprocess.run(
        command,
        env={**inherited, "PYTHONPATH": path, **environment},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout.strip()


def test_a_function_is_compiled_again_when_what_it_calls_has_changed(tmp_path: Path) -> None:
    for name, text in MODULES.items():
        (tmp_path / name).write_text(textwrap.dedent(text))

    def run() -> str:
        return run_module(tmp_path)

    assert [run(), run()] == ["11 0", "11 1"]
    (tmp_path / "low.py").write_text(MODULES["low.py"].replace("x + 1", "x + 200"))
    assert [run(), run()] == ["210 0", "210 1"]
    (tmp_path / "constant.py").write_text("ADDED = 3000\n")
    assert [run(), run()] == ["3200 0", "3200 1"]


FORWARD = """
    from overlay.kernels import kernel
    @kernel
    def first(x):
        return second(x)
    from low import low
    @kernel
    def second(x):
        return low(x)
    print(first(0), sum(first.stats.cache_hits.values()))
"""


def test_what_is_defined_further_down_the_module_counts_as_well(tmp_path: Path) -> None:
    """It does not exist yet when the function that calls it is decorated."""
    (tmp_path / "low.py").write_text(MODULES["low.py"])
    (tmp_path / "forward.py").write_text(textwrap.dedent(FORWARD))
    assert [run_module(tmp_path, "forward") for _ in range(2)] == ["1 0", "1 1"]
    (tmp_path / "low.py").write_text(MODULES["low.py"].replace("x + 1", "x + 200"))
    assert [run_module(tmp_path, "forward") for _ in range(2)] == ["200 0", "200 1"]


BEYOND = """
    import numpy as np
    from overlay.kernels import kernel
    @kernel
    def read(array, at):
        return array[np.uintp(at)]
    try:
        found = read(np.arange(8)[:3], 5)
    except IndexError:
        found = "refused"
    print(found, sum(read.stats.cache_hits.values()))
"""


def test_code_with_bounds_checks_and_code_without_do_not_mix(tmp_path: Path) -> None:
    """Both in one cache, where each takes the other's place."""
    (tmp_path / "beyond.py").write_text(textwrap.dedent(BEYOND))
    found = [run_module(tmp_path, "beyond", NUMBA_BOUNDSCHECK=checks) for checks in ("0", "0", "1", "1", "0", "1")]
    assert found == ["5 0", "5 1", "refused 0", "refused 1", "5 0", "refused 0"]
