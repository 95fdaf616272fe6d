"""Functions that numba compiles, and the cache of the machine code.

Compiling all of them takes a minute, so the results are kept on disk and shared by all processes of
an installation. Numba's own cache is not safe for that. It numbers the files with machine code, and
an index says which signature is in which file. Two processes that compile one function for two
signatures at the same time choose the same number. The index and the code that are written last may
then belong to different signatures, and from then on arguments are interpreted wrongly. Also, numba
only checks whether the file of the function has changed. A function that was compiled with another
module's function or constant inlined would keep running the old one.

Here a file of machine code is named by its content, and the index can lack an entry but never be
wrong. A function is compiled again if the sources of any function that it calls have changed, or a
constant that it names, or whether bounds are checked (NUMBA_BOUNDSCHECK). Names with an underscore
are numba's, whose minor version is pinned; tests/test_kernels.py checks what is assumed about them.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import os
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Literal, TypeVar, cast, overload

import numba as nb
import numpy as np
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.dispatcher import Dispatcher

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
        return lambda function: _compile(function, options)
    return _compile(function, options)


def _compile(function: F, options: dict[str, str | bool]) -> F:
    dispatcher = nb.njit(nogil=True, **options)(function)
    dispatcher._cache = Cache(cast(FunctionType, function))
    return cast(F, dispatcher)


class Cache(FunctionCache):  # type: ignore[misc]
    """The cache on disk of one function's machine code, in place of numba's own."""

    def __init__(self, function: FunctionType) -> None:
        super().__init__(function)
        self._function = function
        self._numbas = self.__dict__.pop("_cache_file")

    @cached_property
    def _cache_file(self) -> Files:
        """The function's index and code files, with the stamp by which outdated ones are found.
        Made at the function's first call.

        When a function is decorated, the kernels further down its module that it calls do not exist
        yet. A stamp made then would leave them out.
        """
        return Files(
            self._cache_path,
            self._impl.filename_base,
            # numba's own stamp ignores NUMBA_BOUNDSCHECK: code with and without bounds checks would
            # be mixed
            (self._numbas._source_stamp, find_stamp(self._function), bool(nb.config.BOUNDSCHECK)),
        )


class Files(IndexDataCacheFile):  # type: ignore[misc]
    """The index file of one function (which signature is in which file), and its files of machine
    code, each named by a hash of its content.
    """

    def save(self, key: Any, data: Any) -> None:
        """Write the code that was compiled for a signature (`key`), and enter it into the index.
        Two processes may do so at once; the index may then lack one of the entries, which is
        compiled again later.
        """
        code = self._dump(data)
        stem = self._index_name.removesuffix(".nbi")
        name = f"{stem}.{hashlib.sha256(code).hexdigest()[:20]}.nbc"
        with self._open_for_write(self._data_path(name)) as file:
            file.write(code)
        known = self._load_index()
        known[key] = name
        self._save_index(known)
        # the first entry since the sources have changed: the older files are no longer used
        if len(known) == 1:
            self._sweep(stem, name)

    def _sweep(self, stem: str, kept: str) -> None:
        for path in Path(self._cache_path).glob(f"{stem}.*.nbc"):
            if path.name != kept:
                # deleted already, or owned by another user: then it only takes room
                with contextlib.suppress(OSError):
                    path.unlink()


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
            if isinstance(value, Dispatcher):
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
