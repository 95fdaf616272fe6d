"""Configs as files: what is written is what was there, whatever is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from overlay.config.consumer import ConsumerConfig
from overlay.config.defaults import fill_defaults
from overlay.config.document import parse_document
from overlay.config.loader import check_changed
from overlay.config.spelling import DURATIONS, TIMES, list_settings, shorten, write_file
from overlay.config.yaml_text import write_yaml
from overlay.control.records import read_config
from tests.config.folders import load_files

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    [
        "no",
        "1",
        "~",
        "null",
        "1.5e3",
        "- a",
        "a: b",
        "#",
        "'",
        '"',
        "2026-01-31T12:00:00Z",
        "12:30",
        "",
        " x ",
        "a\nb",
        "${X}",
    ]
)
SPANS = st.integers(0, 1 << 45)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "description": WORDS,
    "deliver_policy": st.sampled_from(["all", "new", "last"]),
    "ack_policy": st.sampled_from(["none", "explicit", "all"]),
    "ack_wait": SPANS,
    "max_deliver": st.integers(-1, 5),
    "backoff": st.lists(SPANS, max_size=3),
    "filter_subjects": st.lists(WORDS, max_size=3),
    "sample_freq": WORDS,
    "max_waiting": st.integers(0, 600),
    "max_ack_pending": st.integers(-1, 2_000),
    "headers_only": st.booleans(),
    "deliver_subject": st.sampled_from(["", "out"]),
    "deliver_group": WORDS,
    "idle_heartbeat": SPANS,
    "inactive_threshold": SPANS,
    "metadata": st.dictionaries(WORDS, WORDS, max_size=3),
    "pause_until": st.sampled_from(["2026-01-31T12:00:00.000000001Z", "0001-01-01T00:00:00Z"]),
    "priority_policy": st.sampled_from(["none", "pinned_client"]),
    "filter": st.fixed_dictionaries(
        {}, optional={"sql": WORDS, "values": st.lists(WORDS, max_size=2), "match_unfiltered": st.booleans()}
    )
    | st.fixed_dictionaries(
        {"properties": st.dictionaries(WORDS, st.dictionaries(WORDS, WORDS | st.integers()), max_size=2)}
    ),
    "output": st.fixed_dictionaries(
        {}, optional={"partitions": st.integers(1, 9), "config": st.dictionaries(WORDS, WORDS, max_size=2)}
    ),
    "dead_letter": st.sampled_from(["letters"]),
    "delivery": st.sampled_from(["exactly_once", "at_least_once"]),
    "interest": st.sampled_from(["group", "always"]),
}
NAMES = st.sampled_from([{"durable_name": "c"}, {"name": "c"}, {"durable_name": "c", "name": "c"}])


@given(NAMES, st.fixed_dictionaries({}, optional=FIELDS))
def test_a_file_gives_the_same_config(names: dict[str, str], fields: dict[str, Any]) -> None:
    config = fill_defaults(read_config("S", {**names, **fields}))
    written = read_config("S", parse_document("c.yaml", write_file(config)).data)
    assert fill_defaults(written) == config
    # a file may not set what a server would change
    assert list(check_changed(written)) == []


def test_a_file_has_what_differs_from_defaults() -> None:
    config = fill_defaults(
        read_config("S", {"durable_name": "c", "backoff": ["1s", "90s"], "output": {"partitions": 2}})
    )
    assert shorten(config) == {
        "stream": "S",
        "durable_name": "c",
        "backoff": ["1s", "1m30s"],
        "output": {"partitions": 2},
    }
    assert write_file(config) == ("stream: S\ndurable_name: c\nbackoff:\n  - 1s\n  - 1m30s\noutput:\n  partitions: 2\n")


def test_a_file_in_its_folder(tmp_path: Path) -> None:
    fields = {
        "durable_name": "c", "deliver_subject": "out", "filter_subjects": ["flights.JFK", "flights.LGA"],
        "filter": {"sql": "carrier LIKE 'x%' AND tail <> 'a''b'"}, "ack_wait": "10s", "max_deliver": 5, "dead_letter": "dead",
    }  # fmt: skip
    config = fill_defaults(read_config("FLIGHTS", fields))
    loaded = load_files(tmp_path, {"consumers/c.yaml": write_file(config)})
    assert loaded.problems == () and loaded.consumers == {("FLIGHTS", "c"): config}


def test_settings_are_those_that_are_set() -> None:
    fields = {
        "name": "c",
        "metadata": {"team": "ops"},
        "filter": {"properties": {"header": {"a": 1}}},
        "headers_only": True,
    }
    pulled = dict(list_settings(fill_defaults(read_config("S", fields))))
    assert pulled == {
        "deliver_policy": "all", "ack_policy": "explicit", "ack_wait": "30s", "max_deliver": "-1", "replay_policy": "instant",
        "max_waiting": "512", "max_ack_pending": "1000", "headers_only": "true", "inactive_threshold": "5s",
        "metadata.team": "ops", "filter.properties": '{"header": {"a": 1}}', "on_undeliverable": "stop",
        "delivery": "exactly_once", "interest": "group", "engine": "service",
    }  # fmt: skip
    pushed = dict(list_settings(fill_defaults(read_config("S", fields | {"deliver_subject": "out"}))))
    assert pushed["output.partitions"] == "1" and "output.config" not in pushed


def test_every_duration_and_time_is_spelled() -> None:
    """Their schemas say which fields they are."""
    found: dict[str, list[str]] = {"nanoseconds": [], "date-time": []}
    for name, schema in ConsumerConfig.model_json_schema()["properties"].items():
        for kind, names in found.items():
            if f"'{kind}'" in str(schema):
                names.append(name)
    assert sorted(found["nanoseconds"]) == sorted(DURATIONS)
    assert sorted(found["date-time"]) == sorted(TIMES)


@given(
    st.dictionaries(
        WORDS,
        st.recursive(
            WORDS | st.booleans() | st.none() | st.integers(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
            max_leaves=8,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_yaml_is_read_as_it_was_written(data: dict[str, Any]) -> None:
    assert parse_document("x.yaml", write_yaml(data)).data == freeze(data)


def freeze(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: freeze(item) for name, item in value.items()}
    return tuple(map(freeze, value)) if isinstance(value, list) else value
