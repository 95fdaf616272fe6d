"""Requests and responses: what can be asked of the overlay, and how it answers (docs/control.md).

A request is a record of the control topic, `request ID` with a JSON object, and headers that name where the answer goes. The
answer is JetStream's response to the request of that name: the same `type`, the same fields, and `error` with the same
`code`, `err_code` and `description` where it is refused. `hint` in an error is ours and says what to do.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import mmh3

from overlay.config.checks import Violation
from overlay.config.codes import ERRORS, ApiError
from overlay.dispatch.reply_address import Address, ReplyRule, read_address, reply_topic
from overlay.units import parse_duration

from .records import ConsumerId, Unreadable, read_json

TIMEOUT = 10_000_000_000
"""How long a request is worth an answer, where it does not say: 10 s."""
CLIENT = "Overlay-Client"
"""Header with the name of who asks, for the audit."""

_TYPE = "io.nats.jetstream.api.v1"
CONSUMER_NOT_FOUND = ApiError(10014, 404, "consumer not found")
"""The errors of requests that are about no config, which codes.py lists."""


class Op(enum.Enum):
    """What can be asked: its name, the name of the response, and JetStream's subject for it."""

    CREATE = "consumer.create", "consumer_create_response", "CONSUMER.CREATE"
    UPDATE = "consumer.update", "consumer_create_response", "CONSUMER.CREATE"
    DELETE = "consumer.delete", "consumer_delete_response", "CONSUMER.DELETE"
    INFO = "consumer.info", "consumer_info_response", "CONSUMER.INFO"
    LIST = "consumer.list", "consumer_list_response", "CONSUMER.LIST"
    PAUSE = "consumer.pause", "consumer_pause_response", "CONSUMER.PAUSE"
    RESUME = "consumer.resume", "consumer_pause_response", "CONSUMER.PAUSE"
    NEXT = "consumer.next", "consumer_next_response", "CONSUMER.MSG.NEXT"
    STREAM_INFO = "stream.info", "stream_info_response", "STREAM.INFO"
    STREAM_LIST = "stream.list", "stream_list_response", "STREAM.LIST"

    @property
    def word(self) -> str:
        return self.value[0]

    @property
    def response(self) -> str:
        return f"{_TYPE}.{self.value[1]}"

    @property
    def changes(self) -> bool:
        """Whether it is worth an audit: it may leave things otherwise than they were."""
        return self in (Op.CREATE, Op.UPDATE, Op.DELETE, Op.PAUSE, Op.RESUME)


_OPS = {op.word: op for op in Op}
_NAMED = (Op.DELETE, Op.INFO, Op.PAUSE, Op.RESUME, Op.NEXT)


@dataclass(frozen=True, slots=True)
class Request:
    """Something that is asked for. `fault`: why it makes no sense, to be answered as such. `expires_at`: ns since 1970, when
    nobody waits any more. `text`: as it came."""

    id: str
    reply: str
    expires_at: int
    op: Op | None = None
    stream: str = ""
    consumer: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)
    client: str = ""
    text: str = ""
    fault: str = ""

    @property
    def about(self) -> ConsumerId:
        """Whose owner answers: a consumer, or with an empty name a stream, or all of them."""
        return self.stream, self.consumer

    @property
    def subject(self) -> str:
        """What JetStream would have been asked at."""
        names = (name for name in (self.stream, self.consumer) if name)
        return ".".join(("$JS.API", self.op.value[2] if self.op else "UNKNOWN", *names))


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is refused: one of JetStream's errors, and what to do about it."""

    error: ApiError
    description: str
    hint: str = ""


def refuse(error: ApiError | int, hint: str = "", **parts: str) -> Refusal:
    """`parts` fill the braces of the error's description."""
    found = ERRORS[error] if isinstance(error, int) else error
    return Refusal(found, found.description.format(**parts), hint)


def refuse_violation(found: Violation) -> Refusal:
    return Refusal(found.error, found.description, f"{found.field}: {found.hint}" if found.hint else found.field)


def parse_request(
    id: str, value: bytes, find_header: Callable[[str], bytes | None], timestamp: int, rule: ReplyRule
) -> Request:
    """A request from its record. `timestamp`: of the record, ms.

    One that names no topic, or none that may be written to, is answered in the overlay's own reply topic.
    """
    reply = read_address(find_header, rule, id.encode()) or str(Address(reply_topic(rule.prefix), id.encode()))
    client, text = (find_header(CLIENT) or b"").decode(errors="replace"), value.decode(errors="replace")
    sent = timestamp * 1_000_000
    try:
        body = read_json(value)
        expires_at = sent + max(parse_duration(body.get("timeout", TIMEOUT)), 0)
    except (Unreadable, ValueError) as error:
        return Request(id, reply, sent + TIMEOUT, client=client, text=text, fault=str(error))
    op, stream, consumer = _OPS.get(str(body.get("op"))), body.get("stream", ""), body.get("consumer", "")
    fault = _find_fault(op, stream, consumer, body)
    if op in (Op.CREATE, Op.UPDATE) and not consumer:
        consumer = _find_name(body, id)
    return Request(id, reply, expires_at, op, str(stream), str(consumer), body, client, text, fault)


def _find_name(body: Mapping[str, Any], id: str) -> object:
    """The name in a config; one that has none gets a name of its own, the same whenever the request is read."""
    config = body.get("config")
    config = config if isinstance(config, dict) else {}
    return config.get("durable_name") or config.get("name") or f"{mmh3.hash(id, signed=False):08x}"


def _find_fault(op: Op | None, stream: object, consumer: object, body: Mapping[str, Any]) -> str:
    if op is None:
        return f"op: found {body.get('op')!r}, known are {', '.join(_OPS)}"
    if not isinstance(stream, str) or not isinstance(consumer, str):
        return "stream and consumer are texts"
    if not stream and op not in (Op.LIST, Op.STREAM_LIST):
        return "stream: is missing"
    return "consumer: is missing" if op in _NAMED and not consumer else ""


def respond(request: Request, fields: Mapping[str, object]) -> dict[str, object]:
    """The response to a request that was granted."""
    return {"type": _type_of(request), **fields}


def respond_refused(request: Request, refusal: Refusal) -> dict[str, object]:
    error: dict[str, object] = {
        "code": refusal.error.code,
        "err_code": refusal.error.err_code,
        "description": refusal.description,
    }
    if refusal.hint:
        error["hint"] = refusal.hint
    return {"type": _type_of(request), "error": error}


def _type_of(request: Request) -> str:
    return request.op.response if request.op else f"{_TYPE}.error"
