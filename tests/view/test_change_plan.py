"""The output of `overlay apply`, by its lines."""

from __future__ import annotations

import pytest

from overlay.control.change_plan import FieldChange, Step, Verb
from overlay.view.change_plan import describe_plan, list_lines, show_value, summarise

ID = ("FLIGHTS", "late")
CHANGES = (FieldChange("filter.sql", "a > 1", "a > 2"), FieldChange("ack_wait", None, "10s"))


@pytest.mark.parametrize(
    ("step", "lines"),
    [
        (Step(Verb.KEEP, ID), []),
        (
            Step(Verb.ADD, ID, changes=CHANGES),
            ["+ FLIGHTS/late", "    filter.sql  a > 2", "    ack_wait    10s"],
        ),
        (
            Step(Verb.CHANGE, ID, changes=CHANGES),
            ["~ FLIGHTS/late", "    filter.sql  a > 1 -> a > 2", "    ack_wait    - -> 10s"],
        ),
        (Step(Verb.REMOVE, ID), ["- FLIGHTS/late: with its positions and all that waits for acks"]),
        (Step(Verb.LEAVE, ID, reason="a Spark job runs it"), ["  FLIGHTS/late: a Spark job runs it"]),
        (
            Step(Verb.REFUSE, ID, changes=CHANGES[:1], reason="no"),
            ["! FLIGHTS/late: no", "    filter.sql  a > 1 -> a > 2"],
        ),
    ],
)
def test_the_lines_of_a_consumer(step: Step, lines: list[str]) -> None:
    assert list(list_lines(step)) == lines


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *((None, "-"), ("", "-"), ([], "-"), (0, "0"), (False, "false"), ("10s", "10s")),
        *((["a", "b.>"], "[a, b.>]"), ({"a": [1]}, '{"a": [1]}')),
    ],
)
def test_values_are_shown_as_files_write_them(value: object, shown: str) -> None:
    assert show_value(value) == shown


def test_the_numbers() -> None:
    assert summarise([]) == "0 to add, 0 to change, 0 to remove, 0 unchanged"
    steps = [Step(verb, ID) for verb in Verb]
    assert summarise(steps) == "1 to add, 1 to change, 1 to remove, 1 unchanged, 1 left alone, 1 refused"


def test_json_has_each_step_with_its_outcome() -> None:
    plan = [Step(Verb.CHANGE, ID, changes=CHANGES[:1]), Step(Verb.LEAVE, ("FLIGHTS", "x"), reason="why")]
    found = describe_plan(plan, {ID: "done"}, dry_run=False)
    assert {name: found[name] for name in ("dry_run", "add", "change", "remove", "keep", "leave", "refuse")} == {
        **dict.fromkeys(("add", "remove", "keep", "refuse"), 0),
        **dict.fromkeys(("change", "leave"), 1),
        "dry_run": False,
    }
    assert found["steps"] == [
        {
            "verb": "change",
            "stream": "FLIGHTS",
            "consumer": "late",
            "reason": "",
            "outcome": "done",
            "changes": [{"field": "filter.sql", "old": "a > 1", "new": "a > 2"}],
        },
        {
            "verb": "leave",
            "stream": "FLIGHTS",
            "consumer": "x",
            "reason": "why",
            "outcome": "",
            "changes": [],
        },
    ]
