"""Streams and consumers of a storm over a crowd: what each wants, as a config file says it and as plain Python says it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

STREAMS = 4
PARTITIONS = 2
KINDS, CITIES = 12, 10
MOST = 1_000
"""The amounts of orders are below."""
NUMBER = "n"
"""The header that names an order: no number is used twice."""
ACK_WAIT_S = 5.0
PREFIX = "crowd"
FAUST = "faust"
"""The consumer that a Faust application reads."""
GROUP = "crowd-application"


@dataclass(frozen=True, slots=True)
class Order:
    """What a consumer can ask of a record."""

    stream: int
    kind: int
    city: int
    amount: int


Wants = Callable[[Order], bool]


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer. `output`: its topic, which others of its kind share; empty for one that is pulled from."""

    name: str
    stream: int
    config: Mapping[str, Any]
    wants: Wants
    output: str = ""
    by_request: bool = False

    @property
    def id(self) -> tuple[str, str]:
        return name_stream(self.stream), self.name

    @property
    def is_acked(self) -> bool:
        return bool(self.config.get("ack_policy") == "explicit")

    @property
    def is_exact(self) -> bool:
        return bool(self.config.get("delivery", "exactly_once") == "exactly_once")


def name_stream(stream: int) -> str:
    return f"S{stream}"


def name_topic(stream: int) -> str:
    return f"orders-{stream}"


def describe_stream(stream: int) -> dict[str, Any]:
    """Return the content of a stream's file."""
    return {
        "name": name_stream(stream),
        "topics": [name_topic(stream)],
        "subject": {"template": f"s{stream}.{{header:kind}}.{{header:city}}"},
        "subjects": [f"s{stream}.*.*"],
        "properties": {"amount": {"type": "long", "from": "{value:amount}"}},
        "index": {"chunk_records": 500, "chunk_age": "1s"},
    }


def plan_consumers(count: int) -> Iterator[Consumer]:
    """Yield so many consumers, of all kinds over all streams, with FAUST and one that is pulled from in each stream."""
    for stream in range(STREAMS):
        yield _make("pulled", stream, "k1.*", lambda order: order.kind == 1, {"ack_policy": "explicit"}, "")
    yield _make(
        FAUST, 0, "k2.*", lambda order: order.kind == 2,
        {"ack_policy": "explicit", "deliver_group": GROUP, "output": {"partitions": 2}}, f"{PREFIX}-{FAUST}",
    )  # fmt: skip
    for number in range(count - STREAMS - 1):
        yield _plan_one(number)


def _plan_one(number: int) -> Consumer:
    stream, kind, city, least = number % STREAMS, number % KINDS, number // 5 % CITIES, number * 37 % MOST
    output = f"{PREFIX}-out-{stream}-{number // STREAMS % 6}"
    at_least_once = {"delivery": "at_least_once"}
    literal, any_city, any_kind = f"k{kind}.c{city}", f"k{kind}.*", f"*.c{city}"
    subject: str
    wants: Wants
    more: dict[str, Any]
    match number // STREAMS % 6:
        case 0:
            subject, wants, more = literal, _is(kind, city), {}
        case 1:
            subject, wants, more = any_city, _is(kind, None), {}
        case 2:
            subject, wants, more = "", _has(_is(None, None), least), _ask(least)
        case 3:
            subject, wants, more = any_city, _has(_is(kind, None), least), {**_ask(least), **at_least_once}
        case 4:
            subject, wants, more = any_city, _is(kind, None), {"ack_policy": "explicit", "interest": "always"}
        case _:
            subject, wants, more = any_kind, _has(_is(None, city), least), _ask(least)
    return _make(f"c{number}", stream, subject, wants, more, output, by_request=number % 10 == 3)


def _make(
    name: str,
    stream: int,
    subject: str,
    wants: Wants,
    more: Mapping[str, Any],
    output: str,
    *,
    by_request: bool = False,
) -> Consumer:
    config = {
        "stream": name_stream(stream),
        "durable_name": name,
        "deliver_subject": output,
        "filter_subject": f"s{stream}.{subject or '>'}",
        "ack_policy": "none",
        **({"ack_wait": f"{ACK_WAIT_S}s"} if "ack_policy" in more else {}),
        **more,
    }
    return Consumer(name, stream, config, wants, output, by_request)


def _ask(least: int) -> dict[str, Any]:
    return {"filter": {"sql": f"amount >= {least} AND amount < {least + MOST // 10}"}}


def _is(kind: int | None, city: int | None) -> Wants:
    return lambda order: kind in (None, order.kind) and city in (None, order.city)


def _has(wants: Wants, least: int) -> Wants:
    return lambda order: wants(order) and least <= order.amount < least + MOST // 10
