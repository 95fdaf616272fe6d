"""Which changes of consumers a running session takes up. What becomes of them is tested in tests/sim/test_changes.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from overlay.config import ConsumerConfig
from overlay.state.shard_state import ConsumerId, ConsumerState, ShardState
from overlay.worker.assignment import Assignment
from overlay.worker.changes import MOST_APART, can_take_up, find_step
from overlay.worker.cursors.cursors import Cursors
from overlay.worker.round.task import Reader
from tests.control.registries import make_config

MANY = MOST_APART + 1


def describe(count: int, output: str, **more: Any) -> dict[ConsumerId, ConsumerConfig]:
    """Return the configs of so many consumers. `output`: the topic that each delivers to, with its number in place of {}."""
    configs = [make_config(f"c{number}", deliver_subject=output.format(number), **more) for number in range(count)]
    return {config.id: config for config in configs}


def is_taken_up(before: dict[ConsumerId, ConsumerConfig], after: dict[ConsumerId, ConsumerConfig]) -> bool:
    """Whether a session that begins with the configs `before` takes up those of `after`."""
    assignment, cursors = Assignment(sources={"S": cast("Any", None)}), Cursors()
    for id, config in before.items():
        output_topic = cast("Any", SimpleNamespace(topic=config.deliver_subject))
        assignment.readers[id] = Reader(id, (), output_topic)
        cursors.enlist(id, ConsumerState(), {})
    step = find_step(before, after, [])
    assert step is not None
    return can_take_up(assignment, cursors, ShardState(), step)


@pytest.mark.parametrize(
    ("count", "output", "expected"), [(MANY, "out", False), (MOST_APART, "out", True), (MANY, "out-{}", True)]
)
def test_a_session_takes_up_any_number_of_consumers_that_could_share_with_none(
    count: int, output: str, expected: bool
) -> None:
    assert is_taken_up({}, describe(count, output)) is expected


@pytest.mark.parametrize(
    ("output", "more", "expected"),
    [("out", {"filter_subject": "t.a"}, True), ("out", {"headers_only": True}, False), ("other", {}, False)],
)
def test_a_consumer_with_another_filter_shares_its_output_as_before(
    output: str, more: dict[str, Any], expected: bool
) -> None:
    assert is_taken_up(describe(MANY, "out"), describe(MANY, output, **more)) is expected


@pytest.mark.parametrize("is_ledger", [False, True])
def test_a_consumer_that_begins_at_a_sequence_needs_no_new_session(is_ledger: bool) -> None:
    """The ledger has a lock: the pipeline may append to it meanwhile."""
    assignment = Assignment(sources={"S": cast("Any", None)}, ledgers={"S": cast("Any", None)} if is_ledger else {})
    step = find_step({}, describe(1, "out", deliver_policy="by_start_sequence", opt_start_seq=5), [])
    assert step is not None
    assert can_take_up(assignment, Cursors(), ShardState(), step)


ACKED = {"ack_policy": "explicit"}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"filter_subject": "t.a"}, True),
        ({"deliver_group": "readers", "headers_only": True}, True),
        ({"deliver_subject": "other"}, False),
        ({"ack_policy": "none"}, False),
        ({"ack_policy": "all"}, False),
        ({"delivery": "at_least_once"}, False),
    ],
)
def test_what_may_change_of_a_consumer_with_a_machine(more: dict[str, Any], expected: bool) -> None:
    """With another output, what is pending has to go out again there."""
    before = make_config("c", **ACKED)
    after = make_config("c", **{**ACKED, **more})
    assert (find_step({before.id: before}, {after.id: after}, []) is not None) is expected


@pytest.mark.parametrize("is_heard", [False, True])
def test_a_machine_comes_where_acks_are_read(is_heard: bool) -> None:
    """The first one of a stream needs a new session, which reads the ack topic as well."""
    config = make_config("c", **ACKED)
    assignment = Assignment(sources={"S": cast("Any", None)}, heard={"S"} if is_heard else set())
    step = find_step({}, {config.id: config}, [])
    assert step is not None and step.with_machines == {config.id}
    assert can_take_up(assignment, Cursors(), ShardState(), step) is is_heard


def test_machines_share_no_output_in_any_session() -> None:
    assignment = Assignment(sources={"S": cast("Any", None)}, heard={"S"})
    step = find_step({}, describe(MANY, "out", **ACKED), [])
    assert step is not None
    assert can_take_up(assignment, Cursors(), ShardState(), step)
