"""Cells of the tables that commands print."""

from __future__ import annotations

from overlay.view.facts import StreamFacts
from overlay.view.table import show_unaddressed


def test_records_without_a_subject_are_counted_since_the_start_of_the_service() -> None:
    assert show_unaddressed(StreamFacts("S")) == ""
    one = StreamFacts("S", unaddressed={"missing": 1, "empty": 0}, unaddressed_at="t-0@4: missing")
    assert show_unaddressed(one) == "1 record left out since the service started (missing 1), such as t-0@4: missing"
    some = StreamFacts("S", unaddressed={"missing": 1_000, "empty": 2}, unaddressed_at="t-0@9: empty")
    found = show_unaddressed(some)
    assert found == "1,002 records left out since the service started (empty 2, missing 1,000), such as t-0@9: empty"
