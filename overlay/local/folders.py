"""Folders of the embedded broker: a cache that may be deleted at any time, and a home for data."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from overlay.errors import BrokerError


def find_cache() -> Path:
    """Return the cache folder: $OVERLAY_CACHE, or `kafka-overlay` in the platform's cache. Raises BrokerError if no
    home folder is known.
    """
    chosen = os.environ.get("OVERLAY_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return _platform_folder("XDG_CACHE_HOME", mac="Library/Caches", other=".cache") / "kafka-overlay"


def find_home() -> Path:
    """Return the broker's default home.

    It is $OVERLAY_HOME/local, or `kafka-overlay/local` in the platform's data folder. Raises BrokerError if no home
    folder is known.
    """
    chosen = os.environ.get("OVERLAY_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute() / "local"
    data = _platform_folder("XDG_DATA_HOME", mac="Library/Application Support", other=".local/share")
    return data / "kafka-overlay" / "local"


def make_folder(path: Path, advice: str) -> Path:
    """Create `path` with its parents, check that files can be written there, and return it.

    Raises BrokerError with `advice` if they cannot.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise BrokerError(f"{path}: this folder cannot be written to ({error.strerror}). {advice}") from error
    return path


def _platform_folder(variable: str, *, mac: str, other: str) -> Path:
    chosen = os.environ.get(variable)
    # the XDG specification says to ignore a relative path
    if chosen and Path(chosen).is_absolute():
        return Path(chosen)
    try:
        return Path.home() / (mac if sys.platform == "darwin" else other)
    except RuntimeError as error:
        raise BrokerError("no home folder is known here: set $HOME, or $OVERLAY_CACHE and $OVERLAY_HOME") from error
