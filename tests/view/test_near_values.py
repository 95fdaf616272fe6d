"""What is said of a text in a filter that no sampled record has."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlay.config.stream import StreamConfig
from overlay.filter import compile_sql
from overlay.inspect.sample import SampledRecord
from overlay.view.near_values import list_unlike
from tests.config.folders import load_files

SHOP = """name: SHOP
topics: [shop]
properties:
  status: {type: string, from: "{value:status}"}
  city: {type: string, from: "{value:city}"}
  total: {type: double, from: "{value:total}"}
"""
RECORDS = [
    SampledRecord(
        0, at, None, b'{"status": "%s", "city": "C%d", "total": 1}' % (status, at), (("to", b"NO"), ("id", b"%d" % at))
    )
    for at, status in enumerate([b"new", b"paid", b"cancelled", b"paid"] * 4)
]


@pytest.fixture
def shop(tmp_path: Path) -> StreamConfig:
    return load_files(tmp_path, {"streams/shop.yaml": SHOP}).streams["SHOP"]


def tell(stream: StreamConfig, sql: str) -> list[str]:
    return list(list_unlike(stream, compile_sql(sql, stream.properties), RECORDS))


def test_the_values_that_there_are(shop: StreamConfig) -> None:
    for asked, meant in (("PAID", "paid"), ("canceled", "cancelled")):
        (line,) = tell(shop, f"total > 0 AND status = '{asked}'")
        assert line.startswith(f"no sampled record has status = '{asked}'; the values of status are '{meant}', '")
        assert line.endswith(f"'. Did you mean '{meant}'?")
    (line,) = tell(shop, "'xyz' = status")
    assert line == "no sampled record has status = 'xyz'; the values of status are 'cancelled', 'new', 'paid'"


def test_lists_and_inequality(shop: StreamConfig) -> None:
    assert tell(shop, "status IN ('PAID', 'new')") == []
    (line,) = tell(shop, "status IN ('zz', 'NEW')")
    assert line.endswith("Did you mean 'new'?")
    (same,) = tell(shop, "[to] <> 'NO'")
    assert same.endswith("<> 'NO': all 16 with to have 'NO'")


def test_of_a_property_with_many_values_only_a_slip_in_case_is_told(shop: StreamConfig) -> None:
    assert tell(shop, "city = 'C99'") == []
    assert tell(shop, "city = 'c7'") == ["no sampled record has city = 'c7'. Did you mean 'C7'?"]


@pytest.mark.parametrize(
    "sql",
    [
        "status = 'paid'",
        "status <> 'x'",
        "status NOT IN ('x')",
        "other = 'x'",
        "status = ''",
        "p.to = 'x'",
        "status = city",
    ],
)
def test_other_comparisons_are_not_spoken_of(shop: StreamConfig, sql: str) -> None:
    assert tell(shop, sql) == []
