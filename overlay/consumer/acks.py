"""What acks say: tokens and bodies (facts/jetstream d, interfaces "Records"), read into values.

A token is the reply subject that travels with a delivery. Eleven parts or more are version 2: a domain and an account hash
stand in front, and parts after the eleventh count for nothing. The overlay writes `_` as the domain, and in place of the
hash the incarnation that gave out the delivery (lineage.py). Nine parts are version 1, which names no incarnation; ten are
never valid.

The head of a range ack, whose body names deliveries by their consumer sequences, is the token's beginning: six parts with
the incarnation, or four without. Earlier versions wrote four, for any delivery; with `"incarnation": ""` in the body, which
earlier versions pass over, four parts name deliveries whose tokens are of version 1 and no others.

Nothing here raises: what cannot be read comes back as `Garbage` with its reason, for the caller to count. A delay that
cannot be read is no garbage to a server, which takes a plain nak for it; such an `Ack` has `is_flawed` set, and the
reader of an ack topic, which has to leave everything as it was, can tell it by that.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from overlay.units import INT64_MAX, parse_duration

from .ranges import MAX_RANGES

MAX_BODY = 512 << 10
"""Bytes of a body that is read at all: MAX_RANGES ranges of two numbers with 19 digits fit."""
MAX_TEXT = 4 << 10
"""Bytes of what stands behind a verb: a delay, or a pull request. A longer one counts as flawed."""
MAX_REASON = 1 << 10
"""Characters of a term's reason. It goes into an advisory, and a longer one could be more than the events topic takes."""

_HEAD = ("$JS", "ACK")


class Verb(enum.Enum):
    ACK = b"+ACK"
    NAK = b"-NAK"
    PROGRESS = b"+WPI"
    TERM = b"+TERM"
    NEXT = b"+NXT"


class Flaw(enum.Enum):
    """Why an ack counts for nothing; the label of `acks_refused_total`."""

    TOKEN = "token"
    PAYLOAD = "payload"
    RANGES = "ranges"
    FUTURE = "future"
    CLOSED = "closed"
    UNKNOWN = "unknown"  # another stream, or no consumer of this one
    INCARNATION = "incarnation"  # a delivery that was never committed, or of an earlier consumer of this name


@dataclass(frozen=True, slots=True)
class Token:
    """The delivery that an ack is for. `time`: ns since 1970 when the message was stored. `incarnation`: empty in version 1."""

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
    """One ack. `delay`: ns, of a nak that names one. `text`: the reason of a term, the pull request of a next."""

    token: Token
    verb: Verb
    delay: int | None = None
    text: str = ""
    is_flawed: bool = False


@dataclass(frozen=True, slots=True)
class RangeAck:
    """Acks of all deliveries whose consumer sequence lies in one of the ranges; both ends belong to them.

    `incarnation`: that gave out the deliveries, empty for machines that knew none; None where the ack does not say.
    """

    stream: str
    consumer: str
    ranges: tuple[tuple[int, int], ...]
    incarnation: str | None = None


@dataclass(frozen=True, slots=True)
class Garbage:
    """Not an ack. `token`: where it was one; servers answer an unknown payload all the same."""

    flaw: Flaw
    token: Token | None = None


def acks_topic(prefix: str, stream: str) -> str:
    """The topic that takes a stream's acks."""
    return f"{prefix}.{stream}.acks"


def write_head(stream: str, consumer: str, incarnation: str = "") -> str:
    """What all tokens of a consumer's incarnation begin with, and the head of its range acks."""
    return f"$JS.ACK._.{incarnation}.{stream}.{consumer}" if incarnation else f"$JS.ACK.{stream}.{consumer}"


def parse_token(text: str) -> Token | None:
    """The token in either version, None for anything else."""
    parts = text.split(".")
    if tuple(parts[:2]) != _HEAD or len(parts) < 9 or len(parts) == 10:
        return None
    at = 2 if len(parts) == 9 else 4
    incarnation = "" if at == 2 else parts[3]
    stream, consumer = parts[at : at + 2]
    # Kafka's records may be without a time, which is -1 ms, or be of a time before 1970
    sign, parts[at + 5] = (-1, parts[at + 5][1:]) if parts[at + 5].startswith("-") else (1, parts[at + 5])
    numbers = [_read_number(part) for part in parts[at + 2 : at + 7]]
    if not stream or not consumer or any(number is None for number in numbers):
        return None
    deliveries, stream_seq, consumer_seq, time, num_pending = (number or 0 for number in numbers)
    if not deliveries or not stream_seq or not consumer_seq:
        return None
    return Token(stream, consumer, deliveries, stream_seq, consumer_seq, sign * time, num_pending, incarnation)


def parse_ack(token: bytes, body: bytes) -> Ack | RangeAck | Garbage:
    """An ack as it stands in a record or a NATS message. `token`: the header or key, or the subject."""
    try:
        text = token.decode()
    except UnicodeDecodeError:
        return Garbage(Flaw.TOKEN)
    parts = text.split(".")
    if len(parts) in (4, 6) and tuple(parts[:2]) == _HEAD and parts[-2] and parts[-1]:
        return _parse_ranges(parts[-2], parts[-1], parts[3] if len(parts) == 6 else None, body)
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
        return Ack(token, Verb.TERM, text=_read_text(body, Verb.TERM)[:MAX_REASON])
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


def _parse_ranges(stream: str, consumer: str, incarnation: str | None, body: bytes) -> RangeAck | Garbage:
    if not body.startswith(b"+ACK") or len(body) > MAX_BODY:
        return Garbage(Flaw.RANGES)
    try:
        found = json.loads(body[4:])
    except (ValueError, RecursionError):
        return Garbage(Flaw.RANGES)
    if not isinstance(found, dict):
        return Garbage(Flaw.RANGES)
    if incarnation is None and found.get("incarnation") == "":
        incarnation = ""
    ranges = found.get("consumer_seq")
    if not isinstance(ranges, list) or not 0 < len(ranges) <= MAX_RANGES or not all(_is_range(pair) for pair in ranges):
        return Garbage(Flaw.RANGES)
    return RangeAck(stream, consumer, tuple((first, last) for first, last in ranges), incarnation)


def write_ranges(ranges: Sequence[tuple[int, int]], *, is_unnamed: bool = False) -> bytes:
    """The body of a range ack. `is_unnamed`: of deliveries whose tokens name no incarnation."""
    fields: dict[str, Any] = {"consumer_seq": [list(pair) for pair in ranges]}
    if is_unnamed:
        fields["incarnation"] = ""
    return b"+ACK " + json.dumps(fields, separators=(",", ":")).encode()


def _is_range(pair: object) -> bool:
    if not isinstance(pair, list) or len(pair) != 2 or not all(type(end) is int for end in pair):
        return False
    first, last = pair
    return bool(0 < first <= last <= INT64_MAX)


def _read_text(body: bytes, verb: Verb) -> str:
    return body[len(verb.value) :].decode(errors="replace").strip()


def _read_number(text: str) -> int | None:
    # no more digits than an int64 has: a megabyte of them is not worth the time it takes to be refused
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        return None
    return number if (number := int(text)) <= INT64_MAX else None
