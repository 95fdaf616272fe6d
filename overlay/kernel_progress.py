"""How far the compilation of kernels is, for users who wait for it.

It takes a minute or two, once for an installation (kernel_cache.py). Commands and the service say by
`progress.tell` how their users are told. A program of one's own that sets nothing is told nothing.

The module is apart from kernels.py, which imports numpy: commands set `tell` before they know whether they
need a kernel.
"""

from __future__ import annotations

from collections.abc import Callable

from overlay.clock import monotonic

FIRST_S = 1.0
"""Seconds from the first kernel that is compiled until users are told: a few kernels, as after a change of one, are ready
before that."""
EVERY_S = 10.0
"""Seconds between two times that users are told."""

Tell = Callable[[int, int], object]
"""Tells users how many kernels can be called by now, and how many there are in the modules that are loaded, some of which
may not be needed."""


class KernelProgress:
    """Counts nothing itself: whenever a kernel is about to be compiled it looks at the clock, and tells users if it is time.
    `tell`: None to tell nothing.
    """

    tell: Tell | None = None
    _due: float | None = None
    """When to tell next, by the monotonic clock in seconds; None before the first kernel."""

    def begin(self, count: Callable[[], tuple[int, int]]) -> None:
        """Note that a kernel is about to be compiled. `count`: returns the arguments of `tell`."""
        if self.tell is None:
            return
        now = monotonic()
        if self._due is None:
            self._due = now + FIRST_S
        elif now >= self._due:
            self._due = now + EVERY_S
            self.tell(*count())


progress = KernelProgress()
"""That of this process."""
