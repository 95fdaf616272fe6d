"""overlay/worker/last_messages.py by itself: what is left of a snapshot is what a search from the consumer's place on finds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from overlay.index.ledger.allocate import allocate
from overlay.index.ledger.entries import LedgerEntry, LedgerRun
from overlay.index.ledger.ledger import Ledger, Refusal
from overlay.index.pending.last_per_subject import find_lows, merge_lasts
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.state.shard_state import ConsumerState
from overlay.worker.cursors.cursors import Cursors
from overlay.worker.cursors.order import plan_steps

SOURCES: list[TopicPartition] = [("t", 0), ("t", 1), ("u", 0)]
SUBJECTS = ("a", "b", "c")

rounds = st.lists(
    st.fixed_dictionaries({source: st.lists(st.sampled_from(SUBJECTS), max_size=4) for source in SOURCES}), max_size=6
)
Log = dict[TopicPartition, list[str]]


def grow(growth: list[dict[TopicPartition, list[str]]]) -> tuple[Ledger, Log, dict[int, tuple[TopicPartition, int]]]:
    """Return a ledger, the subjects of each partition by offset, and where each sequence is."""
    ledger, log = Ledger(), Log({source: [] for source in SOURCES})
    for more in growth:
        for source, subjects in more.items():
            log[source] += subjects
        taken = {source: (0, LogPosition(len(log[source]))) for source in SOURCES}
        if (made := allocate(ledger.standing, taken)) is not None:
            assert ledger.append(made) is Refusal.NONE
    places = {
        sequence: (source, offset)
        for source in SOURCES
        for offset, sequence in enumerate(ledger.sequence_of(source, np.arange(len(log[source]))).tolist())
    }
    return ledger, log, places


def search(log: Log, lows: Mapping[TopicPartition, int], ledger: Ledger) -> dict[TopicPartition, list[int]]:
    """Return what is found from some offsets on."""
    found = {
        source: {log[source][offset]: offset for offset in range(lows[source], len(log[source]))} for source in SOURCES
    }
    return {source: offsets.tolist() for source, offsets in merge_lasts(found, ledger).items()}


@given(growth=rounds)
def test_the_last_of_a_subject_is_that_with_the_highest_sequence(growth: list[dict[TopicPartition, list[str]]]) -> None:
    ledger, log, places = grow(growth)
    last = {log[source][offset]: (source, offset) for _, (source, offset) in sorted(places.items())}
    wanted = {source: sorted(at for name, at in last.values() if name == source) for source in SOURCES}
    assert search(log, dict.fromkeys(SOURCES, 0), ledger) == wanted


@given(growth=rounds, place=st.integers(1, 60), halted=st.dictionaries(st.sampled_from(SOURCES), st.integers(0, 9)))
def test_a_search_from_the_place_on_finds_what_is_left(
    growth: list[dict[TopicPartition, list[str]]], place: int, halted: dict[TopicPartition, int]
) -> None:
    """`halted`: partitions that were left behind by the others."""
    ledger, log, _ = grow(growth)
    every = search(log, dict.fromkeys(SOURCES, 0), ledger)
    known = ledger.positions_at(place)
    positions = {source: min(known.get(source, 0), halted.get(source, 99)) for source in SOURCES}
    found = search(log, find_lows(positions, ledger), ledger)
    for source, position in positions.items():
        assert [at for at in found[source] if at >= position] == [at for at in every[source] if at >= position]


def test_a_record_without_a_sequence_counts_as_coming_before_the_next_one() -> None:
    """The round of offsets 0 and 1 of a partition was lost."""
    ledger = Ledger()
    assert ledger.append(LedgerEntry((LedgerRun("t", 1, 0, 3, 10),))) is Refusal.NONE
    assert ledger.append(LedgerEntry((LedgerRun("t", 0, 2, 1, 20), LedgerRun("t", 1, 3, 1, 21)))) is Refusal.NONE
    found = {("t", 0): {"a": 1, "b": 2}, ("t", 1): {"a": 2, "b": 3}}
    merged = merge_lasts(found, ledger)
    assert {source: at.tolist() for source, at in merged.items()} == {("t", 0): [1], ("t", 1): [3]}


def test_cursors_stay_where_they_are_until_it_is_known_what_they_deliver() -> None:
    """And the ends are remembered for as long as a restart may step back below them."""
    ledger, log, _ = grow([{source: ["a", "b"] for source in SOURCES}])
    ends = {source: len(log[source]) for source in SOURCES}
    cursors = Cursors(ledgers={"S": ledger})
    starts = dict.fromkeys(SOURCES, LogPosition(0))
    cursors.enlist(("S", "c"), ConsumerState(snapshot=ends), starts)
    some = {source: cursors.of(("S", source)) for source in SOURCES}
    every = {cursor: 2 for each in some.values() for cursor in each}
    assert not plan_steps(some, every, ledger, ledger.next_sequence).steps
    cursors.find(("S", "c"), dict.fromkeys(SOURCES, np.array([1])), 0)
    assert len(plan_steps(some, every, ledger, ledger.next_sequence).steps) == len(SOURCES)
    cursors.pass_retention(every, 0)
    state = cursors.state_of(("S", "c"))
    assert state.snapshot == ends
    cursors.enlist(("S", "d"), state, dict.fromkeys(SOURCES, LogPosition(2)))
    assert all(len(each) == 1 and not each[0].is_alone for each in some.values())
