"""What a Python worker of Spark's keeps from one task or plan to the next: connections, subjects it has met, chunk indexes.

Spark uses its workers again and again, at the driver for planning and in executors for tasks. A connection takes longer to open
than many a task to run, and an index longer to read than to ask. What is kept belongs to a stream as it is described in one
ask: subjects that were met hold for that description alone. Nothing of it is believed unseen (overlay/client/read/bounds.py).
"""

from __future__ import annotations

import gc
import pickle
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cache

from overlay.client.connection import Connections
from overlay.client.read.indexes import Indexes

from .options import Ask

MOST = 4
"""Streams of which something is kept."""


@dataclass(frozen=True, slots=True)
class Kept:
    lines: Connections
    indexes: Indexes


_kept: OrderedDict[bytes, Kept] = OrderedDict()
_lock = threading.Lock()


def keep(ask: Ask) -> Kept:
    """What there is of the ask's stream in this process; new where there is nothing yet."""
    key = pickle.dumps((sorted(ask.kafka.items()), ask.prefix, ask.request.stream))
    old: list[Kept] = []
    with _lock:
        kept = _kept.get(key)
        if kept is None:
            kept = _kept[key] = Kept(Connections(ask.kafka), Indexes(ask.prefix))
        _kept.move_to_end(key)
        while len(_kept) > MOST:
            old.append(_kept.popitem(last=False)[1])
    for each in old:
        each.lines.close()
    return kept


@cache
def settle() -> None:
    """Take what is loaded out of the collector's sight, once.

    Spark has a worker collect after each task, which with numba's million objects takes as long as to scan a hundred thousand
    records.
    """
    gc.collect()
    gc.freeze()
