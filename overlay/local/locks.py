"""File locks that end with the processes that hold them.

The lock is flock(2). It belongs to the open file, so a child that inherits the descriptor holds it
too. The kernel releases it when the last holder ends, for whatever reason. The broker's lock
depends on both; see broker.py.
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
    """Take the exclusive lock on the file, without waiting; the file is created if it is missing.
    Return its descriptor, which the caller has to close to give the lock up; None if it is held.
    """
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
    """Take the lock like try_lock, but do not fail because another process checks it with is_locked
    at that moment.

    Returns None if another process holds it.
    """
    while (descriptor := try_lock(path)) is None:
        if is_locked(path):
            return None
    return descriptor


def is_locked(path: Path) -> bool:
    """Return whether a living process holds the lock.

    The check takes a shared lock for a moment, so that two processes may check at once.
    """
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
    """Hold the lock for a block, after waiting for it for at most `wait_s` seconds.

    Raises BrokerError if another process holds it for longer. `what`: what the holder does, for the
    message.
    """
    deadline = time.monotonic() + wait_s
    while (descriptor := try_lock(path)) is None:
        if time.monotonic() > deadline:
            raise BrokerError(
                f"{path}: another process has been {what} for over {wait_s:.0f} s."
                " Wait for it to end, or end it, and try again"
            )
        time.sleep(_PAUSE_S)  # a flock with a deadline has to be tried again
    try:
        yield
    finally:
        os.close(descriptor)
