"""Lists of streams and consumers, in pipes and drawn."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from overlay.view.console import PIPED_WIDTH
from overlay.view.facts import ConsumerFacts, OverlayFacts, PartitionFacts, StreamFacts
from overlay.view.listing import Listing, list_consumers, list_streams, write_plain
from overlay.view.table import print_listing

CONSUMERS = [
    ConsumerFacts("ORDERS", "late", "late-out", state="running", consumer_sequence=1_234, lag_records=5, rate=0.4),
    ConsumerFacts("ORDERS", "Ærlig-仕事-e\u0301", state="stopped", reason="its topic\ris gone"),
]
STREAMS = {
    "ORDERS": StreamFacts("ORDERS", ("a", "b"), state="running", partitions={"a-0": PartitionFacts(1, 9)}, rate=12.0),
    "X": StreamFacts("X", reason="waits"),
}
FACTS = OverlayFacts(STREAMS, {each.id: each for each in CONSUMERS}, notes=("the service is not running",))
LISTINGS = [list_streams(FACTS), list_consumers(FACTS, CONSUMERS), list_consumers(OverlayFacts({}, {}), [])]


@pytest.mark.parametrize("listing", LISTINGS)
def test_plain_lines_are_what_a_pipe_gets_of_a_drawn_table(listing: Listing) -> None:
    out = io.StringIO()
    print_listing(Console(file=out, width=PIPED_WIDTH, highlight=False), listing)
    assert write_plain(listing).splitlines() == out.getvalue().splitlines()


def test_plain_lines() -> None:
    assert write_plain(list_consumers(FACTS, CONSUMERS[:1])).splitlines() == [
        "stream  consumer  state    output    sequence  records/s  lag  lag time",
        "ORDERS  late      running  late-out     1,234      0.4/s    5         -",
        "the service is not running",
    ]
