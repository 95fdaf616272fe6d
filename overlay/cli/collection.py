"""When a command looks for garbage.

Importing the modules of a command makes 100,000 objects and more, which stay until its end. By default
Python goes through them hundreds of times meanwhile, and again when it ends. That takes a third of
the processor time of a command that asks something, and finds nothing.
"""

from __future__ import annotations

import atexit
import gc

SPARING = 200_000
"""Objects that may be made before Python looks for garbage, while a command begins: a few more than it imports."""
USUAL = gc.get_threshold()


def spare_collections() -> None:
    """Look for garbage rarely, and not at the end of the process. For a command that soon ends: one that
    may read many records calls `collect_as_usual` when it has loaded its modules.
    """
    gc.set_threshold(SPARING)
    # what is frozen is left out of the search at the end
    atexit.register(gc.freeze)


def collect_as_usual() -> None:
    """Look for garbage as often as Python does by default, but not among the objects made so far."""
    gc.freeze()
    gc.set_threshold(*USUAL)
