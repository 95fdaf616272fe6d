"""Headers of received records, whose names any client may have written."""

from __future__ import annotations

import gc
import threading
from collections import OrderedDict
from collections.abc import Sequence
from operator import methodcaller
from typing import Any

from confluent_kafka import Message

from overlay.logs import get_logger

log = get_logger(__name__)

Headers = Sequence[tuple[str, Any]]
MOST_TOPICS = 1_000

# For a name that is not UTF-8, confluent-kafka returns a list and leaves an exception behind. A
# plain call, once the interpreter has specialised it, does not check for that, and the exception is
# raised by whatever is called next. A call through `methodcaller` checks.
_call = methodcaller("headers")


class LeftOut:
    """The number of headers that were left out so far, by topic, of the MOST_TOPICS topics that had some last. For any
    number of threads.
    """

    def __init__(self) -> None:
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, topic: str, partition: int, offset: int, number: int) -> None:
        """Count `number` headers of the record there. Log a warning with the topic's count when that reaches or passes a
        power of two: strangers write as many of them as they like.
        """
        with self._lock:
            before = self._counts.pop(topic, 0)
            count = self._counts[topic] = before + number
            if len(self._counts) > MOST_TOPICS:
                self._counts.popitem(last=False)
        if count.bit_length() > before.bit_length():
            log.warning(
                "headers are left out: their names are not UTF-8",
                topic=topic, partition=partition, offset=offset, count=count,
            )  # fmt: skip


left_out = LeftOut()
"""Of this process."""


def read_headers(record: Message) -> Headers:
    """Return a record's headers in order. A header whose name is not UTF-8 is left out, since confluent-kafka cannot
    read it: it is counted (`left_out`), and taken out of the record, so that later calls of the record's own `headers`
    do not meet it either.
    """
    try:
        found = _call(record) or ()
    except (SystemError, UnicodeDecodeError):
        found = _mend(record)
    return tuple(found.items()) if isinstance(found, dict) else found


def _mend(record: Message) -> Headers:
    """Take the headers that have no readable name out of a record whose first call of `headers` has raised an error. Return
    the others; none if they cannot be told apart.

    That call has also put a list of pairs into the record, which the next call returns. A pair without a
    readable name has nothing in the place of the name, not even None, so that reading it ends the
    process. The garbage collector lists what a pair has without reading it.
    """
    try:
        pairs: list[tuple[str, Any]] = _call(record) or []
    except (SystemError, UnicodeDecodeError):
        pairs, readable = [], []
    else:
        readable = [pair for pair in pairs if len(gc.get_referents(pair)) == 2]
    record.set_headers(readable)
    left_out.add(record.topic(), record.partition(), record.offset(), max(1, len(pairs) - len(readable)))
    return readable
