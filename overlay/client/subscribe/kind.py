"""The kinds of records of an output topic for the reader of one consumer, told by the headers alone.

Several consumers may share an output topic; the token says which one a delivery belongs to. A
status (heartbeat, flow control request) has no ack token, and names its stream and consumer. All
other records are ignored.
"""

from __future__ import annotations

from typing import NamedTuple

from overlay.consumer.pulls import LAST_CONSUMER, LAST_STREAM, STALLED
from overlay.kafka.header_names import CODE, CONSUMER, REPLY_TO, STREAM, TOKEN
from overlay.output.record import Headers

from .acking import PREFIX_2, Head

MOST = 4
"""Incarnations whose tokens are recognised by their beginning; tokens of others are parsed."""


class FlowRequest(NamedTuple):
    """A flow control request, which the reader has to answer.

    `subject`: what the answer has to name. `up_to`: the last consumer sequence delivered before it,
    0 if it does not say.
    """

    subject: str
    up_to: int


class RecordClassifier:
    """A classifier that tells, by headers alone, the deliveries and statuses of one consumer from all other records of
    its output topic. `head`: the consumer.
    """

    def __init__(self, head: Head) -> None:
        self._head = head
        # beginnings of its tokens: of version 1, then of the incarnations seen last
        self._prefixes: tuple[bytes, ...] = (head.prefix,)
        self._names = head.stream.encode(), head.consumer.encode()

    def find_token(self, headers: Headers) -> bytes | None:
        """Return the ack token in the headers of a delivery of this consumer, None for those of any other record."""
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
        """Return whether the headers are those of a status of this consumer: a heartbeat or a flow control request."""
        found = dict(headers)
        return CODE in found and (found.get(STREAM), found.get(CONSUMER)) == self._names

    def find_flow(self, headers: Headers) -> FlowRequest | None:
        """Return the flow control request in the headers of a status of this consumer; None for those of
        any other record, and of a status that asks for no answer. A heartbeat may ask for one too.
        """
        if not self.is_status(headers):
            return None
        found = dict(headers)
        subject = (found.get(REPLY_TO) or found.get(STALLED) or b"").decode(errors="replace")
        last = found.get(LAST_CONSUMER) or b""
        return FlowRequest(subject, int(last) if last.isdigit() and len(last) < 20 else 0) if subject else None

    def read_beat(self, headers: Headers) -> tuple[int, int] | None:
        """Return the stream sequence and the consumer sequence of the last delivery before a heartbeat
        of this consumer, as its headers name them; None if they do not, as those of any other record.
        """
        if not self.is_status(headers):
            return None
        found = dict(headers)
        try:
            return int(found[LAST_STREAM] or b""), int(found[LAST_CONSUMER] or b"")
        except (KeyError, ValueError):
            return None
