"""Cells of the tables that commands print."""

from __future__ import annotations

import io
import re
from dataclasses import replace

from rich.console import Console

from overlay.config import ConsumerConfig
from overlay.view.facts import ConsumerFacts, IndexFacts, IndexPartFacts, OverlayFacts, StreamFacts
from overlay.view.table import print_consumer, show_unaddressed


def test_records_without_a_subject_are_counted_since_the_start_of_the_service() -> None:
    assert show_unaddressed(StreamFacts("S")) == ""
    one = StreamFacts("S", unaddressed={"missing": 1, "empty": 0}, unaddressed_at="t-0@4: missing")
    assert show_unaddressed(one) == "1 record left out since the service started (missing 1), such as t-0@4: missing"
    some = StreamFacts("S", unaddressed={"missing": 1_000, "empty": 2}, unaddressed_at="t-0@9: empty")
    found = show_unaddressed(some)
    assert found == "1,002 records left out since the service started (empty 2, missing 1,000), such as t-0@9: empty"


def test_records_without_a_subject_are_counted_in_the_whole_chunk_index() -> None:
    """What an earlier service has read counts too; with an older service, whose index says nothing of it, nothing is shown."""
    parts = {
        "t-0": IndexPartFacts(1, 10, records=10, unaddressed=0),
        "t-1": IndexPartFacts(2, 90, records=80, unaddressed=3, unaddressed_in=(40, 90)),
    }
    stream = StreamFacts("S", index=IndexFacts(partitions=parts))
    told = "3 of 90 indexed records, such as one in t-1 between offsets 40 and 89"
    assert show_unaddressed(stream) == told
    since = replace(stream, unaddressed={"missing": 1}, unaddressed_at="t-1@88: missing")
    assert show_unaddressed(since) == (
        f"{told}; 1 record left out since the service started (missing 1), such as t-1@88: missing"
    )
    assert show_unaddressed(StreamFacts("S", index=IndexFacts(partitions={"t-0": IndexPartFacts(1, 10)}))) == ""


def list_rows(found: ConsumerFacts) -> dict[str, str]:
    """The rows of `overlay consumer info` above its tables, by name."""
    out = io.StringIO()
    print_consumer(Console(file=out, width=500), OverlayFacts({}, {found.id: found}), found)
    sheet, _, _ = out.getvalue().partition("\n\n")
    names_and_values = (re.split(" {2,}", line.strip(), maxsplit=1) for line in sheet.splitlines())
    return dict(names_and_values)


def test_a_consumer_is_shown_with_its_subjects_and_its_sql() -> None:
    config = ConsumerConfig.model_validate(
        {"stream": "S", "durable_name": "c", "filter": {"sql": "total > 5 AND country = 'NO'"}}
    )
    rows = list_rows(ConsumerFacts("S", "c", filters=("a.*", "b.>"), state="running", config=config))
    assert rows["subjects"] == "a.*, b.>"
    assert rows["SQL"] == "total > 5 AND country = 'NO'"
    assert [*rows][:4] == ["consumer", "state", "subjects", "SQL"]


def test_a_consumer_without_filters_gets_all_subjects() -> None:
    config = ConsumerConfig(stream="S", durable_name="c")
    rows = list_rows(ConsumerFacts("S", "c", state="running", config=config))
    assert (rows["subjects"], "SQL" in rows) == ("all", False)


def test_nothing_is_said_of_the_filters_of_a_removed_consumer() -> None:
    """Its file is gone, and the state does not have them."""
    rows = list_rows(ConsumerFacts("S", "c", state="removed", consumer_sequence=7))
    assert not rows.keys() & {"subjects", "SQL"}
    assert rows["sequence"] == "7"
