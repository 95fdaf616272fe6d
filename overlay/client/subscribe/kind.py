"""What a record of an output topic is to one consumer's reader, by its headers alone.

Several consumers may share an output topic; whose a delivery is, its token says. A status (heartbeat, flow control) has no
token of an ack and names its stream and consumer. Whatever else lies there is nobody's business.
"""

from __future__ import annotations

from typing import NamedTuple

from overlay.consumer.pulls import LAST_CONSUMER, LAST_STREAM, STALLED
from overlay.dispatch.answers import CODE, CONSUMER, REPLY_TO, STREAM
from overlay.output.assemble import TOKEN
from overlay.output.record import Headers

from .acking import PREFIX_2, Head

MOST = 4
"""Incarnations whose tokens are known by how they begin; the tokens of others are taken apart."""


class Flow(NamedTuple):
    """A flow control request. `up_to`: the last consumer sequence that was delivered before it, 0 where it does not say."""

    subject: str
    up_to: int


class Kind:
    """Tells the records of one consumer from others."""

    def __init__(self, head: Head) -> None:
        self._head = head
        # beginnings of its tokens: of version 1, then of those that were met last
        self._prefixes: tuple[bytes, ...] = (head.prefix,)
        self._names = head.stream.encode(), head.consumer.encode()

    def find_token(self, headers: Headers) -> bytes | None:
        """The token of a delivery of this consumer's, None for any other record."""
        if headers and headers[-1][0] == TOKEN:
            token = headers[-1][1]
        else:
            token = next((value for name, value in reversed(headers) if name == TOKEN), None)
        if token is None or token.startswith(self._prefixes):
            return token
        if not self._head.has(token):
            return None
        incarnation = token[len(PREFIX_2) : token.index(b".", len(PREFIX_2))]
        self._prefixes = (self._head.prefix, self._head.tag(incarnation) + b".", *self._prefixes[1:MOST])
        return token

    def is_status(self, headers: Headers) -> bool:
        """Whether it is a status of this consumer's."""
        found = dict(headers)
        return CODE in found and (found.get(STREAM), found.get(CONSUMER)) == self._names

    def find_flow(self, headers: Headers) -> Flow | None:
        """What a status wants to be answered with, None where it wants nothing."""
        if not self.is_status(headers):
            return None
        found = dict(headers)
        subject = (found.get(REPLY_TO) or found.get(STALLED) or b"").decode(errors="replace")
        last = found.get(LAST_CONSUMER) or b""
        return Flow(subject, int(last) if last.isdigit() else 0) if subject else None

    def read_beat(self, headers: Headers) -> tuple[int, int] | None:
        """The last stream and consumer sequence that a heartbeat names, None for any other record."""
        if not self.is_status(headers):
            return None
        found = dict(headers)
        try:
            return int(found[LAST_STREAM] or b""), int(found[LAST_CONSUMER] or b"")
        except (KeyError, ValueError):
            return None
