"""Functions that numba compiles, and the cache that keeps what it made of them.

Compiling all of them takes a minute, so the results are kept on disk and shared by every process of an installation. Numba's
own cache is not made for that. It numbers the files with machine code and has an index say which signature is in which.
Two processes that compile one function for two signatures at the same time choose the same number; the last index and the
last code to be written may then belong to different ones, and from that day on arguments are read as what they are not.
And it asks only whether the file of the function has changed: one that was compiled with another module's function or
constant inside goes on running the old one.

Here a file of machine code is named by its content, and what the index says can be missing but never wrong. And a function
is compiled again when the sources of anything that it calls have changed, or a constant that it names, or whether bounds are
checked (NUMBA_BOUNDSCHECK). Names with an underscore are numba's, whose minor version is pinned; tests/test_kernels.py holds
what is assumed of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, overload

import numba as nb
import numpy as np
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.dispatcher import Dispatcher


@overload
def kernel(function: Callable[..., Any], /) -> Any: ...
@overload
def kernel(*, inline: str = ..., forceinline: bool = ...) -> Callable[[Callable[..., Any]], Any]: ...
def kernel(function: Any = None, /, **options: Any) -> Any:
    """Compile a function at its first call, for the types it is called with; it runs without the GIL.

    It checks no bounds, unless the environment says NUMBA_BOUNDSCHECK=1, which `make test-long` uses.

    `inline="always"` puts it into its callers before types are known, `forceinline=True` after: see numba.njit.
    """
    if function is None:
        return lambda function: _compile(function, options)
    return _compile(function, options)


def _compile(function: FunctionType, options: dict[str, Any]) -> Any:
    dispatcher = nb.njit(nogil=True, **options)(function)
    dispatcher._cache = Cache(function)
    return dispatcher


class Cache(FunctionCache):  # type: ignore[misc]
    """What was compiled of one function."""

    def __init__(self, function: FunctionType) -> None:
        super().__init__(function)
        self._function = function
        self._numbas = self.__dict__.pop("_cache_file")

    @cached_property
    def _cache_file(self) -> Files:
        """The files, made at the first call: when a function is decorated, the kernels further down its module that it calls
        are not there yet, and a stamp made then would leave them out."""
        return Files(
            self._cache_path,
            self._impl.filename_base,
            # numba's own stamp knows nothing of NUMBA_BOUNDSCHECK: code with bounds checks and code without would mix
            (self._numbas._source_stamp, find_stamp(self._function), bool(nb.config.BOUNDSCHECK)),
        )


class Files(IndexDataCacheFile):  # type: ignore[misc]
    """The index of one function, and its files of machine code, each named by its content."""

    def save(self, key: Any, data: Any) -> None:
        """Keep what was compiled for a signature. Of two processes that do so at once, one may do it for nothing."""
        code = self._dump(data)
        stem = self._index_name.removesuffix(".nbi")
        name = f"{stem}.{hashlib.sha256(code).hexdigest()[:20]}.nbc"
        with self._open_for_write(self._data_path(name)) as file:
            file.write(code)
        known = self._load_index()
        known[key] = name
        self._save_index(known)
        if len(known) == 1:  # the first since the sources have changed: nobody will ask for the others
            self._sweep(stem, name)

    def _sweep(self, stem: str, kept: str) -> None:
        for path in Path(self._cache_path).glob(f"{stem}.*.nbc"):
            if path.name != kept:
                with contextlib.suppress(OSError):  # gone already, or somebody else's: it only takes room
                    path.unlink()


def find_stamp(function: FunctionType) -> str:
    """Return a digest of what is compiled into a function besides its own file: sources of other kernels, values of constants.

    Call it when the modules are loaded: a name that is not there yet is left out.
    """
    parts: set[str] = set()
    left, met = [function], {function}
    while left:
        for name, value in _find_globals(left.pop()):
            if isinstance(value, Dispatcher):
                parts.add(_stamp_file(value.py_func.__code__.co_filename))
                if value.py_func not in met:
                    met.add(value.py_func)
                    left.append(value.py_func)
            elif isinstance(value, np.ndarray):
                parts.add(f"{name} {value.dtype} {hashlib.sha256(value.tobytes()).hexdigest()}")
            elif isinstance(value, int | float | str | bytes | tuple | np.generic):
                parts.add(f"{name} {value!r}")
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()


def _find_globals(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Global names that a function uses, and those of modules that it may be reaching into."""
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
