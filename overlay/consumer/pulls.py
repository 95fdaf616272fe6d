"""Pull requests and the statuses that answer them, as values (docs/jetstream.md#pull).

A request's body is empty (one message), an integer (that many), or JSON; any other text asks for
one message. A request that nats-server refuses comes back as the status that nats-server sends.
Descriptions are verbatim, because clients compare them; only the overlay refuses a body of more
than MAX_BODY bytes.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from overlay.config.consumer import ConsumerConfig, PriorityPolicy
from overlay.units import INT64_MAX

Headers = tuple[tuple[str, str], ...]

PENDING_MESSAGES, PENDING_BYTES = "Nats-Pending-Messages", "Nats-Pending-Bytes"
LAST_CONSUMER, LAST_STREAM = "Nats-Last-Consumer", "Nats-Last-Stream"
STALLED = "Nats-Consumer-Stalled"
MAX_PRIORITY = 9
MAX_BODY = 4 << 10
"""Largest body in bytes: ten fields, two of them names."""
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class StatusText:
    """What a status message says to a client: code, description and headers. It does not name the
    address that it goes to.
    """

    code: int
    description: str
    headers: Headers = ()


NO_MESSAGES = StatusText(404, "No Messages")
REQUESTS_PENDING = StatusText(408, "Requests Pending")
MAX_WAITING = StatusText(409, "Exceeded MaxWaiting")
DELETED = StatusText(409, "Consumer Deleted")
PUSH_BASED = StatusText(409, "Consumer is push based")
WRONG_PIN = StatusText(423, "Nats-Wrong-Pin-Id")


@dataclass(frozen=True, slots=True)
class PullRequest:
    """The fields of a pull request, by JetStream's names. `batch`: how many messages it asks for;
    with 0 or less it waits, and gets none.

    Durations (`expires`, `idle_heartbeat`) are ns; `expires` 0 is no time limit, `max_bytes` 0 is
    no limit.
    """

    batch: int = 1
    expires: int = 0
    no_wait: bool = False
    max_bytes: int = 0
    idle_heartbeat: int = 0
    group: str = ""
    min_pending: int = 0
    min_ack_pending: int = 0
    id: str = ""
    priority: int = 0


_TYPES: dict[str, type] = {
    "batch": int,
    "expires": int,
    "no_wait": bool,
    "max_bytes": int,
    "idle_heartbeat": int,
    "group": str,
    "min_pending": int,
    "min_ack_pending": int,
    "id": str,
    "priority": int,
}


def parse_pull(body: bytes) -> PullRequest | StatusText:
    """Parse the body of a pull request. Return the status with code 400 that refuses it if it has
    more than MAX_BODY bytes, begins with `{` and is malformed JSON, has a field of a wrong type, or
    a heartbeat of more than half of `expires`. Nothing raises. An integer that fits 64 bits is the
    batch. JSON without `batch` has batch 0. Any other text, also an empty one, asks for one
    message.
    """
    if len(body) > MAX_BODY:
        return _refuse(f"the request has more than {MAX_BODY} bytes")
    text = body.decode(errors="replace").strip()
    if text.startswith("{"):
        return _parse_json(text)
    if _NUMBER.fullmatch(text) and abs(batch := int(text)) <= INT64_MAX:
        return PullRequest(batch=batch)
    return PullRequest()


def _parse_json(text: str) -> PullRequest | StatusText:
    try:
        fields: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        return _refuse(f"invalid JSON: {error}")
    known = {name: value for name, value in fields.items() if name in _TYPES and value is not None}
    for name, value in known.items():
        if type(value) is not _TYPES[name] or (isinstance(value, int) and abs(value) > INT64_MAX):
            return _refuse(f"invalid JSON: {name} has a wrong type")
    request = PullRequest(**{"batch": 0, **known})
    if request.idle_heartbeat > 0 and request.idle_heartbeat * 2 > request.expires:
        return _refuse("heartbeat value too large")
    return request


def check_pull(request: PullRequest | StatusText, config: ConsumerConfig) -> StatusText | None:
    """Return the status that refuses a request, None if it is valid. `request`: as `parse_pull`
    returned it.

    A request is refused if it is malformed, goes beyond the consumer's limits, has wrong priority
    fields, or is for a push consumer.
    """
    if config.is_push:
        return PUSH_BASED
    if isinstance(request, StatusText):
        return request
    if config.max_batch and request.batch > config.max_batch:
        return StatusText(409, f"Exceeded MaxRequestBatch of {config.max_batch}")
    if config.max_expires and request.expires > config.max_expires:
        return StatusText(409, f"Exceeded MaxRequestExpires of {write_go_duration(config.max_expires)}")
    if config.max_bytes and request.max_bytes > config.max_bytes:
        return StatusText(409, f"Exceeded MaxRequestMaxBytes of {config.max_bytes}")
    return _check_priority(request, config)


def _check_priority(request: PullRequest, config: ConsumerConfig) -> StatusText | None:
    policy = config.priority_policy
    if (request.min_pending or request.min_ack_pending) and policy is not PriorityPolicy.OVERFLOW:
        return _refuse("Not a Overflow Priority consumer")
    if request.id and policy is not PriorityPolicy.PINNED_CLIENT:
        return _refuse("Not a Pinned Client Priority consumer")
    if not 0 <= request.priority <= MAX_PRIORITY:
        return _refuse("Priority must be between 0 and 9")
    if policy is PriorityPolicy.NONE:
        return None
    if not request.group:
        return _refuse("Priority Group missing")
    return None if request.group in config.priority_groups else _refuse("Invalid Priority Group")


def left(code: int, description: str, batch: int, size: int) -> StatusText:
    """Return a status with headers that say how many messages (`batch`) and bytes (`size`) of a
    pull request were not delivered.
    """
    return StatusText(code, description, ((PENDING_MESSAGES, str(batch)), (PENDING_BYTES, str(size))))


def idle(last_consumer: int, last_stream: int, stalled: str = "") -> StatusText:
    """Return the status that is sent as an idle heartbeat. `last_consumer`, `last_stream`: consumer
    sequence and stream sequence up to which messages were processed.

    `stalled`: the subject of the flow control request that waits for an answer, or empty.
    """
    headers = name_last(last_consumer, last_stream)
    return StatusText(100, "Idle Heartbeat", (*headers, (STALLED, stalled)) if stalled else headers)


def name_last(last_consumer: int, last_stream: int) -> Headers:
    """Return the headers that name a last consumer sequence and stream sequence."""
    return (LAST_CONSUMER, str(last_consumer)), (LAST_STREAM, str(last_stream))


def write_go_duration(nanoseconds: int) -> str:
    """Return a duration, given in ns, as Go prints it: 2s, 1m30s, 2h0m0s, 1.5s, 100ms."""
    if nanoseconds < 1_000_000_000:
        for unit, length in (("ms", 1_000_000), ("µs", 1_000)):
            if nanoseconds >= length:
                return _write_decimal(nanoseconds, length) + unit
        return f"{nanoseconds}ns" if nanoseconds else "0s"
    minutes, rest = divmod(nanoseconds, 60_000_000_000)
    hours, minutes = divmod(minutes, 60)
    seconds = _write_decimal(rest, 1_000_000_000) + "s"
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if minutes or hours else "") + seconds


def _write_decimal(number: int, unit: int) -> str:
    whole, part = divmod(number, unit)
    decimals = str(part).rjust(len(str(unit)) - 1, "0").rstrip("0")
    return f"{whole}.{decimals}" if decimals else str(whole)


def _refuse(why: str) -> StatusText:
    return StatusText(400, f"Bad Request - {why}")
