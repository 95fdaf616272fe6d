"""Advisories and metric events in JetStream's JSON: subject and body of records of the events topic.

The formats are those of docs/jetstream.md#advisories.
"""

from __future__ import annotations

import json
from typing import Any

from overlay.units import format_time

from .effects import Advise, Advisory, Sample

_PREFIX = "io.nats.jetstream"
_DELIVERY = (Advisory.MAX_DELIVER, Advisory.NAK, Advisory.TERMINATED)
_GROUP = (Advisory.PINNED, Advisory.UNPINNED)


def encode_advisory(event: Advise | Sample, stream: str, consumer: str, id: str, now: int) -> tuple[str, bytes]:
    """Return subject and JSON body of an advisory or a metric event about a consumer, as JetStream
    publishes them.

    `id`: a unique id of the event; `now`: ns since 1970, its timestamp.
    """
    if isinstance(event, Sample):
        subject, type, fields = "METRIC.CONSUMER.ACK", "metric.v1.consumer_ack", _sample_fields(event)
    else:
        kind, name = event.kind.value
        subject, type, fields = f"ADVISORY.CONSUMER.{name}", f"advisory.v1.{kind}", _fields(event)
    body = {
        "type": f"{_PREFIX}.{type}",
        "id": id,
        "timestamp": format_time(now),
        "stream": stream,
        "consumer": consumer,
        **fields,
    }
    return f"$JS.EVENT.{subject}.{stream}.{consumer}", json.dumps(body, separators=(",", ":")).encode()


def _sample_fields(event: Sample) -> dict[str, Any]:
    return {
        "consumer_seq": event.consumer_seq,
        "stream_seq": event.stream_seq,
        "ack_time": event.ack_time,
        "deliveries": event.deliveries,
    }


def _fields(event: Advise) -> dict[str, Any]:
    if event.kind in _DELIVERY:
        consumer_seq = {} if event.kind is Advisory.MAX_DELIVER else {"consumer_seq": event.consumer_seq}
        reason = {"reason": event.reason} if event.reason else {}
        return {**consumer_seq, "stream_seq": event.stream_seq, "deliveries": event.deliveries, **reason}
    if event.kind is Advisory.PAUSE:
        return {"paused": event.is_paused, "pause_until": format_time(event.until)}
    if event.kind in _GROUP:
        what = {"pinned_id": event.pin} if event.kind is Advisory.PINNED else {"reason": event.reason}
        return {"group": event.group, **what}
    return {"action": "create" if event.kind is Advisory.CREATED else "delete"}
