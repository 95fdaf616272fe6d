"""What to list for a filter: every suggestion is tried on the planner, and on records."""

from __future__ import annotations

from typing import Any

import pytest
from ruamel.yaml import YAML

from overlay.index.skip.derive import derive_filter
from overlay.index.skip.probes import Answer, Conditions, Everything, Unsure, any_of
from overlay.index.skip.prune import evaluate
from overlay.view.advice import NOTHING, Missing, can_refuse, extend, find_missing
from tests.index.partitions import Record, load, say, seal, sql, stream

NOW = 1_700_000_000_000
PROPERTIES: dict[str, Any] = {"carrier": "string", "delay": "double", "n": "long", "late": "boolean", "t": "binary"}


def missing(text: str, **index: list[str]) -> Missing:
    config = stream(properties=PROPERTIES, index=index)
    return find_missing(config, sql(text, config), NOW)


@pytest.mark.parametrize(
    ("text", "terms", "zones"),
    [
        ("carrier = 'AA'", ("carrier",), ()),
        ("carrier IN ('AA', 'UA') AND delay > 60", ("carrier",), ("delay",)),
        ("carrier <> 'AA'", (), ("carrier",)),
        ("carrier LIKE 'A%'", (), ("carrier",)),
        ("n = 5 OR n > 70", ("n",), ("n",)),
        ("n + 10 > 60", (), ("n",)),
        ("late", ("late",), ()),
        ("NOT late AND late IS NOT NULL", ("late",), ()),
        ("delay IS NULL", (), ("delay",)),
        ("t = 'x'", ("t",), ()),
        # what no worker could answer
        ("carrier LIKE '%A'", (), ()),
        ("delay * 2 > n", (), ()),
        ("carrier = 'AA' OR delay * 2 > 7", (), ()),
        ("t LIKE 'x%'", (), ()),
    ],
)
def test_what_a_filter_wishes_for(text: str, terms: tuple[str, ...], zones: tuple[str, ...]) -> None:
    found = missing(text)
    assert (found.terms, found.zones, dict(found.declare)) == (terms, zones, {})


def test_what_is_listed_is_not_wished_for_again() -> None:
    assert missing("carrier = 'AA' AND delay > 60", terms=["carrier"], zones=["delay"]) == NOTHING
    assert missing("carrier = 'AA' AND delay > 60", terms=["carrier"]) == Missing((), ("delay",))


def test_what_is_not_declared_has_to_be() -> None:
    found = missing("dest = 'LAX' AND p.message_id = 'm'")
    assert found == Missing(("dest", "p.message_id"), (), {"dest": "string", "p.message_id": "string"})


def test_what_subjects_and_times_say_needs_no_list() -> None:
    config = stream(
        subject={"template": "f.{header:origin}.{header:dest}"},
        properties={"sent": {"type": "timestamp", "from": "{timestamp}"}},
    )
    assert find_missing(config, sql("origin = 'JFK' AND sent > 5", config), NOW) == NOTHING


def test_the_lines_are_those_of_a_file_that_skips_more() -> None:
    """They are read as YAML over the file, and the chunk that was MAYBE is refused then."""
    config = stream(properties=PROPERTIES, index={"terms": ["carrier"], "chunk_records": 7})
    text = "dest = 'LAX' AND delay > 60"
    found = find_missing(config, sql(text, config), NOW)
    written = YAML(typ="safe", pure=True).load("\n".join(found.write(config)))
    assert written == {
        "properties": {"dest": "string"},
        "index": {"terms": ["carrier", "dest"], "zones": ["delay"]},
    }
    grown = stream(properties=PROPERTIES | written["properties"], index={"chunk_records": 7} | written["index"])
    assert extend(config, found) == grown
    records = [Record(0, "a", message=say(dest="SFO", delay=3.0)), Record(1, "a", message=say(dest="JFK", delay=90.0))]
    for file, answer in ((config, Answer.MAYBE), (grown, Answer.NO)):
        chunks = load(file, [seal(file, records, 0, 2)])
        conditions = Conditions(filter=derive_filter(file, sql(text, file), NOW))
        assert evaluate(conditions, chunks).count(answer) == 1


def test_who_can_refuse() -> None:
    assert not can_refuse(Unsure()) and not can_refuse(Everything())
    config = stream(properties=PROPERTIES, index={"terms": ["carrier"]})
    has = derive_filter(config, sql("carrier = 'AA'", config), NOW)
    assert can_refuse(has)
    assert not can_refuse(any_of((has, Unsure())))
