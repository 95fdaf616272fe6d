from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.control.requests import CONSUMER_NOT_FOUND, TIMEOUT, Op, parse_request, refuse, respond, respond_refused
from overlay.kafka.header_names import CORRELATION, REPLY_TOPIC
from tests.control.registries import NOW, RULE, make_request

NESTED = b'{"filter":[' * 300 + b"1" + b"]}" * 300
"""Less deep than Python's reader of JSON goes."""


def test_a_request() -> None:
    found = make_request("consumer.info", "id-1", stream="S", consumer="c", timeout="3s")
    assert (found.op, found.about, found.fault) == (Op.INFO, ("S", "c"), "")
    assert (found.reply, found.expires_at) == ("inbox//id-1", NOW + 3 * 10**9)
    assert found.subject == "$JS.API.CONSUMER.INFO.S.c"


def test_without_a_reply_topic_it_is_answered_in_ours() -> None:
    found = parse_request("id-1", b'{"op":"stream.list"}', dict[str, bytes]().get, NOW // 10**6, RULE)
    assert (found.reply, found.expires_at) == ("overlay.replies//id-1", NOW + TIMEOUT)
    theirs = {REPLY_TOPIC: b"overlay.state", CORRELATION: b"x"}
    assert parse_request("id-1", b"{}", theirs.get, 0, RULE).reply == "overlay.replies//id-1"


def test_without_a_correlation_the_answer_has_the_id() -> None:
    assert parse_request("id-1", b"{}", {REPLY_TOPIC: b"inbox"}.get, 0, RULE).reply == "inbox//id-1"


@pytest.mark.parametrize(
    ("config", "name"), [({"durable_name": "d"}, "d"), ({"name": "n"}, "n"), ({"name": "n", "durable_name": "d"}, "d")]
)
def test_the_name_stands_in_the_config(config: dict[str, str], name: str) -> None:
    assert make_request("consumer.create", stream="S", config=config).consumer == name


def test_a_nameless_consumer_gets_one_name_however_often_it_is_read() -> None:
    first, again = (make_request("consumer.create", "id-1", stream="S", config={}).consumer for _ in range(2))
    assert first == again and len(first) == 8
    assert make_request("consumer.create", "id-2", stream="S", config={}).consumer != first


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"{", "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b'{"v":2,"op":"consumer.info"}', "is of version 2"),
        (b"{}", "op: found None, known are consumer.create"),
        (b'{"op":"consumer.info","stream":"S"}', "consumer: is missing"),
        (b'{"op":"consumer.create"}', "stream: is missing"),
        (b'{"op":"consumer.info","stream":1,"consumer":"c"}', "are texts"),
        (b'{"op":"stream.list","timeout":"soon"}', "durations look like"),
        (b'{"op":"consumer.info","stream":"\\ud800","consumer":"x"}', "surrogates not allowed"),
        (b'{"op":"consumer.create","stream":"S","config":{"metadata":{"\\udfff":"x"}}}', "surrogates not allowed"),
        (b'{"op":"consumer.create","stream":"S","config":' + NESTED + b"}", "nested more than 50 levels deep"),
    ],
)
def test_faults(body: bytes, fault: str) -> None:
    assert fault in parse_request("id", body, dict[str, bytes]().get, 0, RULE).fault


@given(st.binary(max_size=80) | st.dictionaries(
    st.sampled_from(["op", "stream", "consumer", "timeout", "config", "v"]),
    st.sampled_from(["consumer.create", "consumer.next", "stream.info", "S", 1, None, [], {"name": 3}, "5s"]),
).map(lambda body: json.dumps(body).encode()))  # fmt: skip
def test_nothing_breaks_the_reader(value: bytes) -> None:
    found = parse_request("id", value, dict[str, bytes]().get, 0, RULE)
    assert found.fault or found.op is not None


def test_responses() -> None:
    request = make_request("consumer.delete", stream="S", consumer="c")
    kind = "io.nats.jetstream.api.v1.consumer_delete_response"
    assert respond(request, {"success": True}) == {"type": kind, "success": True}
    assert respond_refused(request, refuse(CONSUMER_NOT_FOUND)) == {
        "type": kind,
        "error": {"code": 404, "err_code": 10014, "description": "consumer not found"},
    }
    refused = respond_refused(request, refuse(10012, "do this", err="that"))
    assert refused["error"] == {"code": 500, "err_code": 10012, "description": "that", "hint": "do this"}
