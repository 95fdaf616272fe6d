"""Ack tokens and ack bodies, parsed into values (docs/jetstream.md#acks,
docs/consumers.md#what-acks-say).

A token is the reply subject that travels with a delivery. A token of version 2 has eleven parts or
more: a domain and an account hash come first, and parts after the eleventh are ignored. The overlay
writes `_` as the domain. In place of the hash it writes the incarnation that made the delivery
(lineage.py). A token of version 1 has nine parts and no incarnation. Ten parts are never valid.

A range ack names deliveries by their consumer sequences, in its body. Its head is the beginning of
a token: six parts with the incarnation, or four for deliveries whose tokens are of version 1.
Earlier versions of the overlay took four parts for any delivery unless the body had
`"incarnation": ""`. Now the field makes no difference.

Nothing here raises. Input that cannot be parsed comes back as `Garbage` with a reason, for the
caller to count. A delay that cannot be parsed is not garbage: nats-server treats such a nak as one
without a delay. `Ack.is_flawed` is set then, so that the reader of an ack topic can ignore the
whole ack.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from overlay.units import INT64_MAX, parse_duration

MAX_RANGES = 10_000
"""Most ranges in one ack. The client library writes up to 4,000 (client/subscribe/acking.py)."""
MAX_BODY = 512 << 10
"""Largest body in bytes that is parsed: MAX_RANGES ranges of two numbers with 19 digits fit."""
MAX_TEXT = 4 << 10
"""Most bytes of text after a verb (a delay or a pull request). An ack with a longer one is flawed."""
MAX_REASON = 1 << 10
"""Most characters of a term's reason. A longer one could make its advisory too large for the events
topic.
"""

_HEAD = ("$JS", "ACK")
_TIME_DIGITS = 19


class Verb(enum.Enum):
    """What an ack asks for; a value is how its body begins. Only NAK, TERM and NEXT may have a text
    after that; a range ack has its ranges after `+ACK`. An empty body and `+OK` are ACK as well.
    """

    ACK = b"+ACK"
    NAK = b"-NAK"
    PROGRESS = b"+WPI"
    TERM = b"+TERM"
    NEXT = b"+NXT"


class Flaw(enum.Enum):
    """Why an ack, or a part of it, has no effect (CLOSED: any event); the `reason` label of
    `overlay_acks_refused_total`.
    """

    TOKEN = "token"
    PAYLOAD = "payload"
    RANGES = "ranges"
    RECORDS = "records"  # a whole batch, which has too many of them
    FUTURE = "future"
    CLOSED = "closed"
    UNKNOWN = "unknown"  # another stream, or not a consumer of this one
    INCARNATION = "incarnation"  # the delivery was never committed, or is of an earlier consumer of this name


@dataclass(frozen=True, slots=True)
class Token:
    """The delivery that an ack is for, as the reply subject of a message names it.

    `deliveries`: how often the message was delivered, this delivery included. `time`: ns since 1970
    when the message was stored. `num_pending`: matching messages that were not delivered yet after
    this one. `incarnation`: the name of the ownership of the consumer's machine that made the
    delivery; empty in a token of version 1.
    """

    stream: str
    consumer: str
    deliveries: int
    stream_seq: int
    consumer_seq: int
    time: int = 0
    num_pending: int = 0
    incarnation: str = ""

    def __str__(self) -> str:
        head = write_head(self.stream, self.consumer, self.incarnation)
        return f"{head}.{self.deliveries}.{self.stream_seq}.{self.consumer_seq}.{self.time}.{self.num_pending}"


@dataclass(frozen=True, slots=True)
class Ack:
    """One ack of one delivery, parsed.

    `delay`: ns until the redelivery, None unless the ack is a nak with a delay. `text`: the reason
    of a term (cut to MAX_REASON characters), or the body of the pull request of a next, not parsed.
    `is_flawed`: the delay of a nak could not be parsed, or the delay or the pull request is too
    long (MAX_TEXT). `delay` is None and `text` empty then.
    """

    token: Token
    verb: Verb
    delay: int | None = None
    text: str = ""
    is_flawed: bool = False


@dataclass(frozen=True, slots=True)
class RangeAck:
    """Acks of all deliveries whose consumer sequences lie in the ranges; both ends of a range are
    included.

    `incarnation`: the one that made the deliveries. Empty for deliveries whose tokens are of
    version 1.
    """

    stream: str
    consumer: str
    ranges: tuple[tuple[int, int], ...]
    incarnation: str = ""


@dataclass(frozen=True, slots=True)
class Garbage:
    """Input that is not an ack, with the reason.

    `token`: its token if that was valid, because nats-server answers an unknown payload as well.
    None otherwise.
    """

    flaw: Flaw
    token: Token | None = None


def write_head(stream: str, consumer: str, incarnation: str = "") -> str:
    """Return the common beginning of all tokens of this incarnation of a consumer, which is the
    head of its range acks. Without an incarnation, that of tokens of version 1.
    """
    return f"$JS.ACK._.{incarnation}.{stream}.{consumer}" if incarnation else f"$JS.ACK.{stream}.{consumer}"


def measure_token(stream: str, consumer: str, incarnation: str, numbers: Iterable[int]) -> int:
    """Return the length of a token in bytes, without writing it.

    `numbers`: deliveries, stream sequence, consumer sequence and num_pending. The message's time is
    not passed: it counts as 19 digits, which every time since 2001 has.
    """
    head = write_head(stream, consumer, incarnation)
    return len(head.encode()) + 5 + sum(len(str(number)) for number in numbers) + _TIME_DIGITS


def parse_token(text: str) -> Token | None:
    """Return the token that a text spells, in either version; None if it is not a token."""
    parts = text.split(".")
    if tuple(parts[:2]) != _HEAD or len(parts) < 9 or len(parts) == 10:
        return None
    at = 2 if len(parts) == 9 else 4
    incarnation = "" if at == 2 else parts[3]
    stream, consumer = parts[at : at + 2]
    # a Kafka record may have no time (-1 ms) or one before 1970
    sign, parts[at + 5] = (-1, parts[at + 5][1:]) if parts[at + 5].startswith("-") else (1, parts[at + 5])
    numbers = [_read_number(part) for part in parts[at + 2 : at + 7]]
    if not stream or not consumer or any(number is None for number in numbers):
        return None
    deliveries, stream_seq, consumer_seq, time, num_pending = (number or 0 for number in numbers)
    if not deliveries or not stream_seq or not consumer_seq:
        return None
    return Token(stream, consumer, deliveries, stream_seq, consumer_seq, sign * time, num_pending, incarnation)


def parse_ack(token: bytes, body: bytes) -> Ack | RangeAck | Garbage:
    """Parse an ack from a record or a NATS message. Return an Ack, or a RangeAck if `token` is only
    the head that the tokens of a consumer begin with; otherwise Garbage with the reason. Nothing
    raises.

    `token`: the record's token header or key, or the message's subject. `body`: the record's value
    or the message's payload.
    """
    try:
        text = token.decode()
    except UnicodeDecodeError:
        return Garbage(Flaw.TOKEN)
    parts = text.split(".")
    if len(parts) in (4, 6) and tuple(parts[:2]) == _HEAD and parts[-2] and parts[-1]:
        return _parse_ranges(parts[-2], parts[-1], parts[3] if len(parts) == 6 else "", body)
    found = parse_token(text)
    return Garbage(Flaw.TOKEN) if found is None else _parse_body(found, body)


def _parse_body(token: Token, body: bytes) -> Ack | Garbage:
    if len(body) > MAX_BODY:
        return Garbage(Flaw.PAYLOAD, token)
    if body in (b"", b"+ACK", b"+OK"):
        return Ack(token, Verb.ACK)
    if body == Verb.PROGRESS.value:
        return Ack(token, Verb.PROGRESS)
    if body.startswith(Verb.NEXT.value):
        is_flawed = len(body) > MAX_TEXT
        return Ack(token, Verb.NEXT, text="" if is_flawed else _read_text(body, Verb.NEXT), is_flawed=is_flawed)
    if body.startswith(Verb.TERM.value):
        return Ack(token, Verb.TERM, text=cut_reason(_read_text(body, Verb.TERM)))
    if body.startswith(Verb.NAK.value):
        return _parse_nak(token, _read_text(body, Verb.NAK))
    return Garbage(Flaw.PAYLOAD, token)


def _parse_nak(token: Token, text: str) -> Ack:
    if not text:
        return Ack(token, Verb.NAK)
    if len(text) > MAX_TEXT:
        return Ack(token, Verb.NAK, is_flawed=True)
    try:
        delay = _read_delay(text)
    except (ValueError, RecursionError):
        return Ack(token, Verb.NAK, is_flawed=True)
    return Ack(token, Verb.NAK, delay)


def _read_delay(text: str) -> int:
    if not text.startswith("{"):
        return parse_duration(text)
    delay = json.loads(text).get("delay", 0)
    if type(delay) is not int or abs(delay) > INT64_MAX:
        raise ValueError("a delay is an integer of nanoseconds")
    return int(delay)


def _parse_ranges(stream: str, consumer: str, incarnation: str, body: bytes) -> RangeAck | Garbage:
    if not body.startswith(b"+ACK") or len(body) > MAX_BODY:
        return Garbage(Flaw.RANGES)
    try:
        found = json.loads(body[4:])
    except (ValueError, RecursionError):
        return Garbage(Flaw.RANGES)
    if not isinstance(found, dict):
        return Garbage(Flaw.RANGES)
    ranges = found.get("consumer_seq")
    if not isinstance(ranges, list) or not 0 < len(ranges) <= MAX_RANGES or not all(_is_range(pair) for pair in ranges):
        return Garbage(Flaw.RANGES)
    return RangeAck(stream, consumer, tuple((first, last) for first, last in ranges), incarnation)


def write_ranges(ranges: Sequence[tuple[int, int]], *, is_unnamed: bool = False) -> bytes:
    """Return the body of a range ack. `ranges`: consumer sequences, both ends included; MAX_RANGES
    at most, or readers refuse the ack.

    `is_unnamed`: the tokens of these deliveries name no incarnation. The body then has the field
    `"incarnation": ""`. Services of earlier versions need it: without the field they settle
    deliveries of any incarnation.
    """
    fields: dict[str, Any] = {"consumer_seq": [list(pair) for pair in ranges]}
    if is_unnamed:
        fields["incarnation"] = ""
    return b"+ACK " + json.dumps(fields, separators=(",", ":")).encode()


def cut_reason(reason: str) -> str:
    """Return what counts of a term's reason: without blanks around it, MAX_REASON characters at most."""
    return reason.strip()[:MAX_REASON]


def _is_range(pair: object) -> bool:
    if not isinstance(pair, list) or len(pair) != 2 or not all(type(end) is int for end in pair):
        return False
    first, last = pair
    return bool(0 < first <= last <= INT64_MAX)


def _read_text(body: bytes, verb: Verb) -> str:
    return body[len(verb.value) :].decode(errors="replace").strip()


def _read_number(text: str) -> int | None:
    # no more digits than an int64 has, so that a megabyte of digits costs no time
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        return None
    return number if (number := int(text)) <= INT64_MAX else None
