"""The events topic `<prefix>.events`: advisories, samples, the audit of requests, and records that cannot be read, in
JetStream's JSON.

The key of a record is the subject that JetStream would publish to, so that readers can tell the
kinds apart without parsing values. All records go to one partition, so the order of one consumer's
events is kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import mmh3

from overlay.consumer.advisories import encode_advisory
from overlay.consumer.effects import Advise, Effect, Sample
from overlay.kafka.own_topics import events_topic
from overlay.kafka.passed_over import PassedOver
from overlay.output.entry import Entry
from overlay.output.record import Record
from overlay.units import format_time

MOST_TEXT = 200
"""Most characters that an event has of what is wrong with a record: it may repeat what is in the record."""
AUDIT = "$JS.EVENT.ADVISORY.API"
UNREADABLE = "$OVERLAY.EVENT.UNREADABLE"
_UNREADABLE_TYPE = "overlay.unreadable.v1.records"
_AUDIT_TYPE = "io.nats.jetstream.advisory.v1.api_audit"


def encode_notices(effects: Iterable[Effect], stream: str, consumer: str, now: int, prefix: str) -> list[Entry]:
    """Return a record for the events topic for each advisory and sample among the effects of one
    step. Other effects are left out.

    `now`: ns since 1970. `prefix`: how the names of the overlay's topics begin.
    """
    topic = events_topic(prefix)
    found = []
    for at, effect in enumerate(effects):
        if isinstance(effect, Advise | Sample):
            subject, body = encode_advisory(effect, stream, consumer, _make_id(stream, consumer, now, at), now)
            found.append(Entry(topic, Record(subject.encode(), body)))
    return found


def encode_audit(
    server: str, subject: str, request: str, response: Mapping[str, object], now: int, prefix: str, client: str = ""
) -> Entry:
    """Return a record for the events topic that tells of a request and its response.

    `server`, `client`: names; an empty client is left out. `request`: its body as received. `now`:
    ns since 1970. `prefix`: how the names of the overlay's topics begin.
    """
    body = {
        "type": _AUDIT_TYPE,
        "id": _make_id(subject, request, now, 0),
        "timestamp": format_time(now),
        "server": server,
        "client": {"name": client} if client else {},
        "subject": subject,
        "request": request,
        "response": json.dumps(response, separators=(",", ":")),
    }
    return Entry(events_topic(prefix), Record(AUDIT.encode(), json.dumps(body, separators=(",", ":")).encode()))


def encode_unreadable(server: str, found: PassedOver, now: int, prefix: str) -> Entry:
    """Return a record for the events topic that tells of records that could not be read.

    `server`: the name of the worker. `now`: ns since 1970. `prefix`: how the names of the overlay's topics begin.
    """
    body = {
        "type": _UNREADABLE_TYPE,
        "id": _make_id(server, found.place, found.reason, now),
        "timestamp": format_time(now),
        "server": server,
        "topic": found.topic,
        "partition": found.partition,
        "offset": found.offset,
        "reason": found.reason,
        "text": found.text[:MOST_TEXT],
        "count": found.count,
    }
    key = f"{UNREADABLE}.{found.topic}"
    return Entry(events_topic(prefix), Record(key.encode(), json.dumps(body, separators=(",", ":")).encode()))


def _make_id(*parts: object) -> str:
    """Return the hash of these parts as 32 hex digits. The time in ns that is among them makes the
    ids of events differ.
    """
    return f"{mmh3.hash128('/'.join(map(str, parts)), signed=False):032x}"
