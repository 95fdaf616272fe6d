"""Headers of received records, whose names any client may have written."""

from __future__ import annotations

from collections.abc import Sequence
from operator import methodcaller
from typing import Any

from confluent_kafka import Message

from overlay.logs import get_logger

log = get_logger(__name__)

Headers = Sequence[tuple[str, Any]]

# For a name that is not UTF-8, confluent-kafka returns a list and leaves an exception behind. A
# plain call, once the interpreter has specialised it, does not check for that, and the exception is
# raised by whatever is called next. A call through `methodcaller` checks.
_call = methodcaller("headers")


def read_headers(record: Message) -> Headers:
    """Return a record's headers in order, none if one of their names is not UTF-8.

    confluent-kafka cannot read such a name and raises SystemError. The overlay then ignores the
    record's headers: the record names no consumer and answers no request.
    """
    try:
        found = _call(record) or ()
    except (SystemError, UnicodeDecodeError):
        log.warning(
            "a record is passed over: the name of a header is not UTF-8",
            topic=record.topic(),
            partition=record.partition(),
            offset=record.offset(),
        )
        return ()
    return tuple(found.items()) if isinstance(found, dict) else found
