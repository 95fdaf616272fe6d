"""The cache on disk of machine code, which all processes of an installation share.

Compiling all kernels takes a minute or two. Numba's own cache is not safe for several processes. It
numbers the files with machine code, and an index says which signature is in which file. Two
processes that compile one function for two signatures at the same time choose the same number. The
index and the code that are written last may then belong to different signatures, and from then on
arguments are interpreted wrongly.

Here a file of machine code is named by its content, and the index can lack an entry but never be
wrong. A function is compiled again if its stamp (kernels.py) has changed, or whether bounds are
checked (NUMBA_BOUNDSCHECK). Names with an underscore are numba's, whose minor version is pinned;
tests/test_kernels.py checks what is assumed about them.

Only kernels.py imports this module, when the first kernel is called, and `overlay doctor` and
`overlay run`, to find the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FunctionType
from typing import Any

import numba as nb
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.runtime import rtsys

from overlay.errors import OverlayError

AT_ONCE_S = 60.0
"""Seconds within which processes count as compiling at the same time."""

_NO_FOLDER = (
    "compiled kernels cannot be kept: this user may write neither beside the installed package nor to a cache in the home"
    " folder. Let NUMBA_CACHE_DIR name a folder that this user may write to"
)

FindStamp = Callable[[FunctionType], str]
OnCompile = Callable[[], object]


def make_dispatcher(
    function: FunctionType, options: dict[str, str | bool], find_stamp: FindStamp, on_compile: OnCompile
) -> Any:
    """Return numba's dispatcher of a function, which releases the GIL and keeps its machine code in a Cache on
    disk. `options`: of numba.njit. `find_stamp`: returns what changes if the code has to be compiled again. `on_compile`: is
    called before the function is compiled.
    """
    dispatcher = nb.njit(nogil=True, **options)(function)
    dispatcher._cache = Cache(function, find_stamp, on_compile)
    return dispatcher


class Cache(FunctionCache):  # type: ignore[misc]
    """The cache on disk of one function's machine code, in place of numba's own."""

    def __init__(self, function: FunctionType, find_stamp: FindStamp, on_compile: OnCompile) -> None:
        try:
            super().__init__(function)
        except RuntimeError as error:
            raise OverlayError(_NO_FOLDER) from error
        self._function, self._find_stamp, self._on_compile = function, find_stamp, on_compile
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
            (self._numbas._source_stamp, self._find_stamp(self._function), bool(nb.config.BOUNDSCHECK)),
        )

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled function for a signature, linked into this process, or None if the cache has none.

        Numba's own method first loads all that the compiler knows of Python and numpy, which takes
        longer than everything else here. The compiler does so itself when it is needed. Machine code
        only needs addresses of numba's runtime. Without these the process would crash, so
        tests/test_kernels.py loads every kernel of the service in this way.
        """
        rtsys.initialize(target_context)
        found = None
        with self._guard_against_spurious_io_errors():
            found = self._load_overload(sig, target_context)
        if found is None:
            self._on_compile()
        return found


@dataclass(frozen=True, slots=True)
class CacheFolder:
    """The folder with the machine code of a function, which may not exist yet. `is_writable`:
    whether this process may write there, or make it. `is_filled`: whether it has current code.
    """

    path: Path
    is_writable: bool
    is_filled: bool


def find_folder(kernel: Any) -> CacheFolder:
    """Return where the machine code of a kernel (kernels.py) is kept. Raises OverlayError if there is no folder for
    it.
    """
    cache = kernel.dispatcher._cache
    path = Path(cache.cache_path)
    nearest = next(each for each in (path, *path.absolute().parents) if each.exists())
    return CacheFolder(path, os.access(nearest, os.W_OK), bool(cache._cache_file._load_index()))


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
        """Delete the function's files but `kept`. A file of the last minute stays: another process may
        have written it at the same time, and be about to enter it into the index.
        """
        newest = Path(self._data_path(kept)).stat().st_mtime
        for path in Path(self._cache_path).glob(f"{stem}.*.nbc"):
            # deleted already, or owned by another user: then it only takes room
            with contextlib.suppress(OSError):
                if path.name != kept and path.stat().st_mtime < newest - AT_ONCE_S:
                    path.unlink()
