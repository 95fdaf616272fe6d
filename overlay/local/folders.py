"""Where the embedded broker keeps things: a cache that may be deleted any time, and a home whose data matters."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from overlay.errors import BrokerError


def find_cache() -> Path:
    """The cache folder: $OVERLAY_CACHE, else `kafka-overlay` in the platform's cache folder."""
    chosen = os.environ.get("OVERLAY_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return _platform_folder("XDG_CACHE_HOME", mac="Library/Caches", other=".cache") / "kafka-overlay"


def find_home() -> Path:
    """The broker's default home: $OVERLAY_HOME/local, else `kafka-overlay/local` in the platform's data folder."""
    chosen = os.environ.get("OVERLAY_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute() / "local"
    data = _platform_folder("XDG_DATA_HOME", mac="Library/Application Support", other=".local/share")
    return data / "kafka-overlay" / "local"


def make_folder(path: Path, advice: str) -> Path:
    """Create `path` with its parents and prove that it can be written to. Raises BrokerError with the advice."""
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
    # the XDG rules say that a relative path is to be ignored
    if chosen and Path(chosen).is_absolute():
        return Path(chosen)
    try:
        return Path.home() / (mac if sys.platform == "darwin" else other)
    except RuntimeError as error:
        raise BrokerError("no home folder is known here: set $HOME, or $OVERLAY_CACHE and $OVERLAY_HOME") from error
