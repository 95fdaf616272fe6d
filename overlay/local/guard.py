"""A guard that cleans up if this process ends without doing so: killed, out of memory, crashed.

A shell waits at a pipe that only this process can write to. A line means that all is well. The end
of the pipe means that this process is gone; the kernel closes it however a process ends.
"""

from __future__ import annotations

import atexit
import subprocess
from collections.abc import Sequence


class Guard:
    """Runs a command if this process ends without `release` and without a regular exit."""

    def __init__(self, command: Sequence[str]) -> None:
        # in a session of its own, since Ctrl-C is for this process, which cleans up itself then
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r line || exec "$@"', "guard", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        atexit.register(self.release)

    def release(self) -> None:
        """Cancel the command. A second call does nothing."""
        atexit.unregister(self.release)
        if self._process.poll() is None:
            self._process.communicate(b"\n")
