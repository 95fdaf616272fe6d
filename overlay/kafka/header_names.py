"""Names of the headers of the overlay's records, which writers and readers share.

Those that only statuses of pull requests have are in overlay/consumer/pulls.py.
"""

from __future__ import annotations

SUBJECT, TOKEN = "Nats-Subject", "Nats-Reply-To"
"""Headers of every delivery. An ack repeats the token."""
STREAM, CONSUMER = "Nats-Stream", "Nats-Consumer"
FULL = (
    STREAM,
    CONSUMER,
    "Nats-Num-Delivered",
    "Nats-Sequence",
    "Nats-Consumer-Sequence",
    "Nats-Time-Stamp",
    "Nats-Num-Pending",
)
"""Further headers of `headers: full`, in the order of the token's parts. Times are ns since 1970."""
VALUE_SIZE = "Nats-Msg-Size"
"""The size of a value that was left out, in bytes."""

REPLY_TOPIC = "Overlay-Reply-Topic"
REPLY_PARTITION = "Overlay-Reply-Partition"
CORRELATION = "Overlay-Correlation-Id"
"""Headers of an ack or a request whose sender wants an answer. The answer repeats the last one."""
CLIENT = "Overlay-Client"
"""Header of a request with the client's name, for the audit."""

SENT = "Overlay-Sent"
"""Header of a request that was copied from the requests topic: when it was sent, ms since 1970."""

CODE, DESCRIPTION = "Nats-Status", "Nats-Description"
"""Headers of a status. It names its stream and consumer as deliveries do."""
REPLY_TO = "Nats-Reply-To"
"""Header of a status that wants an answer: the subject to send it to."""
PIN = "Nats-Pin-Id"
"""Header of a delivery to the pinned client of a group."""

REASON = "Overlay-Dead-Reason"
DELIVERIES = "Overlay-Deliveries"
FIRST_DELIVERED, LAST_DELIVERED = "Overlay-First-Delivered", "Overlay-Last-Delivered"
DEAD_STREAM, DEAD_CONSUMER = "Overlay-Stream", "Overlay-Consumer"
SOURCE_PARTITION, SOURCE_OFFSET = "Overlay-Source-Partition", "Overlay-Source-Offset"
CAUSES = (
    REASON,
    DELIVERIES,
    FIRST_DELIVERED,
    LAST_DELIVERED,
    DEAD_STREAM,
    DEAD_CONSUMER,
    SOURCE_PARTITION,
    SOURCE_OFFSET,
)
"""Headers that dead letters have in addition to those of a delivery. Times are RFC 3339 UTC."""
