"""The plan of `overlay apply`: what is asked of a service, and what is left or refused without asking."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import pytest
from pydantic import ValidationError

from overlay.config import ConsumerConfig
from overlay.control.change_plan import DURATIONS, TIMES, FieldChange, Held, Step, Verb, compare, make_plan
from overlay.control.records import Origin, read_config, write_config
from tests.control.registries import make_config as make


def plan(wanted: Iterable[ConsumerConfig], held: Iterable[Held] = (), *, prune: bool = False) -> list[Step]:
    return make_plan({c.id: c for c in wanted}, {h.config.id: h for h in held}, ["S"], ["S", "T"], prune=prune)


def tell(steps: Iterable[Step]) -> list[tuple[str, str]]:
    return [(step.verb.value, step.id[1]) for step in steps]


def test_consumers_that_the_service_has_not_are_added() -> None:
    (step,) = plan([make(filter_subject="a.>", output={"partitions": 3}, filter={"sql": "x > 1"})])
    assert (step.verb, step.id) == (Verb.ADD, ("S", "c"))
    assert step.changes == (
        FieldChange("ack_policy", None, "none"),
        FieldChange("filter_subject", None, "a.>"),
        FieldChange("deliver_subject", None, "out-c"),
        FieldChange("filter.sql", None, "x > 1"),
        FieldChange("output.partitions", None, 3),
    )


def test_a_consumer_as_the_service_has_it_stays() -> None:
    """Also after it was a record of the control topic and an answer."""
    config = make(
        ack_policy="explicit", backoff=("1s", "5s"), filter={"properties": {"p": {"a": [1, 2]}}}, metadata={"a": "b"}
    )
    again = read_config("S", write_config(config))
    assert tell(plan([config], [Held(again)])) == [("keep", "c")]


def test_each_changed_field_is_named_with_both_values() -> None:
    old = make(
        ack_policy="explicit", ack_wait="10s", metadata={"team": "a", "x": "1"}, output={"config": {"retention.ms": 5}}
    )
    new = make(
        ack_policy="explicit", backoff=("1s", "90s"), metadata={"team": "b"}, output={"config": {}}, headers_only=True
    )
    (step,) = plan([new], [Held(old)])
    assert step.verb is Verb.CHANGE
    assert {(each.field, str(each.old), str(each.new)) for each in step.changes} == {
        ("ack_wait", "10s", "1s"),
        ("backoff", "[]", "['1s', '1m30s']"),
        ("metadata.team", "a", "b"),
        ("metadata.x", "1", "None"),
        ("output.config.retention.ms", "5", "None"),
        ("headers_only", "False", "True"),
    }


def test_a_pause_by_request_is_no_difference() -> None:
    paused = make().model_copy(update={"pause_until": 5})
    assert tell(plan([make()], [Held(paused)])) == [("keep", "c")]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"deliver_policy": "new"},
            "deliver_policy: deliver policy can not be updated: remove the consumer and create it",
        ),
        ({"deliver_subject": ""}, "deliver_subject: can not update push consumer to pull based"),
        ({"ack_policy": "explicit"}, "ack_policy: ack policy can not be updated"),
    ],
)
def test_what_jetstream_forbids_is_refused_without_asking(fields: dict[str, Any], reason: str) -> None:
    (step,) = plan([make(**fields)], [Held(make())])
    assert step.verb is Verb.REFUSE and step.reason.startswith(reason) and step.changes


def test_an_output_that_is_read_is_not_changed() -> None:
    new = make(deliver_subject="elsewhere")
    assert tell(plan([new], [Held(make())])) == [("change", "c")]
    (step,) = plan([new], [Held(make(), is_bound=True)])
    assert step.verb is Verb.REFUSE and "is being read" in step.reason


def test_a_consumer_of_a_workers_file_is_left_to_that_file() -> None:
    (same,) = plan([make()], [Held(make(), Origin.FILE)])
    assert (same.verb, same.reason) == (Verb.LEAVE, "a file of the workers defines it")
    (other,) = plan([make(description="x")], [Held(make(), Origin.FILE)])
    assert other.verb is Verb.REFUSE and other.reason.endswith("Change that file, or remove it and apply again")


def test_a_service_that_does_not_say_where_a_consumer_comes_from_decides_itself() -> None:
    assert tell(plan([make(description="x")], [Held(make(), None)])) == [("change", "c")]
    assert plan([], [Held(make(), None)], prune=True) == []


def test_a_stream_that_the_service_has_not() -> None:
    (step,) = plan([make(stream="U")])
    assert step.verb is Verb.REFUSE and step.reason.startswith(
        "the service has no stream U: streams come from the files"
    )
    assert tell(plan([make(stream="T")])) == [("add", "c")]


def test_consumers_of_spark_jobs_are_left() -> None:
    (step,) = plan([make(engine="spark")])
    assert (step.verb, step.reason) == (Verb.LEAVE, "a Spark job runs it by its file")


def test_only_durable_consumers_by_request_of_our_streams_are_pruned() -> None:
    held = [
        Held(make("old")),
        Held(make("filed"), Origin.FILE),
        Held(make("").model_copy(update={"name": "passing"})),
        Held(make("other", stream="T")),
    ]
    assert tell(plan([make("a")], held)) == [("add", "a"), ("leave", "old")]
    assert tell(plan([make("a"), make("z")], held, prune=True)) == [("add", "a"), ("add", "z"), ("remove", "old")]


def reads(field: str, text: str) -> object:
    """What a config has in a field for which a file has this text, or a list of it; the text itself if it is no such field."""
    for written in (text, (text,)):
        with contextlib.suppress(ValidationError):
            found = getattr(ConsumerConfig.model_validate({"stream": "S", field: written}), field)
            return found[0] if isinstance(found, tuple) else found
    return text


def test_durations_and_times_are_shown_as_files_write_them() -> None:
    for names, text in ((DURATIONS, "7s"), ((*TIMES, "pause_until"), "2026-01-31T12:00:00Z")):
        assert {name for name in ConsumerConfig.model_fields if isinstance(reads(name, text), int)} == {*names}
    old, new = make(), make(deliver_policy="by_start_time", opt_start_time="2026-01-31T12:00:00.5Z")
    assert FieldChange("opt_start_time", None, "2026-01-31T12:00:00.5Z") in [*compare(old, new)]
