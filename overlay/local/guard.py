"""What has to be done when this process ends without doing it: killed, out of memory, crashed in compiled code.

A shell waits at a pipe that only this process can write to. A line says that all is well; the end of the pipe, which the
kernel brings however a process ends, says that it is not.
"""

from __future__ import annotations

import atexit
import subprocess
from collections.abc import Sequence


class Guard:
    """Runs a command when this process has ended without `release`, and without reaching its own end."""

    def __init__(self, command: Sequence[str]) -> None:
        # a session of its own: Ctrl-C is for this process, which then does what it has to
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r line || exec "$@"', "guard", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        atexit.register(self.release)

    def release(self) -> None:
        """Nothing is to be done any more. Twice does no harm."""
        atexit.unregister(self.release)
        if self._process.poll() is None:
            self._process.communicate(b"\n")
