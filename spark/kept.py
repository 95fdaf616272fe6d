"""What a Python worker of Spark keeps from one task or plan to the next: connections, known
subjects, chunk indexes.

Spark reuses its workers, at the driver for planning and in executors for tasks. Opening a
connection takes longer than many a task runs, and reading an index takes longer than using it. What
is kept belongs to a stream as one ask describes it, because known subjects are valid for that
description only. Everything is checked before it is used again (overlay/client/read/bounds.py).
"""

from __future__ import annotations

import gc
import pickle
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from overlay.client.connection import Connections
from overlay.client.read.indexes import Indexes
from overlay.config.stream import StreamConfig

from .options import Ask

MOST = 4
"""Most streams for which something is kept."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What a Python worker of Spark keeps for one stream from one task or plan to the next: open
    Kafka connections, and the indexes read so far. Only the MOST streams used last have one; when
    it is dropped, its idle connections are closed.
    """

    lines: Connections
    indexes: Indexes


_kept: OrderedDict[bytes, Kept] = OrderedDict()
_lock = threading.Lock()


def keep(ask: Ask) -> Kept:
    """Return the connections and indexes that this process keeps for the ask's stream, new ones if
    it has none.
    """
    return keep_connections(ask.kafka, ask.prefix, ask.request.stream)


def keep_connections(kafka: Mapping[str, str], prefix: str, stream: StreamConfig) -> Kept:
    """Return the connections and indexes that this process keeps for a stream, new ones if it has
    none. `prefix`: of the overlay's own topics.
    """
    key = pickle.dumps((sorted(kafka.items()), prefix, stream))
    old: list[Kept] = []
    with _lock:
        kept = _kept.get(key)
        if kept is None:
            kept = _kept[key] = Kept(Connections(kafka), Indexes(prefix, needs_ledger=True))
        _kept.move_to_end(key)
        while len(_kept) > MOST:
            old.append(_kept.popitem(last=False)[1])
    for each in old:
        each.lines.close()
    return kept


@cache
def settle() -> None:
    """Collect garbage, and exclude all objects that are loaded now from later collections. Only the
    first call in a process does so.

    Spark makes a worker collect garbage after each task. With numba's million objects that takes as
    long as scanning a hundred thousand records.
    """
    gc.collect()
    gc.freeze()
