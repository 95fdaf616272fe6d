"""The stream, and the consumers of a storm: what each wants, as a config file says it and as plain
Python says it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.oracle.push import wants

STREAM = "FLIGHTS"
PARTITIONS = 6
SHARDS = 3
NUMBER = "n"
"""The header that names a record: producers never use a number twice."""
ACK_WAIT_S = 6.0

ACKED: Mapping[str, Any] = {"ack_policy": "explicit", "ack_wait": f"{ACK_WAIT_S}s"}

STREAM_FILE: Mapping[str, Any] = {
    "name": STREAM,
    "topics": ["flights"],
    "subject": {"template": "flights.{header:origin}.{header:dest}.{header:carrier}"},
    "subjects": ["flights.*.*.*"],
    "properties": {
        "distance": {"type": "long", "from": "{value:distance}"},
        "tail": {"type": "string", "from": "{value:tailnum}"},
        "delay": {"type": "double", "from": "{value:arr_delay}"},
    },
    "index": {"terms": ["tail"], "zones": ["distance"], "chunk_records": 1000, "chunk_age": "1s"},
}


@dataclass(frozen=True, slots=True)
class Flight:
    """What a consumer can ask of a record."""

    subject: str
    distance: int
    tail: str | None
    delay: float | None


Wants = Callable[[Flight], bool]


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer. `members`: applications that share its output; 0 if there are no acks."""

    name: str
    config: Mapping[str, Any]
    wants: Wants
    members: int = 0
    by_request: bool = False
    """Whether it is made through the control topic; otherwise a file is written."""
    output: str = ""
    """The output topic; empty for a consumer that is pulled from."""

    @property
    def is_pulled(self) -> bool:
        return not self.output

    @property
    def acks(self) -> bool:
        return self.members > 0

    @property
    def acks_all(self) -> bool:
        return bool(self.config["ack_policy"] == "all")


def read_flight(value: bytes, headers: Mapping[str, bytes]) -> Flight:
    """Return what consumers can ask of a record of the source topic."""
    row = json.loads(value)
    subject = "flights." + ".".join(headers[name].decode() for name in ("origin", "dest", "carrier"))
    return Flight(subject, row["distance"], row["tailnum"], row["arr_delay"])


def plan_consumers(prefix: str, delivery: str) -> list[Consumer]:
    """Return the consumers that are there from the start."""
    make = partial(_make, prefix, delivery)
    return [
        make("everything", lambda flight: True, {}),
        make(
            "far",
            lambda flight: flight.distance >= 1500 and (flight.tail or "").startswith("N5"),
            {
                "filter": {"sql": "distance >= 1500 AND tail LIKE 'N5%'"},
                "output": {"partitions": 3, "partition_by": "key"},
            },
        ),
        make("jfk", _from("flights.JFK.>"), {"filter_subjects": ["flights.JFK.>"]}),
        make(
            "shared",
            _from("flights.LGA.>"),
            {
                **ACKED,
                "filter_subjects": ["flights.LGA.>"],
                "output": {"partitions": 2, "partition_by": "subject"},
                "max_ack_pending": 2000,
            },
            members=2,
        ),
        make(
            "near",
            lambda flight: flight.distance < 250,
            {**ACKED, "filter": {"sql": "distance < 250"}, "interest": "always", "max_ack_pending": 500},
            members=1,
        ),
        make(
            "newark",
            _from("flights.EWR.*.UA"),
            {**ACKED, "ack_policy": "all", "filter_subjects": ["flights.EWR.*.UA"]},
            members=1,
        ),
        make(
            "boston",
            _from("flights.*.BOS.*"),
            {**ACKED, "filter_subjects": ["flights.*.BOS.*"], "deliver_subject": "", "max_ack_pending": 300},
            members=1,
        ),
    ]


def plan_arrival(prefix: str, delivery: str, number: int) -> Consumer:
    """Return the consumer that comes as the `number`-th (from 0) while the storm is on."""
    name = f"late-{number}"
    match number % 3:
        case 0:
            config: dict[str, Any] = {"filter": {"sql": "delay > 120"}}
            return _make(prefix, delivery, name, lambda flight: flight.delay is not None and flight.delay > 120, config)
        case 1:
            config = {**ACKED, "filter_subjects": ["flights.*.ATL.*"]}
            return _make(prefix, delivery, name, _from("flights.*.ATL.*"), config, members=1, by_request=True)
        case _:
            config = {"filter_subjects": ["flights.JFK.>"], "filter": {"sql": "distance > 2000"}}
            return _make(prefix, delivery, name, _is_far_from_jfk, config, by_request=True)


def _make(
    prefix: str,
    delivery: str,
    name: str,
    wants: Wants,
    more: Mapping[str, Any],
    *,
    members: int = 0,
    by_request: bool = False,
) -> Consumer:
    config = {
        "stream": STREAM,
        "durable_name": name,
        "deliver_subject": f"{prefix}-{name}",
        "ack_policy": "none",
        "delivery": delivery,
        **more,
    }
    return Consumer(name, config, wants, members, by_request, config["deliver_subject"])


def _is_far_from_jfk(flight: Flight) -> bool:
    return flight.subject.startswith("flights.JFK.") and flight.distance > 2000


def _from(pattern: str) -> Wants:
    return lambda flight: wants([pattern], flight.subject)
