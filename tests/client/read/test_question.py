"""Questions that are refused before anything is fetched."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any, cast

import pytest

import overlay
from overlay.client import SCHEMA, BadQuestion, Client, UnknownStream
from overlay.client.read.question import Question, ask_as_consumer, make_request
from overlay.client.read.topic import describe_topic
from overlay.config import ConsumerConfig
from overlay.errors import ConfigError, FilterSyntaxError, SubjectError

STREAM = describe_topic("flights", {"delay": "double"})
CLIENT = Client({"bootstrap.servers": "127.0.0.1:1"}, {"FLIGHTS": STREAM}, "folder")


@pytest.mark.parametrize(
    ("question", "error", "message"),
    [
        ({"sql": "delay > 1", "properties": {}}, BadQuestion, "sql and properties exclude each other"),
        ({"sql": "delay >"}, FilterSyntaxError, r"line 1, column 8"),
        ({"sql": "dely > 1"}, FilterSyntaxError, "did you mean delay"),
        ({"properties": {"propertis": {"to": "x"}}}, FilterSyntaxError, "did you mean properties"),
        ({"subjects": ["a..b"]}, SubjectError, "empty token"),
        ({"subjects": "a. b"}, SubjectError, "a space"),
        ({"since": "soon"}, BadQuestion, "since: .* no point in time"),
        ({"until": "2013-01-01T10:00:00"}, BadQuestion, "until: .*RFC 3339"),
        ({"follow": True, "until": "10m"}, BadQuestion, "follow and until exclude each other"),
        ({"from_seq": 1, "since": "10m"}, BadQuestion, "both say where to begin"),
        ({"from_seq": 0}, BadQuestion, "from_seq is 0"),
        ({"last": -1}, BadQuestion, "last is -1"),
        ({"limit": -1}, BadQuestion, "limit is -1"),
        ({"columns": ["valu"]}, BadQuestion, "no column 'valu'. Did you mean value?"),
        ({"columns": "value"}, BadQuestion, "Give a list"),
    ],
)
def test_refused(question: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        CLIENT.read("FLIGHTS", **question)


def test_columns_are_in_the_order_of_the_schema() -> None:
    request = make_request(STREAM, is_named=True, now=0, columns=["offset", "subject", "value"])
    assert request.columns == ("subject", "value", "offset")
    assert make_request(STREAM, is_named=True, now=0).columns == tuple(SCHEMA.names)
    assert make_request(STREAM, is_named=True, now=0, columns=[]).columns == ()


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({}, {}),
        ({"filter_subject": "a.>"}, {"subjects": ("a.>",)}),
        ({"filter_subjects": ["a", "b"], "filter": {"sql": "delay > 1"}}, {"subjects": ("a", "b"), "sql": "delay > 1"}),
        ({"filter": {"properties": {}}}, {"properties": {}}),
        ({"filter": {"values": ["x"]}}, {"values": ("x",), "match_unfiltered": False}),
        ({"filter": {"values": "x", "match_unfiltered": True}}, {"values": ("x",), "match_unfiltered": True}),
        ({"deliver_policy": "new", "headers_only": True, "filter": {"sql": ""}}, {"sql": ""}),
    ],
)
def test_the_filters_of_a_consumer(fields: dict[str, Any], asked: Question) -> None:
    consumer = ConsumerConfig.model_validate({"stream": "FLIGHTS", "name": "c", **fields}, strict=False)
    before: Question = {"subjects": (), "sql": None, "match_unfiltered": False, "last": 5}  # type: ignore[typeddict-item]
    assert ask_as_consumer(consumer, before) == {**before, **asked}
    assert ask_as_consumer(consumer, {}) == asked


@pytest.mark.parametrize("own", [{"subject": "a"}, {"sql": ""}, {"properties": {}}, {"values": ["x"]}])
def test_a_consumer_and_a_filter(own: dict[str, Any]) -> None:
    consumer = ConsumerConfig(stream="FLIGHTS", durable_name="late")
    client = Client(CLIENT.kafka, CLIENT.streams, "folder", consumers={consumer.id: consumer})
    with pytest.raises(BadQuestion, match=f"consumer and {next(iter(own))} each say what passes"):
        client.read(consumer="late", **own)
    with pytest.raises(BadQuestion, match="consumer and topic each say what to read"):
        client.read(topic="t", consumer="late")


def test_streams_and_topics() -> None:
    with pytest.raises(UnknownStream, match=r"folder: there is no stream 'FLIGHT'\. Did you mean FLIGHTS\?"):
        CLIENT.read("FLIGHT")
    with pytest.raises(BadQuestion, match="not both"):
        CLIENT.read("FLIGHTS", topic="flights")
    with pytest.raises(BadQuestion, match="name a stream or a topic"):
        CLIENT.read()
    with pytest.raises(BadQuestion, match="declare is for topics"):
        CLIENT.read("FLIGHTS", declare={})
    with pytest.raises(UnknownStream, match="nor any other"):
        Client({"bootstrap.servers": "127.0.0.1:1"}, origin="folder").read("FLIGHTS")


def test_a_client_by_an_address_alone_knows_no_streams() -> None:
    """It says so at once, and asks no service, which may not run."""
    client = overlay.open(bootstrap="127.0.0.1:1")
    with pytest.raises(UnknownStream, match=r"opened by an address alone.*open one that has 'FLIGHTS'"):
        client.read("FLIGHTS")
    with pytest.raises(BadQuestion, match="opened by an address alone"):
        client.read(consumer="late")


@pytest.mark.parametrize(
    ("kafka", "message"),
    [
        ({"bootstrap.servers": "h"}, r"kafka\.bootstrap\.servers: .*is not host:port"),
        ({"bootstrap.servers": "h:1", "linger.ms": "5"}, "linger.ms"),
        ({"bootstrap.servers": "h:1", "sasl.username": "me"}, "would ignore sasl"),
    ],
)
def test_kafka_settings_that_no_client_takes(kafka: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        overlay.open(bootstrap=kafka.pop("bootstrap.servers", ""), kafka=kafka)


def test_nothing_to_open() -> None:
    with pytest.raises(BadQuestion, match="HOST:PORT"):
        overlay.open()


def test_the_package_has_no_other_surprises() -> None:
    assert overlay.open is overlay.open
    with pytest.raises(AttributeError, match="no attribute 'close'"):
        overlay.close  # noqa: B018


@pytest.mark.parametrize("name", ["limit", "last", "from_seq"])
@pytest.mark.parametrize("count", [1 << 63, 1 << 64, 10**400])
def test_a_count_beyond_all_streams_is_the_largest_there_is(name: str, count: int) -> None:
    request = make_request(STREAM, is_named=False, now=0, **cast(Question, {name: count}))
    assert getattr(request, name) == (1 << 63) - 1


@pytest.mark.parametrize("name", ["since", "until"])
@pytest.mark.parametrize("span", [timedelta.max, timedelta.min])
def test_a_span_that_no_time_has_is_refused(name: str, span: timedelta) -> None:
    with suppress(BadQuestion):
        make_request(STREAM, is_named=False, now=0, **cast(Question, {name: span}))
