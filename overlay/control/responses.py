"""Contents of responses: JetStream's ConsumerInfo and StreamInfo, filled from the registry and the
service's reports. Pure.

A consumer with `ack_policy: none` waits for no acks, and its floor follows what is delivered. `num_pending` is left out while
it is unknown whether messages that match lie ahead, as when a shard starts; `lag_records` tells how many offsets there are to
read. What is the overlay's own stands under `overlay`, and there `num_pending_is` says `exact`, `estimate` or `at least`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from overlay.config import StreamConfig
from overlay.consumer.info import ConsumerInfo
from overlay.consumer.pulls import PullRequest, StatusText, parse_pull
from overlay.consumer.window import Pair
from overlay.units import format_time, parse_duration

from .records import Definition, Pause, write_config, write_json

OWN = (
    "state",
    "reason",
    "job",
    "owner",
    "positions",
    "lag_records",
    "lag_seconds",
    "delivered",
    "dead_letters",
    "rate",
    "num_pending_is",
)
"""Fields of a report that go under `overlay`."""
_PULL = ("batch", "no_wait", "max_bytes", "group", "min_pending", "min_ack_pending", "id", "priority")


def describe_consumer(
    definition: Definition, report: Mapping[str, Any], info: ConsumerInfo | None, now: int
) -> dict[str, object]:
    """Return the fields of a ConsumerInfo; the overlay's own are under `overlay`.

    `definition`: how the consumer is served. `report`: what the service's HTTP endpoint /consumers says of the consumer.
    `info`: what its machine says, None without a machine. `now`: ns since 1970.
    """
    stream, name = definition.id
    own = {"origin": definition.origin.value, **{key: report[key] for key in OWN if key in report}}
    return {
        "stream_name": stream,
        "name": name,
        "created": format_time(definition.created),
        "config": write_config(definition.config),
        **(_describe_plain(report) if info is None else _describe_machine(info)),
        **{key: report[key] for key in ("num_pending",) if key in report},
        "ts": format_time(now),
        "overlay": own if info is None else {**own, **_describe_gate(info)},
    }


def describe_acks(info: ConsumerInfo) -> dict[str, object]:
    """Return the fields of a consumer with a machine for the service's HTTP endpoint /consumers:
    the numbers of a ConsumerInfo, and what holds back new messages (`gate`).

    `num_pending` counts only the messages that the machine has been told of; more may be ahead.
    """
    own = {"num_pending": info.num_pending, **_describe_gate(info)}
    return {"push_bound": False, "paused": False, **_describe_machine(info), **own}


def _describe_gate(info: ConsumerInfo) -> dict[str, object]:
    return {"gate": info.gate.value, "num_delayed": info.num_delayed}


def _describe_plain(report: Mapping[str, Any]) -> dict[str, object]:
    """Return the numbers of a ConsumerInfo for a consumer without a machine, from its /consumers
    report: everything that was delivered counts as acked. Stream sequences are 0 unless the report
    has the position in exactly one partition.
    """
    sequence, positions = report.get("consumer_sequence", 0), report.get("positions", {})
    # in a stream of one partition the stream's sequences are its offsets, counted from 1
    pair = {"consumer_seq": sequence, "stream_seq": next(iter(positions.values()), 0) if len(positions) == 1 else 0}
    return {
        "delivered": pair,
        "ack_floor": pair,
        "num_ack_pending": 0,
        "num_redelivered": 0,
        "num_waiting": 0,
    }


def _describe_machine(info: ConsumerInfo) -> dict[str, object]:
    """Return the numbers of a ConsumerInfo for a consumer with a machine."""
    found: dict[str, object] = {
        "delivered": _describe_pair(info.delivered, info.delivered_at),
        "ack_floor": _describe_pair(info.ack_floor, info.acked_at),
        "num_ack_pending": info.num_ack_pending,
        "num_redelivered": info.num_redelivered,
        "num_waiting": info.num_waiting,
    }
    if info.push_bound:
        found["push_bound"] = True
    if info.paused:
        found |= {"paused": True, "pause_remaining": info.pause_remaining}
    return found


def _describe_pair(pair: Pair, at: int) -> dict[str, object]:
    last = {"last_active": format_time(at)} if at else {}
    return {"consumer_seq": pair.consumer, "stream_seq": pair.stream, **last}


def describe_pause(pause: Pause, now: int) -> dict[str, object]:
    """Return the fields of a pause response. `now`: ns since 1970, from which `pause_remaining`
    (ns) counts.
    """
    if pause.until is None:
        return {"paused": False, "pause_until": "0001-01-01T00:00:00Z"}
    return {"paused": True, "pause_until": format_time(pause.until), "pause_remaining": pause.until - now}


def describe_stream(stream: StreamConfig, report: Mapping[str, Any], now: int) -> dict[str, object]:
    """Return the fields of a StreamInfo that the overlay has. `report`: what the service's HTTP
    endpoint /streams says of the stream. `now`: ns since 1970.
    """
    config = {"name": stream.name, "topics": list(stream.topic_names), "subjects": list(stream.subjects)}
    state = {"consumer_count": len(report.get("consumers", ()))}
    own = {key: report[key] for key in ("state", "reason", "partitions", "rate") if key in report}
    return {"config": config, "state": state, "ts": format_time(now), "overlay": own}


def read_pull(body: Mapping[str, Any]) -> PullRequest | StatusText:
    """Return the pull request in a request's body, or the status that refuses it if it is not
    valid. Durations in the body are ns, or texts such as "5s".
    """
    given = {name: body[name] for name in _PULL if name in body}
    given.setdefault("batch", 1)
    for name in ("expires", "idle_heartbeat"):
        if name in body:
            try:
                given[name] = parse_duration(body[name])
            except ValueError as error:
                return StatusText(400, f"Bad Request - {name}: {error}")
    return parse_pull(write_json(given))
