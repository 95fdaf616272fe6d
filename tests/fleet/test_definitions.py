"""Which consumers there are, by the control topic."""

from __future__ import annotations

import json
from typing import Any

from overlay.config.consumer import ConsumerConfig
from overlay.control.records import (
    MAX_VALUE,
    Definition,
    Origin,
    Pause,
    make_key,
    write_definition,
    write_drain,
    write_pause,
)
from overlay.control.records import Subject as About
from overlay.fleet import definitions
from overlay.fleet.definitions import Confirmed, Definitions
from overlay.fleet.findings import DELETED_MS, Expected, Kind, look, survey
from overlay.fleet.memory import Memory
from overlay.fleet.picture import DescribedConsumers as Described
from overlay.fleet.picture import describe_consumers
from overlay.fleet.status import Refusal

from .statuses import NOW, make_consumer, make_status

KEY = make_key(About.CONSUMER, "S", "c")


def define(name: str = "c", *, origin: Origin = Origin.REQUEST, deleted: bool = False, **fields: Any) -> Definition:
    config = ConsumerConfig(stream="S", durable_name=name, **fields)
    return Definition(config, NOW * 1_000_000, origin, is_deleted=deleted)


def take(found: Definitions, definition: Definition, at: int = NOW) -> None:
    record = write_definition(definition)
    found.take(record.key, record.value, at)


def test_what_was_made_by_request_is_wanted_until_it_is_deleted() -> None:
    found = Definitions()
    take(found, define())
    take(found, define("of-a-file", origin=Origin.FILE))
    take(found, define("of-a-job", engine="spark"))
    assert found.list_wanted() == {("S", "c")}
    take(found, define(deleted=True), NOW + 1)
    assert not found.list_wanted()
    assert found.list_deleted() == {("S", "c"): NOW + 1}
    found.take(KEY, None, NOW + 2)
    assert found.list_deleted() == {("S", "c"): NOW + 2}
    take(found, define(), NOW + 3)
    assert found.list_wanted() == {("S", "c")}
    assert not found.list_deleted()


def test_topics_of_dead_letters_are_known() -> None:
    found = Definitions()
    take(found, define(dead_letter="letters"))
    take(found, define("other", dead_letter="gone", deleted=True))
    assert found.list_letter_topics() == {"letters"}


def test_other_records_are_left_out_and_strange_ones_counted() -> None:
    found = Definitions()
    for record in (write_pause(("S", "c"), Pause(None)), write_drain("w", "b1")):
        found.take(record.key, record.value, NOW)
    assert not found.rows and not found.refused
    for key, value in (
        (None, b"{}"),
        (b"zork", b"{}"),
        (KEY, b"zork"),
        (KEY, b"[" * 10_000),
        (KEY, b'{"config": 1}'),
        (make_key(About.CONSUMER, "S", "x" * 256), b'{"config": {}}'),
        (make_key(About.CONSUMER, "S", "a\nb"), b'{"config": {}}'),
    ):
        found.take(key, value, NOW)
    found.take(KEY, bytes(MAX_VALUE + 1), NOW)
    assert found.refused == {Refusal.MALFORMED: 7, Refusal.SIZE: 1} and not found.rows


def test_rows_are_bounded_and_forgotten() -> None:
    found, value = Definitions(), json.dumps({"config": {}, "deleted": True}).encode()
    found.rows.update((str(number), {}) for number in range(definitions.MOST_DEFINITIONS))
    found.take(KEY, value, NOW)
    assert found.refused == {Refusal.LIMIT: 1}
    found.rows.clear()
    found.take(KEY, value, NOW)
    found.forget(NOW + definitions.FORGET_MS)
    assert "S/c" in found.rows
    found.forget(NOW + definitions.FORGET_MS + 1)
    assert not found.rows


def test_a_deletion_that_is_to_be_read_no_more_is_made_up_for() -> None:
    """The control topic keeps deletions for an hour, and the fleet was away for longer."""
    found = Definitions()
    for name in ("stays", "went", "came-after"):
        take(found, define(name), NOW + (name == "came-after"))
    take(found, define("deleted", deleted=True))
    found.confirmed = Confirmed(frozenset({("S", "stays")}), before=NOW + 1)
    found.forget(NOW + 2)
    assert found.list_wanted() == {("S", "stays"), ("S", "came-after")}
    assert found.list_deleted().keys() == {("S", "deleted")}
    # what the topic tells from then on counts
    take(found, define("went"), NOW)
    found.forget(NOW + 3)
    assert ("S", "went") in found.list_wanted()


def list_states(memory: Memory, found: Definitions, now: int, expected: Expected) -> dict[str, str]:
    picture = look(memory, now, expected, found)
    return {row["name"]: row["state"] for row in describe_consumers(picture, Described())}


def test_a_deleted_consumer_is_shown_no_more() -> None:
    memory, found = Memory(), Definitions()
    expected = Expected(1, "d1", frozenset({("S", "a"), ("S", "b")}))
    rows = (make_consumer("a"), make_consumer("b", state="starting"))
    memory.fold(make_status(consumers=rows), NOW)
    assert list_states(memory, found, NOW, expected) == {"a": "running", "b": "not served"}
    take(found, define("b", origin=Origin.FILE, deleted=True), NOW + 1)
    assert list_states(memory, found, NOW + 2, expected) == {"a": "running"}
    kinds = {finding.kind for finding in survey(look(memory, NOW + 2, expected, found))}
    assert Kind.CONSUMERS_NOT_SERVED not in kinds
    # a worker that goes on to tell of it knows better than a record that any client may write
    memory.fold(make_status(number=1, consumers=(make_consumer("b"),)), NOW + DELETED_MS + 2)
    assert list_states(memory, found, NOW + DELETED_MS + 2, expected)["b"] == "running"


def test_a_consumer_by_request_that_no_worker_serves_is_found() -> None:
    memory, found = Memory(), Definitions()
    memory.fold(make_status(), NOW)
    take(found, define("asked"))
    assert list_states(memory, found, NOW, Expected(1, "d1")) == {"asked": "not served"}
