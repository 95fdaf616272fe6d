"""What clients may ask through the topic `<prefix>.requests` (docs/control.md#requests-with-fewer-rights).
Pure.

Clients that may not write to the control topic may write there. An open request changes nothing,
pulls messages, or makes or ends an ordered consumer: one that a client has for itself, told by its
name and its output topic. The relay (relay.py) copies open requests into the control topic, where
they are carried out as any other. All others are refused here.
"""

from __future__ import annotations

from overlay.kafka.header_names import CLIENT, CORRELATION, REPLY_PARTITION, REPLY_TOPIC, SENT
from overlay.kafka.own_topics import ORDERED, control_topic, ordered_topic, requests_topic
from overlay.kafka.records import StoredRecord
from overlay.output.record import Record
from overlay.replies.reply_address import MAX_CORRELATION, ReplyRule, parse_address

from .records import Misfit, Subject, Unreadable, make_key, split_key
from .requests import MAX_CLIENT, Op, Request, RequestRefusal, parse_request, refuse

MOST_BYTES = 64 << 10
"""Largest value of an open request in bytes: a copy must always fit the control topic."""
COPY = "$relay-"
"""How the ids of copies begin. Kafka's id of the requests topic follows, a dash, and the offset of
the request there.
"""

_LOOKS = (Op.INFO, Op.LIST, Op.NEXT, Op.STREAM_INFO, Op.STREAM_LIST)
_ORDERED_FIELDS = frozenset(
    {
        "ack_policy", "ack_wait", "deliver_policy", "deliver_subject", "description", "filter", "filter_subject",
        "filter_subjects", "flow_control", "headers_only", "idle_heartbeat", "inactive_threshold", "max_ack_pending",
        "max_deliver", "mem_storage", "metadata", "name", "num_replicas", "opt_start_seq", "opt_start_time", "output",
        "rate_limit_bps", "replay_policy", "stream",
    }
)  # fmt: skip
"""Fields that the config of an ordered consumer may have. None of them makes the service write
elsewhere than to `deliver_subject`.
"""


def find_copied(id: str) -> tuple[str, int] | None:
    """Return where the original of a copied open request is: Kafka's id of the requests topic, and the
    offset there. `id`: of the copy, in the control topic. None if that request is no copy.
    """
    topic_id, _, offset = id.removeprefix(COPY).rpartition("-")
    is_copy = id.startswith(COPY) and offset.isascii() and offset.isdigit() and len(offset) < 19
    return (topic_id, int(offset)) if is_copy else None


def judge_open(request: Request, prefix: str) -> RequestRefusal | None:
    """Return why a request is not taken from the requests topic, None if it is. `prefix`: how the
    names of the overlay's topics begin.
    """
    if request.fault or request.op is None:
        return refuse(10025, err=request.fault)
    if request.op in _LOOKS:
        return None
    is_ordered = request.consumer.startswith(ORDERED) and (
        request.op is Op.DELETE or (request.op is Op.CREATE and _is_ordered(request.body.get("config"), prefix))
    )
    if is_ordered:
        return None
    hint = f"write it to {control_topic(prefix)}, to which administrators of consumers have the right"
    return refuse(10012, hint, err=f"{request.op.word} is not taken from {requests_topic(prefix)}")


def _is_ordered(config: object, prefix: str) -> bool:
    """Return whether a requested config is one that ordered consumers have (client/subscribe/order.py),
    in all that says what the service writes, and where.
    """
    if not isinstance(config, dict):
        return False
    output = config.get("output")
    return (
        isinstance(output, dict)
        and output.get("temporary") is True
        and output.keys() <= {"temporary", "config"}
        and _is_retention(output.get("config", {}))
        and str(config.get("deliver_subject", "")).startswith(ordered_topic(prefix, ORDERED))
        and config.get("ack_policy") == "none"
        and all(name in _ORDERED_FIELDS for name, value in config.items() if value)
    )


def _is_retention(config: object) -> bool:
    return isinstance(config, dict) and config.keys() <= {"retention.ms"}


def read_open(row: StoredRecord, rule: ReplyRule) -> Request | None:
    """Return the request in a record of the requests topic; None for a record without a value, which
    withdraws a request. `rule`: which reply topics are allowed. Raises Unreadable.
    """
    subject, names = split_key(row.key)
    if subject is not Subject.REQUEST:
        raise Unreadable(f"not a key of the requests topic: {row.key!r}", Misfit.KEY)
    if row.value is None:
        return None
    if len(row.value) > MOST_BYTES:
        raise Unreadable(f"has {len(row.value)} bytes; an open request has at most {MOST_BYTES}", Misfit.SIZE)
    return parse_request(names[0], row.value, row.headers.get, row.timestamp, rule)


def copy_request(request: Request, row: StoredRecord, topic_id: str) -> Record:
    """Return the record of the control topic that asks what an open request asks. `row`: the
    request's own record; `topic_id`: Kafka's id of its topic. The answer goes where that one's would
    go, and its time counts from when the client sent it.
    """
    reply = parse_address(request.reply)
    headers: list[tuple[str, bytes | None]] = [
        (REPLY_TOPIC, reply.topic.encode()),
        (CORRELATION, reply.correlation[:MAX_CORRELATION]),
        (SENT, str(max(row.timestamp, 0)).encode()),
    ]
    if reply.partition is not None:
        headers.append((REPLY_PARTITION, str(reply.partition).encode()))
    if request.client:
        headers.append((CLIENT, request.client.encode()[:MAX_CLIENT]))
    return Record(_make_copy_key(topic_id, row.offset), row.value, headers)


def note_refused(topic_id: str, offset: int) -> Record:
    """Return the record of the control topic that says that the open requests up to `offset` were judged:
    the end of a copy that was never made, since the last of them was refused."""
    return Record(_make_copy_key(topic_id, offset), None)


def _make_copy_key(topic_id: str, offset: int) -> bytes:
    return make_key(Subject.REQUEST, f"{COPY}{topic_id}-{offset}")
