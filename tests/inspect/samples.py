"""Samples for tests, made of plain values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from overlay.inspect.sample import SampledRecord, TopicSample


def make_record(
    offset: int = 0,
    *,
    key: str | None = None,
    value: object = None,
    raw: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> SampledRecord:
    """A record; `value` is written as JSON, `raw` as it is."""
    pairs = tuple((name, text.encode()) for name, text in (headers or {}).items())
    body = json.dumps(value).encode() if value is not None else raw
    return SampledRecord(0, offset, None if key is None else key.encode(), body, pairs)


def make_sample(records: Iterable[SampledRecord], topic: str = "orders") -> TopicSample:
    kept = tuple(records)
    return TopicSample(topic, 1, len(kept), kept)


def make_flights(count: int = 60) -> TopicSample:
    """Headers origin (3 values), dest (10) and flight (all different), a JSON value, and the same again as fields."""
    return make_sample(
        (
            make_record(
                at,
                key=f"N{at}",
                headers={"origin": ("JFK", "LGA", "EWR")[at % 3], "dest": f"D{at % 10}", "flight": str(at)},
                value={
                    "origin": ("JFK", "LGA", "EWR")[at % 3],
                    "delay": at / 2,
                    "leg": {"km": at},
                    "late": at % 2 == 0,
                },
            )
            for at in range(count)
        ),
        "flights",
    )
