"""What clients with few rights may ask, and what becomes of it in the control topic."""

from __future__ import annotations

import json
from typing import Any

import pytest

from overlay.client.subscribe.order import complete
from overlay.control.open_requests import MOST_BYTES, copy_request, find_copied, judge_open, note_refused, read_open
from overlay.control.records import Misfit, Unreadable
from overlay.control.registry import MOST_COPIED, Registry
from overlay.control.requests import Op, parse_request
from overlay.kafka.header_names import CLIENT, CORRELATION, REPLY_PARTITION, REPLY_TOPIC
from overlay.kafka.records import StoredRecord
from overlay.output.record import Record
from tests.control.registries import NOW, PREFIX, RULE, make_files, make_request, take

SENT_MS = NOW // 10**6
ORDERED: dict[str, Any] = {
    **complete({"filter_subjects": ["t.a"], "headers_only": True}),
    "name": "ordered-1a-1",
    "deliver_subject": "overlay-ordered-1a",
    "output": {"config": {"retention.ms": 3_600_000}, "temporary": True},
}
"""What the client library asks for."""


def make_row(value: bytes | None, key: bytes = b"request id-1", **headers: bytes) -> StoredRecord:
    return StoredRecord(17, SENT_MS, key, value, headers)


@pytest.mark.parametrize(
    ("op", "fields"),
    [
        ("consumer.info", {"consumer": "c"}),
        ("consumer.list", {}),
        ("consumer.next", {"consumer": "c", "batch": 5}),
        ("stream.info", {}),
        ("stream.list", {}),
        ("consumer.create", {"config": ORDERED}),
        ("consumer.delete", {"consumer": "ordered-1a-1"}),
    ],
)
def test_what_is_open(op: str, fields: dict[str, Any]) -> None:
    assert judge_open(make_request(op, stream="S", **fields), PREFIX) is None


@pytest.mark.parametrize(
    ("op", "fields"),
    [
        ("consumer.create", {"config": {"durable_name": "c", "ack_policy": "none"}}),
        ("consumer.update", {"config": ORDERED}),
        ("consumer.delete", {"consumer": "c"}),
        ("consumer.pause", {"consumer": "ordered-1a-1", "pause_until": "2030-01-01T00:00:00Z"}),
        ("consumer.resume", {"consumer": "c"}),
        ("worker.drain", {"worker": "w", "boot": "b"}),
        ("worker.undrain", {"worker": "w"}),
    ],
)
def test_what_is_refused(op: str, fields: dict[str, Any]) -> None:
    refusal = judge_open(make_request(op, stream="S", **fields), PREFIX)
    assert refusal is not None
    assert (refusal.error.err_code, refusal.description) == (10012, f"{op} is not taken from overlay.requests")
    assert "overlay.control" in refusal.hint


def test_every_operation_is_judged() -> None:
    """An operation that is new is refused until it is listed."""
    fields = {"stream": "S", "consumer": "c", "worker": "w", "boot": "b"}
    taken = [op for op in Op if judge_open(make_request(op.word, **fields), PREFIX) is None]
    assert taken == [Op.INFO, Op.LIST, Op.NEXT, Op.STREAM_INFO, Op.STREAM_LIST]


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "other"},
        {"durable_name": "ordered-1a-1"},
        {"deliver_subject": "orders"},
        {"deliver_subject": "overlay-orders"},
        {"deliver_subject": ""},
        {"deliver_subject": None},
        {"ack_policy": "explicit"},
        {"ack_policy": None},
        {"dead_letter": "orders"},
        {"delivery": "at_least_once"},
        {"deliver_group": "g"},
        {"engine": "spark"},
        {"a_field_of_a_later_version": 1},
        {"output": {}},
        {"output": None},
        {"output": {"temporary": False}},
        {"output": {"temporary": True, "partitions": 10_000}},
        {"output": {"temporary": True, "config": {"retention.ms": "1", "cleanup.policy": "compact"}}},
        {"output": {"temporary": True, "config": []}},
    ],
)
def test_what_is_no_ordered_consumer_is_not_created(changed: dict[str, Any]) -> None:
    request = make_request("consumer.create", stream="S", config={**ORDERED, **changed})
    assert judge_open(request, PREFIX) is not None
    assert judge_open(make_request("consumer.create", stream="S", consumer="ordered-1", config=[]), PREFIX) is not None


def test_a_fault_is_told() -> None:
    refusal = judge_open(make_request("consumer.eat", stream="S"), PREFIX)
    assert refusal is not None
    assert (refusal.error.err_code, "known are" in refusal.description) == (10025, True)


def test_records_that_are_no_requests() -> None:
    assert read_open(make_row(None), RULE) is None
    for key in (b"consumer S c", b"pause S c", b"worker w", b"zork", b"request a b"):
        with pytest.raises(Unreadable) as caught:
            read_open(make_row(b"{}", key), RULE)
        assert caught.value.misfit is Misfit.KEY
    assert read_open(make_row(b" " * MOST_BYTES), RULE) is not None
    with pytest.raises(Unreadable) as caught:
        read_open(make_row(b" " * (MOST_BYTES + 1)), RULE)
    assert caught.value.misfit is Misfit.SIZE


def copy(row: StoredRecord) -> Record:
    request = read_open(row, RULE)
    assert request is not None
    return copy_request(request, row, "tp-1")


def test_a_copy_asks_the_same() -> None:
    value = json.dumps({"op": "consumer.info", "stream": "S", "consumer": "c", "timeout": "3s"}).encode()
    headers = {REPLY_TOPIC: b"inbox", CORRELATION: b"x", CLIENT: b"me"}
    record = copy(make_row(value, **headers))
    assert (record.key, record.value) == (b"request $relay-tp-1-17", value)
    # the broker takes the copy a second later
    found = parse_request("$relay-tp-1-17", value, dict(record.headers).get, SENT_MS + 1_000, RULE)
    assert (found.op, found.about, found.reply, found.client) == (Op.INFO, ("S", "c"), "inbox//x", "me")
    assert found.expires_at == NOW + 3 * 10**9


@pytest.mark.parametrize(
    ("headers", "reply"),
    [
        ({}, "overlay.replies//id-1"),
        ({REPLY_TOPIC: b"inbox"}, "inbox//id-1"),
        ({REPLY_TOPIC: b"inbox", REPLY_PARTITION: b"4", CORRELATION: b"\xff"}, "inbox/4/%FF"),
        ({REPLY_TOPIC: b"overlay.state", CORRELATION: b"x"}, "overlay.replies//id-1"),
        ({REPLY_TOPIC: b"inbox", CORRELATION: b"x" * 257}, "overlay.replies//id-1"),
    ],
)
def test_the_answer_to_a_copy_goes_where_its_client_waits(headers: dict[str, bytes], reply: str) -> None:
    record = copy(make_row(b'{"op":"stream.list"}', **headers))
    found = parse_request("$relay-tp-1-17", record.value or b"", dict(record.headers).get, SENT_MS, RULE)
    assert found.reply == reply


def test_a_time_that_is_ahead_lets_no_request_wait_longer() -> None:
    for text in (b"9" * 15, b"9" * 1_000, b"-1", b"x", b""):
        found = parse_request("id", b'{"op":"stream.list"}', {"Overlay-Sent": text}.get, SENT_MS, RULE)
        assert found.expires_at == NOW + 10 * 10**9


def test_an_open_request_waits_for_half_an_hour_at_most() -> None:
    """Else a copy that is made again, since the first one was compacted away, might be carried out again."""
    value = b'{"op":"stream.list","timeout":"24h"}'
    record = copy(make_row(value))
    later = SENT_MS + 3_600_000
    found = parse_request("$relay-tp-1-17", value, dict(record.headers).get, later, RULE)
    assert found.expires_at == NOW + 1_800 * 10**9
    assert parse_request("id", value, dict[str, bytes]().get, SENT_MS, RULE).expires_at == NOW + 86_400 * 10**9


@pytest.mark.parametrize(
    ("id", "found"),
    [
        ("$relay-tp-1-0", ("tp-1", 0)), ("$relay-b_-17", ("b_", 17)), ("$relay-tp-", None), ("$relay-tp-x", None),
        ("tp-17", None), ("$relay-tp-" + "9" * 19, None),
    ],
)  # fmt: skip
def test_ids_of_copies(id: str, found: tuple[str, int] | None) -> None:
    assert find_copied(id) == found


def test_a_registry_knows_how_far_requests_were_copied() -> None:
    registry = Registry(make_files())
    assert registry.copied == {}
    for id in ("$relay-old-90", "$relay-new-3", "$relay-new-17", "other"):
        take(registry, Record(f"request {id}".encode(), b'{"op":"stream.list"}'))
    take(registry, Record(b"request $relay-new-20", None), Record(b"request $relay-new-3", None))
    assert registry.copied == {"old": 90, "new": 20}
    registry.clear()
    assert registry.copied == {}


def test_a_refusal_is_noted_like_a_copy() -> None:
    registry = Registry(make_files())
    take(registry, note_refused("topic", 7))
    assert registry.copied == {"topic": 7} and not registry.requests


def test_made_up_topics_do_not_fill_the_memory() -> None:
    """The topic that requests are copied from stays known as long as they are."""
    registry = Registry(make_files())
    for number in range(3 * MOST_COPIED):
        take(registry, note_refused(f"made-up-{number}", 1), note_refused("topic", number))
    assert len(registry.copied) == MOST_COPIED
    assert registry.copied["topic"] == 3 * MOST_COPIED - 1
