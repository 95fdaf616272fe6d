"""Every public callable refuses a keyword that it does not have: nothing that was asked for is ignored."""

from __future__ import annotations

import asyncio
import enum
import importlib
import inspect
import pkgutil
import traceback
from collections.abc import Callable, Iterator
from typing import Any, is_typeddict

import pytest

import overlay
import overlay.client
import spark
from overlay.client import (
    ArgumentConflict,
    BadOrder,
    BadQuestion,
    Client,
    Control,
    OrderedConsumer,
    PullConsumer,
    Subscription,
    UnknownArgument,
)
from overlay.client.arguments import spell_filters
from overlay.client.read.question import make_request
from overlay.client.read.topic import describe_topic
from overlay.errors import OverlayError

UNKNOWN = "no_such_argument"
NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}


def list_callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    """What a user can call: exports, the methods of exported classes, and public functions of spark."""
    yield "overlay.open", overlay.open
    exported = {name: getattr(overlay.client, name) for name in overlay.client.__all__}
    for name, value in exported.items():
        if inspect.isclass(value) and (issubclass(value, Exception | enum.Enum) or is_typeddict(value)):
            continue
        if callable(value):
            yield f"overlay.client.{name}", value
        if inspect.isclass(value):
            yield from _list_methods(f"overlay.client.{name}", value)
    for found in pkgutil.iter_modules(spark.__path__, "spark."):
        if found.name == "spark.daemon":  # a program, which takes over the process that imports it
            continue
        module = importlib.import_module(found.name)
        for name, value in vars(module).items():
            if inspect.isfunction(value) and value.__module__ == found.name and not name.startswith("_"):
                yield f"{found.name}.{name}", value


def _list_methods(owner: str, kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, value in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_") and value.__module__.startswith("overlay"):
            yield f"{owner}.{name}", value


CALLABLES = dict(list_callables())
COLLECTING = {
    name
    for name, value in CALLABLES.items()
    if any(each.kind is each.VAR_KEYWORD for each in inspect.signature(value).parameters.values())
}
"""Those that take any keyword and have to check it themselves."""


def _client() -> Client:
    return Client(NOWHERE, prefix="p")


# how to call each of COLLECTING so that only the keywords can be wrong; no Kafka is there to answer
CALLS: dict[str, Callable[..., object]] = {
    "overlay.client.Client.read": lambda **more: _client().read(topic="t", **more),
    "overlay.client.Client.read_async": lambda **more: _client().read_async(topic="t", **more),
    "overlay.client.Client.ordered": lambda **more: _client().ordered("S", **more),
    "overlay.client.Control.create": lambda **more: Control(NOWHERE).create("S", **more),
    "overlay.client.Control.add": lambda **more: Control(NOWHERE).add("S", {"name": "c"}, **more),
    "overlay.client.Control.update": lambda **more: Control(NOWHERE).update("S", **more),
    "overlay.client.Control.next": lambda **more: Control(NOWHERE).next("S", "c", **more),
}


def test_the_walk_finds_what_users_call() -> None:
    some = {
        "overlay.open",
        "overlay.client.Client.subscribe",
        "overlay.client.Control.delete",
        "overlay.client.Message.nak",
        "overlay.client.OrderedConsumer.start",
        "overlay.client.Reading",
        "spark.source.read_stream_consumer",
        "spark.acks.nak",
        "spark.pipeline.start_pipeline",
        "spark.index.index_stream",
    }
    assert some <= set(CALLABLES)
    assert set(CALLS) == COLLECTING, "each function that collects keywords is called below"
    assert inspect.isclass(Subscription) and inspect.isclass(OrderedConsumer)


@pytest.mark.parametrize("name", sorted(set(CALLABLES) - COLLECTING))
def test_a_fixed_signature_takes_no_unknown_keyword(name: str) -> None:
    """Python refuses the call, whatever the other arguments are."""
    with pytest.raises(TypeError, match=UNKNOWN):
        _bind(CALLABLES[name])


def _bind(function: Callable[..., Any]) -> None:
    signature = inspect.signature(function)
    needed = [each for each in signature.parameters.values() if each.default is each.empty]
    positional = [None for each in needed if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    named = {each.name: None for each in needed if each.kind is each.KEYWORD_ONLY}
    signature.bind(*positional, **named, **{UNKNOWN: 1})


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_function_that_collects_keywords_refuses_an_unknown_one(name: str) -> None:
    with pytest.raises(UnknownArgument, match=f"has no argument '{UNKNOWN}'. Arguments are ") as found:
        CALLS[name](**{UNKNOWN: 1})
    assert isinstance(found.value, TypeError) and isinstance(found.value, OverlayError)


@pytest.mark.parametrize(
    ("name", "given", "meant"),
    [
        ("overlay.client.Client.read", "sqll", "sql"),
        ("overlay.client.Client.read", "subjets", "subjects"),
        ("overlay.client.Client.read", "SQL", "sql"),
        ("overlay.client.Client.read", "topics", "topic"),
        ("overlay.client.Client.read", "colums", "columns"),
        ("overlay.client.Client.read_async", "from_sequence", "from_seq"),
        ("overlay.client.Client.ordered", "filter_subjets", "filter_subjects"),
        ("overlay.client.Client.ordered", "deliverpolicy", "deliver_policy"),
        ("overlay.client.Client.read", "where", "sql"),
        ("overlay.client.Client.read", "offset", "from_seq"),
        ("overlay.client.Client.read", "tail", "last"),
        ("overlay.client.Control.create", "durable", "durable_name"),
        ("overlay.client.Control.create", "ack", "ack_policy"),
        ("overlay.client.Control.create", "max_retries", "max_deliver"),
        ("overlay.client.Control.create", "topic", "deliver_subject"),
        ("overlay.client.Control.create", "where", "sql"),
        ("overlay.client.Control.add", "filters", "filter"),
        ("overlay.client.Control.update", "max_ack_pendin", "max_ack_pending"),
        ("overlay.client.Control.next", "nowait", "no_wait"),
        ("overlay.client.Control.next", "maxbytes", "max_bytes"),
    ],
)
def test_the_nearest_name_is_suggested(name: str, given: str, meant: str) -> None:
    with pytest.raises(UnknownArgument, match=f"no argument '{given}'. Did you mean {meant}[?]"):
        CALLS[name](**{given: "x"})


NAMED = {
    name: value
    for name, value in CALLABLES.items()
    if name not in COLLECTING
    and inspect.isfunction(value)
    and (
        name == "overlay.open"
        or name.startswith(("overlay.client.Client.", "overlay.client.Control.", "overlay.client.PullConsumer."))
    )
    and set(inspect.signature(value).parameters) - {"self"}
}
"""Those that Python itself would refuse the call of, with a plain TypeError."""


@pytest.mark.parametrize("name", sorted(NAMED))
def test_a_function_of_the_client_says_which_arguments_it_has(name: str) -> None:
    known = ", ".join(each for each in inspect.signature(NAMED[name]).parameters if each != "self")
    said = f"^{name.rpartition('.')[2]} has no argument '{UNKNOWN}'. Arguments are {known}$"
    with pytest.raises(UnknownArgument, match=said):
        found = NAMED[name](**{UNKNOWN: 1})
        if inspect.iscoroutine(found):
            asyncio.run(found)


@pytest.mark.parametrize(
    ("name", "given", "meant"),
    [
        ("overlay.open", "bootstrap_servers", "bootstrap"),
        ("overlay.open", "folder", "config"),
        ("overlay.open", "security_protocol", "kafka"),
        ("overlay.client.Client.subscribe", "timeout", "idle"),
        ("overlay.client.Client.subscribe", "consumer_timeout_ms", "idle"),
        ("overlay.client.Client.subscribe", "durable", "consumer"),
        ("overlay.client.Client.subscribe", "max_in_flight", "prefetch"),
        ("overlay.client.Client.pull", "count", "batch"),
        ("overlay.client.Client.pull", "timeout", "idle"),
        ("overlay.client.PullConsumer.fetch", "batch", "count"),
        ("overlay.client.PullConsumer.fetch", "num_messages", "count"),
        ("overlay.client.PullConsumer.fetch", "expires", "timeout"),
        ("overlay.client.PullConsumer.fetch", "timeout_ms", "timeout"),
        ("overlay.client.Control.info", "consumer", "name"),
        ("overlay.client.Control.pause", "pause_until", "until"),
        ("overlay.client.Control.pause", "duration", "until"),
        ("overlay.client.Control.nak", "seconds", "delay"),
    ],
)
def test_words_of_other_systems_are_known(name: str, given: str, meant: str) -> None:
    with pytest.raises(UnknownArgument, match=f"no argument '{given}'. Did you mean {meant}[?] Arguments are "):
        NAMED[name](**{given: "x"})


def test_a_pull_knows_words_of_other_systems() -> None:
    for given, meant in (("count", "batch"), ("timeout", "expires"), ("limit", "batch")):
        with pytest.raises(UnknownArgument, match=f"no argument '{given}'. Did you mean {meant}[?]"):
            CALLS["overlay.client.Control.next"](**{given: 1})


def test_a_wrong_name_is_all_that_is_told() -> None:
    """No other error is behind it, and the caller's line is followed by one of the client."""
    with pytest.raises(UnknownArgument) as found:
        _client().pull("c", count=1)  # type: ignore[call-arg]
    assert (found.value.__cause__, found.value.__context__) == (None, None)
    assert [frame.name for frame in traceback.extract_tb(found.value.__traceback__)][1:] == ["call", "check_names"]


def test_what_is_checked_keeps_its_signature() -> None:
    assert list(inspect.signature(Client.pull).parameters) == ["self", "consumer", "stream", "batch", "idle"]
    assert (Client.pull.__doc__ or "").startswith("Return a pull consumer")
    assert asyncio.iscoroutinefunction(PullConsumer.fetch_async)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sql": 1}, "sql is 1, and has to be a text"),
        ({"sql": {"a": 1}}, "A mapping goes into properties"),
        ({"subjects": 7}, "subjects is 7, and has to be a list"),
        ({"subjects": {"a.>": 1}}, "subjects is .*list of texts"),
        ({"subjects": [b"a.>"]}, "subjects holds b'a.>'"),
        ({"values": b"JFK"}, "values is b'JFK'"),
        ({"columns": [1]}, "columns holds 1"),
        ({"columns": 1}, "columns is 1"),
        ({"follow": "no"}, "follow is 'no', and has to be True or False"),
        ({"index": "false"}, "index is 'false'"),
        ({"index": 0}, "index is 0"),
        ({"last_per_subject": 1}, "last_per_subject is 1"),
        ({"match_unfiltered": "x"}, "match_unfiltered is 'x'"),
        ({"limit": "5"}, "limit is '5', and has to be a whole number"),
        ({"limit": True}, "limit is True"),
        ({"last": 1.5}, "last is 1.5"),
        ({"since": 5}, "since is 5, and has to be a text, a datetime or a timedelta"),
    ],
)
def test_a_question_of_a_wrong_type_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(BadQuestion, match=words):
        _client().read(topic="t", **given)


def test_none_counts_as_left_out() -> None:
    _client().read(topic="t", **dict.fromkeys(("subjects", "sql", "values", "follow", "index", "limit", "since")))  # type: ignore[arg-type]


def test_other_arguments_of_a_wrong_type_are_refused() -> None:
    with pytest.raises(BadQuestion, match="where is 'a > 1', and has to be a function"):
        _client().subscribe("c", where="a > 1")  # type: ignore[arg-type]
    with pytest.raises(BadOrder, match="no durable_name"):
        _client().ordered("S", durable_name="x")


WORDS: dict[str, Any] = {"subject": "t.a", "sql": "a = 'x'", "value": "eu", "match_unfiltered": True}
"""Filters in the words that are the same everywhere, by their other spellings."""


def test_filters_have_one_vocabulary() -> None:
    """Readings, ordered consumers and requests take the same words; Spark does in tests/spark/test_datasource.py."""
    assert spell_filters({**WORDS, "durable_name": "c"}) == {
        "durable_name": "c",
        "filter_subjects": ["t.a"],
        "filter": {"sql": "a = 'x'", "values": ["eu"], "match_unfiltered": True},
    }
    assert spell_filters({"subjects": ["a", "b"], "properties": {"header": {"a": 1}}}) == {
        "filter_subjects": ["a", "b"],
        "filter": {"properties": {"header": {"a": 1}}},
    }
    fields = {"filter_subjects": ["a"], "filter": {"sql": "a = 'x'"}, "filter_subject": ""}
    assert spell_filters(fields) == fields
    assert spell_filters({"sql": None, "subjects": None, "name": "c"}) == {"name": "c"}
    stream = describe_topic("t", {})
    first = make_request(stream, is_named=False, now=0, subjects="t.a", sql="a = 'x'")
    assert make_request(stream, is_named=False, now=0, subject="t.a", sql="a = 'x'") == first


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("overlay.client.Client.read", {"subject": "a", "subjects": "b"}),
        ("overlay.client.Client.read", {"value": "a", "values": "b"}),
        ("overlay.client.Client.ordered", {"subjects": "a", "filter_subject": "b"}),
        ("overlay.client.Control.create", {"subject": "a", "filter_subjects": ["b"]}),
        ("overlay.client.Control.add", {"sql": "a = 'x'", "filter": {"values": ["b"]}}),
    ],
)
def test_two_words_for_the_same_are_refused(name: str, given: dict[str, Any]) -> None:
    with pytest.raises(ArgumentConflict, match="Leave one of them out"):
        CALLS[name](**given)
