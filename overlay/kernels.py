"""Functions that numba compiles.

Importing numba takes longer than most commands take to answer, and few commands call a kernel. So
nothing is imported or compiled until the first call of a kernel. Kernels that call each other are
found by numba through `_numba_type_`, the protocol of objects that numba has a type for.

Numba only checks whether the file of a function has changed, and would keep running a cached
function that was compiled with another module's function or constant inlined. `find_stamp` says
whether any of these have changed. The cache itself is in kernel_cache.py.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache, cached_property, partial
from types import FunctionType, ModuleType
from typing import Any, Literal, TypeVar, cast, overload

import numpy as np

from .kernel_progress import progress

F = TypeVar("F", bound=Callable[..., object])


@overload
def kernel(function: F, /) -> F: ...
@overload
def kernel(*, inline: Literal["never", "always"] = ..., forceinline: bool = ...) -> Callable[[F], F]: ...
def kernel(function: F | None = None, /, **options: str | bool) -> F | Callable[[F], F]:
    """Make a function one that numba compiles at its first call, for the types that it is called
    with, or loads from the cache on disk. It then runs without the GIL. A decorator, with or
    without options.

    Numba takes the types from the arguments and ignores annotations. Those are for mypy, to which a
    kernel is the function that it was written as; tests/test_kernels.py compares them with what
    numba has found.

    It checks no bounds of arrays, unless the environment has NUMBA_BOUNDSCHECK=1, as in `make
    test-long`.

    `inline="always"` inlines it into its callers before types are known, `forceinline=True` after:
    see numba.njit.
    """
    if function is None:
        return lambda function: cast(F, Kernel(cast(FunctionType, function), options))
    return cast(F, Kernel(cast(FunctionType, function), options))


_lock = threading.RLock()
"""Held while numba is imported and while a dispatcher is made: kernels are called in threads."""


def load_numba() -> None:
    """Import numba now, and not when the first kernel is called. For a thread that waits for another one."""
    with _lock:
        from . import kernel_cache  # noqa: F401 - it imports numba


class Kernel:
    """A function that numba compiles at its first call. To numba it is the dispatcher that numba
    itself would have made of the function; all attributes of the dispatcher can be read, but for
    special ones (`__name__` is the function's).
    """

    def __init__(self, function: FunctionType, options: dict[str, str | bool]) -> None:
        self.py_func, self._options = function, options
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        return self.dispatcher(*arguments)

    @cached_property
    def dispatcher(self) -> Any:
        """Numba's dispatcher of the function, with the cache on disk that all processes share. Made at the first use, which
        imports numba."""
        with _lock:
            # another thread may have made it meanwhile; two would be two different functions to numba
            if (made := self.__dict__.get("dispatcher")) is not None:
                return made
            # this is what imports numba: the first call pays for it, and not every command
            from .kernel_cache import make_dispatcher

            on_compile = partial(progress.begin, count_ready)
            made = self.__dict__["dispatcher"] = make_dispatcher(self.py_func, self._options, find_stamp, on_compile)
            return made

    @property
    def is_ready(self) -> bool:
        """Whether this process has compiled or loaded the function, for arguments of any types."""
        return "dispatcher" in self.__dict__ and bool(self.dispatcher.overloads)

    @property
    def is_inlined(self) -> bool:
        """Whether the function becomes a part of its callers, so that it is not compiled for itself unless Python calls it."""
        return self._options.get("inline") == "always"

    @property
    def _numba_type_(self) -> Any:
        return self.dispatcher._numba_type_

    def __getattr__(self, name: str) -> Any:
        # copies and pickles ask for special names before __init__ has run
        if name.startswith("__") or "py_func" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.dispatcher, name)


def count_ready() -> tuple[int, int]:
    """Return how many kernels can be called by now without being compiled, and how many there are in the overlay's modules
    that are loaded. Those that their callers take in are left out of both.
    """
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("overlay.")]
    found = {value for module in modules for value in list(vars(module).values()) if isinstance(value, Kernel)}
    compiled = [kernel for kernel in found if not kernel.is_inlined]
    return sum(kernel.is_ready for kernel in compiled), len(compiled)


def find_stamp(function: FunctionType) -> str:
    """Return a hash that changes when what is compiled into a function changes, apart from its own
    file: the files of the kernels that it calls, also indirectly, and the constants that it or they
    name.

    Call it after the modules are loaded: a name that does not exist yet is left out.
    """
    parts: set[str] = set()
    left, met = [function], {function}
    while left:
        for name, value in _find_globals(left.pop()):
            if isinstance(value, Kernel):
                parts.add(_stamp_file(value.py_func.__code__.co_filename))
                if value.py_func not in met:
                    met.add(value.py_func)
                    left.append(value.py_func)
            elif isinstance(value, np.ndarray):
                parts.add(f"{name} {value.dtype} {hashlib.sha256(value.tobytes()).hexdigest()}")
            elif isinstance(value, type) and issubclass(value, enum.Enum):
                parts.add(f"{name} {[(member.name, member.value) for member in value]}")
            elif isinstance(value, int | float | str | bytes | tuple | np.generic):
                parts.add(f"{name} {value!r}")
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()


def _find_globals(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the global names that a function uses, with their values, None for one that does not
    exist. In place of a module, yield those of its attributes that the function may use.
    """
    names = function.__code__.co_names
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType):
            yield from ((f"{name}.{each}", vars(value)[each]) for each in names if each in vars(value))
        else:
            yield name, value


@cache
def _stamp_file(path: str) -> str:
    known = os.stat(path)
    return f"{path} {known.st_mtime_ns} {known.st_size}"
