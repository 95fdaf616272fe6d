"""The cache of compiled functions: what several processes leave in it, and what makes it stale."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from numba.core import types
from numba.core.types.containers import BaseTuple
from numba.core.typing.templates import Signature

import overlay
from overlay import arrays
from overlay.kernel_cache import Files
from overlay.kernels import Kernel, kernel
from overlay.worker.warmup import load_kernels


@kernel
def add(a: int, b: int) -> int:
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


def test_code_that_another_process_has_just_written_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes its entry for the first one, and deletes older files. The other's is about to be in the index."""
    first, second = (Files(str(tmp_path), "f", "stamp") for _ in range(2))
    save_index = first._save_index

    def save_index_later(entries: dict[str, str]) -> None:
        second.save("float", "code for float")
        save_index({**first._load_index(), **entries})

    monkeypatch.setattr(first, "_save_index", save_index_later)
    first.save("int", "code for int")
    assert [first.load("int"), first.load("float")] == ["code for int", "code for float"]


def test_what_is_kept(tmp_path: Path) -> None:
    files = Files(str(tmp_path), "f", "stamp")
    for signature in ("int", "float", "int"):
        files.save(signature, f"code for {signature}")
    assert [files.load("int"), files.load("float"), files.load("str")] == ["code for int", "code for float", None]
    assert len(list(tmp_path.glob("*.nbc"))) == 2
    changed = Files(str(tmp_path), "f", "another stamp")
    assert changed.load("int") is None
    for path in tmp_path.glob("*.nbc"):
        os.utime(path, (0, 0))
    changed.save("int", "new code")
    assert changed.load("int") == "new code" and len(list(tmp_path.glob("*.nbc"))) == 1
    assert not list(tmp_path.glob("*.tmp*"))


def test_functions_use_this_cache() -> None:
    """numba's name for it is private."""
    dispatcher: Any = add
    assert isinstance(dispatcher._cache._cache_file, Files)
    assert add(1, 2) == 3
    assert sum(dispatcher.stats.cache_misses.values()) + sum(dispatcher.stats.cache_hits.values()) == 1


def test_threads_that_call_a_kernel_first_have_the_same_dispatcher() -> None:
    """Two dispatchers would be two functions to numba, each compiled for itself."""
    threads = 8
    for _ in range(20):
        fresh: Any = Kernel(add.__wrapped__, {})  # type: ignore[attr-defined]
        together = threading.Barrier(threads)

        def call(fresh: Any = fresh, together: threading.Barrier = together) -> tuple[int, Any]:
            together.wait(30)
            return fresh(1, 2), fresh.dispatcher

        with ThreadPoolExecutor(threads) as pool:
            found = [each.result(30) for each in [pool.submit(call) for _ in range(threads)]]
        assert {result for result, _ in found} == {3}
        assert len({id(dispatcher) for _, dispatcher in found}) == 1


ARRAYS = {
    types.int8: arrays.Int8s,
    types.int32: arrays.Int32s,
    types.int64: arrays.Ints,
    types.uint8: arrays.Bytes,
    types.uint16: arrays.UInt16s,
    types.uint32: arrays.UInt32s,
    types.uint64: arrays.Words,
    types.float64: arrays.Doubles,
    types.boolean: arrays.Flags,
}


def describes(annotation: Any, type: Any) -> bool:
    """Whether an annotation is right for a type that numba has found."""
    match type:
        case types.Literal():
            return describes(annotation, type.literal_type)
        case BaseTuple():
            parts = get_args(annotation)
            return len(parts) == len(type) and all(map(describes, parts, type))
        case types.Array(dtype=types.Record()):
            return bool(annotation == arrays.Structs)
        case types.Array():
            choices = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
            return ARRAYS[type.dtype] in choices or arrays.ArrayOf in choices
        case types.Record():
            return set(get_type_hints(annotation)) <= set(type.fields)
        case types.IntEnumMember():
            return annotation in (type.instance_class, int, arrays.Int)
        case types.Boolean():
            return annotation in (bool, arrays.Bool)
        case types.Integer():
            return annotation in (int, arrays.Int, np.dtype(str(type)).type)
        case types.Float():
            return annotation is float
        case _:
            return type is types.none and annotation is NoneType


def list_kernels() -> set[Any]:
    found = set()
    for module in pkgutil.walk_packages(overlay.__path__, "overlay."):
        if not module.name.endswith("__main__"):
            names = vars(importlib.import_module(module.name))
            found |= {value for value in names.values() if isinstance(value, Kernel)}
    return found


def test_annotations_say_what_is_compiled() -> None:
    """Numba ignores them, so mypy would check a kernel against types that it does not have."""
    load_kernels()
    wrong, checked = [], 0
    for each in list_kernels():
        hints = get_type_hints(each.py_func)
        cache = each._cache._cache_file
        for key in cache._load_index():
            signature = next(part for part in cache.load(key) if isinstance(part, Signature))
            found = dict(zip([*inspect.signature(each.py_func).parameters], signature.args, strict=True))
            found["return"] = signature.return_type
            wrong += [
                f"{each.py_func.__module__}.{each.py_func.__name__}: {name} is {type}"
                for name, type in found.items()
                if not describes(hints[name], type)
            ]
            checked += 1
    assert wrong == [] and checked > 100


WARM = """
    import gc, sys
    from overlay.kernels import Kernel
    from overlay.worker.warmup import load_kernels
    load_kernels()
    gc.unfreeze()
    loaded = [each for each in gc.get_objects() if isinstance(each, Kernel) and "dispatcher" in vars(each)]
    print(sum(sum(each.stats.cache_misses.values()) for each in loaded), len(loaded), "numba.misc.cffiimpl" in sys.modules)
"""


def test_a_second_start_compiles_nothing(tmp_path: Path) -> None:
    load_kernels()
    (tmp_path / "warm.py").write_text(textwrap.dedent(WARM))
    same = {name: os.environ[name] for name in ("NUMBA_BOUNDSCHECK", "NUMBA_CACHE_DIR") if name in os.environ}
    compiled, used, has_all = run_module(tmp_path, "warm", **same).splitlines()[-1].split()
    # a kernel that others call is part of their machine code, and is not loaded for itself
    assert int(compiled) == 0 and int(used) > 30
    # all that the compiler knows is not loaded either: that takes longer than to load the kernels
    assert has_all == "False"


MODULES = {
    "low.py": "from overlay.kernels import kernel\n@kernel\ndef low(x):\n    return x + 1\n",
    "middle.py": "from overlay.kernels import kernel\nimport low\n@kernel\ndef middle(x):\n    return low.low(x)\n",
    "constant.py": "ADDED = 10\n",
    "members.py": "import enum\nclass Member(enum.IntEnum):\n    ZERO = 0\n",
    "top.py": """
        from overlay.kernels import kernel
        from middle import middle
        from constant import ADDED
        from members import Member
        @kernel
        def top(x):
            return middle(x) + ADDED + Member.ZERO
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
    (tmp_path / "members.py").write_text(MODULES["members.py"].replace("= 0", "= 40000"))
    assert [run(), run()] == ["43200 0", "43200 1"]


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
