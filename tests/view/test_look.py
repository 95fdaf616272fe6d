"""What the service says, completed by what Kafka remembers."""

from __future__ import annotations

from overlay.view.facts import ConsumerFacts, Facts, PartitionFacts, StreamFacts
from overlay.view.look import combine

PARTS = {"t-0": PartitionFacts(7, 9)}


def test_the_service_knows_better_and_the_state_fills_the_gaps() -> None:
    running = Facts(
        {"A": StreamFacts("A", state="running", partitions={"t-0": PartitionFacts(8, 9)}), "B": StreamFacts("B")},
        {
            ("A", "fine"): ConsumerFacts("A", "fine", state="running", positions={"t-0": 8}, consumer_sequence=4),
            ("A", "stuck"): ConsumerFacts("A", "stuck", state="stalled", lag_seconds=0.0, rate=0.0),
        },
        "http://here",
    )
    stored = Facts(
        {"A": StreamFacts("A", partitions=PARTS), "B": StreamFacts("B", partitions=PARTS), "C": StreamFacts("C")},
        {
            ("A", "fine"): ConsumerFacts("A", "fine", state="waiting", positions={"t-0": 7}, consumer_sequence=3),
            ("A", "stuck"): ConsumerFacts("A", "stuck", positions={"t-0": 5}, consumer_sequence=2, lag_records=4),
            ("A", "gone"): ConsumerFacts("A", "gone", state="removed"),
            ("C", "fresh"): ConsumerFacts("C", "fresh", state="new"),
        },
    )
    found = combine(running, stored)
    assert found.streams["A"].partitions["t-0"].position == 8
    assert found.streams["B"].partitions == PARTS
    assert found.consumers["A", "fine"].consumer_sequence == 4
    stuck = found.consumers["A", "stuck"]
    assert (stuck.state, stuck.positions, stuck.lag_records, stuck.lag_seconds) == ("stalled", {"t-0": 5}, 4, None)
    assert list(found.consumers) == [("A", "fine"), ("A", "gone"), ("A", "stuck"), ("C", "fresh")]
    assert [note.partition("; ")[0] for note in found.notes] == [
        "the running service does not know stream C",
        "the running service does not know consumer C/fresh",
    ]
