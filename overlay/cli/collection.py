"""When a command looks for garbage.

Importing the modules of a command makes some 150,000 objects, which stay until its end. By default
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
    reads many records calls `collect_as_usual` when it has begun.
    """
    gc.set_threshold(SPARING)
    # what is frozen is left out of the search at the end
    atexit.register(gc.freeze)


def collect_as_usual() -> None:
    """Look for garbage as often as Python does by default, so that little of it piles up."""
    gc.set_threshold(*USUAL)
