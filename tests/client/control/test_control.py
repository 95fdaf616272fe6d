"""overlay/client/control/control.py without Kafka; with a service it is tested in tests/control/test_serve.py."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from overlay.client.control.control import (
    BadAckToken,
    FiltersDiffer,
    Position,
    check_filters,
    find_token,
    read_info,
    write_time,
)
from overlay.control.decide import describe
from overlay.control.records import Definition, write_definition
from overlay.control.registry import Registry
from tests.control.registries import NOW, Worker, make_config, make_files, take


def make_answer(**report: Any) -> dict[str, Any]:
    book = Registry(make_files())
    take(book, write_definition(Definition(make_config(filter_subject="t.a"), NOW)))
    return describe(book, Worker({("S", "c"): report}), ("S", "c"), NOW)


def test_an_info_is_what_the_service_says() -> None:
    info = read_info(make_answer(consumer_sequence=4, positions={"s-0": 9}, state="running", reason=""))
    assert (info.stream, info.name, info.config) == ("S", "c", make_config(filter_subject="t.a"))
    assert (info.delivered, info.ack_floor) == (Position(4, 9), Position(4, 9))
    assert (info.state, info.push_bound, info.paused, info.num_pending) == ("running", False, False, None)
    assert info.raw["overlay"]["positions"] == {"s-0": 9}


@pytest.mark.parametrize(
    "wanted",
    [{"filter_subject": "t.a"}, {"filter_subjects": ["t.a"]}, {"filter_subject": "t.a", "filter": {"sql": None}}],
)
def test_the_same_filters(wanted: dict[str, Any]) -> None:
    check_filters(wanted, make_config(filter_subject="t.a"))


@pytest.mark.parametrize(
    "wanted", [{}, {"filter_subjects": ["t.a", "t.b"]}, {"filter_subject": "t.a", "filter": {"sql": "x > 1"}}]
)
def test_other_filters(wanted: dict[str, Any]) -> None:
    with pytest.raises(FiltersDiffer, match="S/c came back with other filter"):
        check_filters(wanted, make_config(filter_subject="t.a"))


def test_tokens() -> None:
    assert find_token("$JS.ACK.S.c.1.2.3.4.5").stream_seq == 2
    for text in ("", "$JS.ACK.S.c", "x"):
        with pytest.raises(BadAckToken, match="Tokens look like"):
            find_token(text)


def test_times() -> None:
    assert write_time("2026-01-31T12:00:00Z") == "2026-01-31T12:00:00Z"
    east = timezone(timedelta(hours=2))
    assert write_time(datetime(2026, 1, 31, 14, tzinfo=east)) == "2026-01-31T12:00:00Z"
    soon = datetime.fromisoformat(write_time(timedelta(minutes=5)))
    assert timedelta(minutes=4) < soon - datetime.now(UTC) <= timedelta(minutes=5)
