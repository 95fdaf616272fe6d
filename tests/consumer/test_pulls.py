from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.consumer.pulls import PullRequest, StatusText, check_pull, parse_pull, write_go_duration
from tests.consumer.driver import SECOND, configure

OVERFLOW: dict[str, object] = {"priority_policy": "overflow", "priority_groups": ("a",)}


@pytest.mark.parametrize(
    ("body", "request_"),
    [
        (b"", PullRequest()),
        (b" 7 ", PullRequest(7)),
        (b"-3", PullRequest(-3)),
        (b"many", PullRequest()),
        (b"+3", PullRequest(3)),
        (b"-+5", PullRequest()),
        (b"9" * 4000, PullRequest()),
        (b"9" * 19, PullRequest()),
        (b'{"batch": 5, "expires": 9, "no_wait": true}', PullRequest(5, 9, True)),
        (b'{"expires": 9, "other": [1]}', PullRequest(0, 9)),
    ],
)
def test_bodies(body: bytes, request_: PullRequest) -> None:
    assert parse_pull(body) == request_


@pytest.mark.parametrize(
    "body", [b"{", b'{"batch": "5"}', b'{"batch": true}', b'{"no_wait": 1}', b'{"batch": 1e3}', b"{" * 4_000]
)
def test_bad_json(body: bytes) -> None:
    found = parse_pull(body)
    assert isinstance(found, StatusText)
    assert (found.code, found.description[:26]) == (400, "Bad Request - invalid JSON")


def test_heartbeats_need_time() -> None:
    found = parse_pull(b'{"batch": 1, "expires": 10, "idle_heartbeat": 6}')
    assert found == StatusText(400, "Bad Request - heartbeat value too large")


@pytest.mark.parametrize(
    ("request_", "fields", "status"),
    [
        (PullRequest(6), {"max_batch": 5}, (409, "Exceeded MaxRequestBatch of 5")),
        (PullRequest(1, 3 * SECOND), {"max_expires": 2 * SECOND}, (409, "Exceeded MaxRequestExpires of 2s")),
        (PullRequest(1, max_bytes=11), {"max_bytes": 10}, (409, "Exceeded MaxRequestMaxBytes of 10")),
        (PullRequest(1, min_pending=1), {}, (400, "Bad Request - Not a Overflow Priority consumer")),
        (PullRequest(1, id="x"), {}, (400, "Bad Request - Not a Pinned Client Priority consumer")),
        (PullRequest(1, priority=10), {}, (400, "Bad Request - Priority must be between 0 and 9")),
        (PullRequest(1), OVERFLOW, (400, "Bad Request - Priority Group missing")),
        (PullRequest(1, group="b"), OVERFLOW, (400, "Bad Request - Invalid Priority Group")),
    ],
)  # fmt: skip
def test_limits(request_: PullRequest, fields: dict[str, object], status: tuple[int, str]) -> None:
    found = check_pull(request_, configure(pull=True, **fields))
    assert found is not None
    assert (found.code, found.description) == status


def test_a_push_consumer_takes_no_pulls() -> None:
    assert check_pull(PullRequest(), configure()) == StatusText(409, "Consumer is push based")


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"), (7, "7ns"), (1_500, "1.5µs"), (100_000_000, "100ms"), (1_500_000_000, "1.5s"), (90 * SECOND, "1m30s"),
        (7_200 * SECOND, "2h0m0s"),
    ],
)  # fmt: skip
def test_durations_as_go_prints_them(nanoseconds: int, text: str) -> None:
    assert write_go_duration(nanoseconds) == text


@given(st.binary() | st.text("+-5", max_size=4).map(str.encode))
def test_anything_is_read(body: bytes) -> None:
    assert isinstance(parse_pull(body), PullRequest | StatusText)
