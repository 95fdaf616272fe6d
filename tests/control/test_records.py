from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.config import ConsumerConfig, LogEnds
from overlay.control.records import (
    Definition,
    Origin,
    Pause,
    Subject,
    Unreadable,
    make_key,
    read_config,
    read_definition,
    read_pause,
    split_key,
    write_config,
    write_definition,
    write_pause,
)
from overlay.errors import ConfigError
from tests.config.wire_cases import GOOD
from tests.control.registries import NOW, make_config

CONFIGS = [
    make_config(),
    make_config(filter_subjects=("t.a", "t.b"), filter={"sql": "a > 1"}, output={"partitions": 3}),
    make_config(ack_policy="explicit", ack_wait="10s", backoff=("1s", "1m"), dead_letter="dead", sample_freq="10%"),
    make_config(opt_start_time="2026-01-31T12:00:00.5Z", deliver_policy="by_start_time", metadata={"a": "b"}),
    make_config(filter={"properties": {"properties": {"subject": "&p:t."}}}, output={"config": {"retention.ms": 5}}),
    make_config(pause_until="2026-01-31T12:00:00Z", interest="always", delivery="at_least_once"),
]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("origin", Origin)
@pytest.mark.parametrize("ends", [None, LogEnds(), LogEnds({"a": ("id", (0, 7)), "b": ("", ())})])
def test_definitions_survive(config: ConsumerConfig, origin: Origin, ends: LogEnds | None) -> None:
    definition = Definition(config, NOW + 7, origin, ends=ends)
    record = write_definition(definition)
    assert (record.key, record.headers) == (b"consumer S c", ())
    assert read_definition(("S", "c"), record.value or b"") == definition
    assert not read_definition(("S", "c"), record.value or b"").is_deleted


def test_what_jetstream_takes_is_taken() -> None:
    for config in GOOD:
        found = read_config("S", config)
        assert read_config("S", write_config(found)) == found


def test_configs_are_read_as_files_are() -> None:
    found = read_config("S", {"durable_name": "c", "ack_wait": "10s", "filter_subject": None})
    assert (found.ack_wait, found.ack_policy, found.filter_subject) == (10 * 10**9, "explicit", "")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ([], "is not an object"),
        ({"zork": 1}, "zork: is not a known field"),
        ({"stream": "T"}, "names stream 'T', the request 'S'"),
        ({"backoff": ["1s", "soon"]}, r'backoff\[1\]: found "soon"'),
        ({"output": {"partitions": 0}}, "output.partitions"),
        ({"max_deliver": "3"}, "wants a whole number"),
    ],
)
def test_bad_configs(config: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_config("S", config)


@pytest.mark.parametrize("until", [None, NOW])
def test_pauses_survive(until: int | None) -> None:
    record = write_pause(("S", "c"), Pause(until))
    assert record.key == b"pause S c"
    assert read_pause(record.value or b"") == Pause(until)


def test_keys() -> None:
    assert split_key(make_key(Subject.REQUEST, "id")) == (Subject.REQUEST, ("id",))
    assert split_key(make_key(Subject.CONSUMER, "S", "c")) == (Subject.CONSUMER, ("S", "c"))
    assert split_key(make_key(Subject.WORKER, "east-1:8222")) == (Subject.WORKER, ("east-1:8222",))


@pytest.mark.parametrize(
    "key", [None, b"", b"consumer", b"consumer S", b"consumer S c d", b"request ", b"worker a b", b"zork a", b"\xff"]
)
def test_other_keys(key: bytes | None) -> None:
    with pytest.raises(Unreadable):
        split_key(key)


@given(st.binary(max_size=60) | st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda each: st.dictionaries(
    st.sampled_from(["v", "config", "created", "origin", "pause_until", "stream"]), each | st.lists(each, max_size=2),
    max_size=4)).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_garbage_is_unreadable_and_nothing_else(value: bytes) -> None:
    for read in (lambda: read_definition(("S", "c"), value), lambda: read_pause(value)):
        try:
            read()
        except Unreadable:
            continue


def test_definitions_nested_too_deep_are_unreadable() -> None:
    """A definition is read at every start: what breaks its reader breaks all workers, for ever."""
    value = b'{"origin":"request","created":"2026-01-31T12:00:00Z","config":%s}' % (b'{"filter":[' * 300 + b"]}" * 300)
    with pytest.raises(Unreadable, match="nested more than 50 levels deep"):
        read_definition(("S", "c"), value)


def test_what_a_newer_version_wrote_is_left_alone() -> None:
    record = write_definition(Definition(make_config(), NOW))
    newer = (record.value or b"").replace(b'"v":1', b'"v":2')
    with pytest.raises(Unreadable, match="version 2; this overlay reads version 1"):
        read_definition(("S", "c"), newer)
    with pytest.raises(Unreadable, match="is one of S/c"):
        read_definition(("S", "d"), record.value or b"")


@pytest.mark.parametrize("offset", [1 << 63, -1, 1e300, 1.5, "7", None, True])
def test_ends_are_offsets(offset: object) -> None:
    """A definition is read at every start, and its ends go into requests to Kafka."""
    definition = Definition(make_config(), NOW, ends=LogEnds({"t": ("id", (7, 8))}))
    record = write_definition(definition)
    assert read_definition(("S", "c"), record.value or b"") == definition
    body = json.loads(record.value or b"")
    body["ends"]["t"][1][1] = offset
    with pytest.raises(Unreadable):
        read_definition(("S", "c"), json.dumps(body).encode())
