"""File locks that end with the process that holds them.

The lock is flock(2): it belongs to the open file, so a child that inherits the descriptor keeps it held, and the kernel
drops it when the last holder dies, however it dies. The broker's own lock makes use of both: see broker.py.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from overlay.errors import BrokerError

_PAUSE_S = 0.05


def try_lock(path: Path) -> int | None:
    """Take the lock and return its descriptor (the caller closes it), or None when somebody holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def take_lock(path: Path) -> int | None:
    """try_lock, undisturbed by those who only look: None means that somebody keeps the lock."""
    while (descriptor := try_lock(path)) is None:
        if is_locked(path):
            return None
    return descriptor


def is_locked(path: Path) -> bool:
    """Whether a living process holds the lock. Looking shares the lock for a moment, so that two may look at once."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextmanager
def hold_lock(path: Path, *, wait_s: float, what: str) -> Iterator[None]:
    """Hold the lock for a block. Raises BrokerError when another process keeps it for longer than `wait_s` seconds."""
    deadline = time.monotonic() + wait_s
    while (descriptor := try_lock(path)) is None:
        if time.monotonic() > deadline:
            raise BrokerError(
                f"{path}: another process has been {what} for over {wait_s:.0f} s."
                " Wait for it to end, or end it, and try again"
            )
        time.sleep(_PAUSE_S)
    try:
        yield
    finally:
        os.close(descriptor)
