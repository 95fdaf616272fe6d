"""Requests and responses: what clients can ask of the overlay, and how it answers
(docs/control.md).

A request is a record of the control topic with the key `request ID` and a JSON object as its value.
Its headers name where the answer goes. The answer is JetStream's response to the request of that
name: the same `type` and fields. Requests about workers are the overlay's own. A refusal has an
`error` with the same `code`, `err_code` and `description`. `hint` in an error is the overlay's own
and says what to do.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import mmh3

from overlay.config.codes import ERRORS, ApiError
from overlay.kafka.header_names import CLIENT, SENT
from overlay.kafka.own_topics import reply_topic
from overlay.replies.reply_address import Address, ReplyRule, read_address
from overlay.units import INT64_MAX, parse_duration

from .records import MAX_VALUE, ConsumerId, Unreadable, read_json

if TYPE_CHECKING:
    from overlay.config.checks import Violation

TIMEOUT = 10_000_000_000
"""Default time for which a request may be answered, in ns: 10 s."""

OPEN_WAIT_MS = 1_800_000
"""Longest time for which an open request may be answered, in ms: half an hour. The control topic
says for an hour of which requests it has had a copy. So a request that is copied again after that
is too old to be carried out again.
"""

MAX_CLIENT = 1_000
"""Most bytes of a client's name; the rest of a longer one is cut off."""

_TYPE = "io.nats.jetstream.api.v1"
CONSUMER_NOT_FOUND = ApiError(10014, 404, "consumer not found")
"""An error of requests that contain no config; overlay/config/codes.py lists only those that do."""
TOO_BUSY = ApiError(10023, 503, "insufficient resources")
"""The error of any request while too many others wait."""
MOST_LISTED = 256
"""Most consumers in one answer to a list, as in nats-server; a client passes `offset` to get more."""
MOST_SHARDS = 1024
"""Most shards of a service; their numbers are below this."""
MOST_NAME = 256
"""Most characters that are kept of each name in a request that is refused for being one too many."""


class Op(enum.Enum):
    """A kind of request: its name, the name of its response, and JetStream's subject for it."""

    CREATE = "consumer.create", "consumer_create_response", "CONSUMER.CREATE"
    UPDATE = "consumer.update", "consumer_create_response", "CONSUMER.CREATE"
    DELETE = "consumer.delete", "consumer_delete_response", "CONSUMER.DELETE"
    INFO = "consumer.info", "consumer_info_response", "CONSUMER.INFO"
    LIST = "consumer.list", "consumer_list_response", "CONSUMER.LIST"
    PAUSE = "consumer.pause", "consumer_pause_response", "CONSUMER.PAUSE"
    RESUME = "consumer.resume", "consumer_pause_response", "CONSUMER.PAUSE"
    NEXT = "consumer.next", "consumer_next_response", "CONSUMER.MSG.NEXT"
    DRAIN = "worker.drain", "worker_drain_response", "WORKER.DRAIN"
    UNDRAIN = "worker.undrain", "worker_drain_response", "WORKER.UNDRAIN"
    STREAM_INFO = "stream.info", "stream_info_response", "STREAM.INFO"
    STREAM_LIST = "stream.list", "stream_list_response", "STREAM.LIST"

    @property
    def word(self) -> str:
        """The name of the request."""
        return self.value[0]

    @property
    def response(self) -> str:
        """The `type` of the response."""
        return f"{_TYPE}.{self.value[1]}"

    @property
    def changes(self) -> bool:
        """Whether the request may change something, and so is audited."""
        return self in (Op.CREATE, Op.UPDATE, Op.DELETE, Op.PAUSE, Op.RESUME, Op.DRAIN, Op.UNDRAIN)


_OPS = {op.word: op for op in Op}
_NAMED = (Op.DELETE, Op.INFO, Op.PAUSE, Op.RESUME, Op.NEXT)


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it was read from the control topic.

    `id`: from its key. `reply`: address of the answer. `expires_at`: ns since 1970, after which no
    client waits for the answer. `op`: None if unknown. `client`: the client's name, which may be
    empty. `text`: the value as it came. `fault`: why the request is invalid, which is answered,
    else "". `is_excess`: whether too many others waited when it came, which is answered as well.
    """

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
    is_excess: bool = False
    shard: int | None = None
    """The shard whose consumers a list is to have; None for those of all shards, as far as the answering worker knows."""

    def shorten(self) -> Request:
        """Return what is needed of the request to refuse it for being one too many."""
        names = self.stream[:MOST_NAME], self.consumer[:MOST_NAME]
        return Request(self.id, self.reply, self.expires_at, self.op, *names, client=self.client, is_excess=True)

    @property
    def about(self) -> ConsumerId:
        """The stream and consumer that the request is for; the shard that has them answers it. The
        consumer's name is empty for a request about a stream, both names for one about all streams.
        A request about one shard has its number as the name, without a stream.
        """
        return (self.stream, self.consumer) if self.shard is None else ("", str(self.shard))

    @property
    def subject(self) -> str:
        """The JetStream API subject to which a NATS client would send this request."""
        names = (name for name in (self.stream, self.consumer) if name)
        return ".".join(("$JS.API", self.op.value[2] if self.op else "UNKNOWN", *names))


@dataclass(frozen=True, slots=True)
class RequestRefusal:
    """Why a request is refused: one of JetStream's errors, and what to do about it."""

    error: ApiError
    description: str
    hint: str = ""


def refuse(error: ApiError | int, hint: str = "", **parts: str) -> RequestRefusal:
    """Return a refusal. `error`: one of JetStream's errors, or its number (err_code). `hint`: what
    to do about it. `parts` fill the braces of the error's description.
    """
    found = ERRORS[error] if isinstance(error, int) else error
    return RequestRefusal(found, found.description.format(**parts), hint)


def refuse_violation(found: Violation) -> RequestRefusal:
    """Return a violated config rule as a refusal."""
    return RequestRefusal(found.error, found.description, f"{found.field}: {found.hint}" if found.hint else found.field)


def parse_request(
    id: str, value: bytes, find_header: Callable[[str], bytes | None], timestamp: int, rule: ReplyRule
) -> Request:
    """Return the request in a record's value. An invalid one has `fault` set; nothing is raised.
    `timestamp`: of the record, ms since 1970. `rule`: which reply topics are allowed.

    If its headers name no valid reply address, or one that is not allowed, it is answered in the
    overlay's own reply topic. The timeout of a copied open request counts from the time at which
    the original was sent, and is OPEN_WAIT_MS at most.
    """
    reply = read_address(find_header, rule, id.encode()) or str(Address(reply_topic(rule.prefix), id.encode()))
    client = (find_header(CLIENT) or b"")[:MAX_CLIENT].decode(errors="replace")
    text = value[:MAX_VALUE].decode(errors="replace")
    first_sent = _read_sent(find_header(SENT))
    sent = (timestamp if first_sent is None else min(timestamp, first_sent)) * 1_000_000
    most = INT64_MAX if first_sent is None else OPEN_WAIT_MS * 1_000_000
    try:
        body = read_json(value)
        expires_at = sent + min(max(parse_duration(body.get("timeout", TIMEOUT)), 0), most)
    except (Unreadable, ValueError) as error:
        return Request(id, reply, sent + TIMEOUT, client=client, text=text, fault=str(error))
    op, stream, consumer = _OPS.get(str(body.get("op"))), body.get("stream", ""), body.get("consumer", "")
    fault = _find_fault(op, stream, consumer, body)
    if op in (Op.CREATE, Op.UPDATE) and not consumer:
        consumer = _find_name(body, id)
    shard = body.get("shard") if op is Op.LIST and not fault else None
    return Request(id, reply, expires_at, op, str(stream), str(consumer), body, client, text, fault, shard=shard)


def _read_sent(text: bytes | None) -> int | None:
    """Return the time in a SENT header, ms since 1970; None if there is no header, or no time in it."""
    return int(text) if text is not None and text.isdigit() and len(text) < 16 else None


def _find_name(body: Mapping[str, Any], id: str) -> object:
    """Return the consumer name in a requested config. Without one, the name is made from the
    request's id, so that it is the same whenever the request is read."""
    config = body.get("config")
    config = config if isinstance(config, dict) else {}
    return config.get("durable_name") or config.get("name") or f"{mmh3.hash(id, signed=False):08x}"


def _find_fault(op: Op | None, stream: object, consumer: object, body: Mapping[str, Any]) -> str:
    """Return what is wrong with the operation or the names in a request, empty if nothing is."""
    if op is None:
        return f"op: found {body.get('op')!r}, known are {', '.join(_OPS)}"
    if not isinstance(stream, str) or not isinstance(consumer, str):
        return "stream and consumer are texts"
    if op is Op.LIST and (type(shard := body.get("shard", 0)) is not int or not 0 <= shard < MOST_SHARDS):
        return f"shard: found {shard!r}, wants the number of a shard"
    if not stream and op not in (Op.LIST, Op.STREAM_LIST, Op.DRAIN, Op.UNDRAIN):
        return "stream: is missing"
    return "consumer: is missing" if op in _NAMED and not consumer else ""


def respond(request: Request, fields: Mapping[str, object]) -> dict[str, object]:
    """Return the body of the response to a request that was granted: its `type`, and `fields`."""
    return {"type": _type_of(request), **fields}


def respond_refused(request: Request, refusal: RequestRefusal) -> dict[str, object]:
    """Return the body of the response to a request that was refused: its `type`, and an `error`."""
    error: dict[str, object] = {
        "code": refusal.error.code,
        "err_code": refusal.error.err_code,
        "description": refusal.description,
    }
    if refusal.hint:
        error["hint"] = refusal.hint
    return {"type": _type_of(request), "error": error}


def _type_of(request: Request) -> str:
    """Return the `type` of the response to a request; that of an error for an unknown operation."""
    return request.op.response if request.op else f"{_TYPE}.error"
