"""Cells of the tables that commands print."""

from __future__ import annotations

from dataclasses import replace

from overlay.view.facts import IndexFacts, IndexPartFacts, StreamFacts
from overlay.view.table import show_unaddressed


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
