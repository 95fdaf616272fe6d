"""Flights as fetches of record batches: headers and a JSON value, several codecs, some thousand records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from overlay.arrays import Bytes
from overlay.config import StreamConfig
from overlay.kafka.fetched import Fetched
from overlay.kafka.log_position import LogPosition
from overlay.local.flights import HEADERS, read_flights
from overlay.scan.commit import NO_ABORTS
from overlay.scan.header import split
from tests.oracle.batches import Record
from tests.support.batches import build

SOURCE = ("flights", 0)
RECORDS = 1_200
BATCH = 300
NOW = 1_700_000_000_000
STREAM = "F"
PROPERTIES: dict[str, Any] = {
    "distance": {"type": "long", "from": "{value:distance}"},
    "delay": {"type": "double", "from": "{value:times.delay}"},
    "plane": {"type": "string", "from": "{value:plane.tail}"},
    "leg": {"type": "string", "from": "{value:leg.to}"},
    "carrier": "string",
}


@cache
def make_stream() -> StreamConfig:
    """Return a stream with an index and properties in headers and JSON values."""
    return StreamConfig.model_validate(
        {
            "name": STREAM,
            "topics": (SOURCE[0],),
            "subject": {"template": "flights.{header:origin}.{header:dest}.{header:carrier}"},
            "filter_value": {"header": "dest"},
            "index": {"terms": ("carrier", "leg"), "zones": ("distance", "delay", "plane"), "chunk_records": 100},
            "properties": PROPERTIES,
        }
    )


@cache
def make_records() -> list[Record]:
    """Return flights whose JSON values are of four shapes in turn, so that what a scan remembers of one is of no use."""
    rows = read_flights().slice(0, RECORDS).to_pylist()
    records = []
    for at, row in enumerate(rows):
        headers: list[tuple[bytes, bytes | None]] = [
            (name.encode(), str(row[name]).encode()) for name in HEADERS if row[name] is not None
        ]
        records.append(Record(at, NOW - RECORDS + at, b"%d" % (at % 97), _write_value(row, at), headers))
    return records


def _write_value(row: dict[str, Any], at: int) -> bytes:
    leg = {"from": row["origin"], "to": row["dest"]}
    times = {"air": row["air_time"], "delay": row["dep_delay"], "hour": row["time_hour"]}
    plane = {"tail": row["tailnum"], "of": {"carrier": row["carrier"], "leg": leg}}
    members = {"leg": leg, "distance": row["distance"], "times": times, "plane": plane, "note": 'a "quote" \\ é'}
    turned = list(members.items())[at % 4 :] + list(members.items())[: at % 4]
    return json.dumps(dict(turned), separators=(",", ": " if at % 3 else ":")).encode()


@cache
def make_buffer(codec: int = 3) -> Bytes:
    """Return the records as one partition's part of a fetch response."""
    records = make_records()
    batches = [
        build(records[at : at + BATCH], base_offset=at, codec=codec, leader_epoch=3) for at in range(0, RECORDS, BATCH)
    ]
    return np.frombuffer(b"".join(batches), np.uint8)


def make_fetched(data: Bytes, stop: int = RECORDS) -> Fetched:
    """Return the bytes as a fetch from offset 0 that goes on at `stop`."""
    return Fetched(0, data, split(data).batches, NO_ABORTS, stop, 0, LogPosition(stop))


def as_buffer(tokens: Sequence[bytes], body: bytes) -> Bytes:
    """Return acks as a fetch of an ack topic."""
    acks = [Record(at, NOW, None, body, [(b"Nats-Reply-To", token)]) for at, token in enumerate(tokens)]
    return np.frombuffer(build(acks, codec=3), np.uint8)
