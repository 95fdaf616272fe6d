"""The events topic `<prefix>.events`: advisories, samples and the audit of requests, in JetStream's JSON.

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
from overlay.output.entry import Entry
from overlay.output.record import Record
from overlay.units import format_time

AUDIT = "$JS.EVENT.ADVISORY.API"
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


def _make_id(*parts: object) -> str:
    """Return the hash of these parts as 32 hex digits. The time in ns that is among them makes the
    ids of events differ.
    """
    return f"{mmh3.hash128('/'.join(map(str, parts)), signed=False):032x}"
