"""Giving out sequences: against the twin, and what does and does not depend on how offsets are cut into rounds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.index.ledger.allocate import Standing, allocate, extend, restart
from overlay.index.ledger.entries import LedgerEntry, LedgerRun
from overlay.kafka.log_position import LogPosition, TopicPartition
from tests.oracle import ledger as oracle

SOURCES: list[TopicPartition] = [("a", 0), ("a", 2), ("a", 10), ("b", 0)]
spans = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(lambda pair: (min(pair), max(pair)))
takings = st.dictionaries(st.sampled_from(SOURCES), spans, max_size=4)
machine_facts = st.builds(
    Standing, st.integers(1, 99), st.dictionaries(st.sampled_from(SOURCES), st.integers(0, 12), max_size=4)
)


def take(spans: dict[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, tuple[int, LogPosition]]:
    return {source: (first, LogPosition(after, 3, after)) for source, (first, after) in spans.items()}


def spell(round: LedgerEntry | None) -> dict[oracle.Place, int]:
    """The sequence of each offset."""
    runs = round.runs if round else ()
    return {(run.source, run.first_offset + i): run.first_sequence + i for run in runs for i in range(run.count)}


@given(machine_facts, takings)
def test_a_round_is_the_twins(standing: Standing, spans: dict[TopicPartition, tuple[int, int]]) -> None:
    round = allocate(standing, take(spans))
    expected = oracle.allocate(standing.next_sequence, standing.ends, spans)
    assert spell(round) == expected
    assert allocate(standing, take(dict(reversed(spans.items())))) == round
    if round is None:
        assert not expected
        return
    assert all((run.epoch, run.crc) == (3, run.next_offset) for run in round.runs)
    after = standing.after(round)
    assert after.next_sequence == standing.next_sequence + len(expected)
    assert after.ends == {**standing.ends, **{run.source: spans[run.source][1] for run in round.runs}}
    assert allocate(after, take(spans)) is None


@st.composite
def logs_in_rounds(draw: st.DrawFn) -> list[dict[TopicPartition, tuple[int, int]]]:
    """Logs read from 0 to their ends, in rounds, some of what a round brings having been in one before."""
    rounds = []
    position = dict.fromkeys(SOURCES, 0)
    for _ in range(draw(st.integers(1, 6))):
        spans = {}
        for source in draw(st.lists(st.sampled_from(SOURCES), unique=True)):
            first = max(0, position[source] - draw(st.integers(0, 3)))
            position[source] += draw(st.integers(0, 5))
            spans[source] = first, position[source]
        rounds.append(spans)
    return rounds


def run_all(rounds: list[dict[TopicPartition, tuple[int, int]]]) -> dict[oracle.Place, int]:
    standing = Standing()
    found: dict[oracle.Place, int] = {}
    for spans in rounds:
        if (round := allocate(standing, take(spans))) is not None:
            fresh = spell(round)
            assert not fresh.keys() & found.keys()
            found |= fresh
            standing = standing.after(round)
    return found


@settings(max_examples=200)
@given(logs_in_rounds())
def test_however_rounds_are_cut(rounds: list[dict[TopicPartition, tuple[int, int]]]) -> None:
    """All offsets get a sequence, none is left out, each partition's ascend; and one partition alone has offset + 1."""
    found = run_all(rounds)
    ends = {source: max((spans[source][1] for spans in rounds if source in spans), default=0) for source in SOURCES}
    assert set(found) == {(source, offset) for source, end in ends.items() for offset in range(end)}
    assert sorted(found.values()) == list(range(1, len(found) + 1))
    for source, end in ends.items():
        mine = [found[source, offset] for offset in range(end)]
        assert mine == sorted(mine)
        alone = [{source: spans[source]} for spans in rounds if source in spans]
        assert run_all(alone) == {(source, offset): offset + 1 for offset in range(end)}
    by_one = [{source: spans[source]} for spans in rounds for source in sorted(spans)]
    assert run_all(by_one) == found


def test_partitions_interleave_as_the_rounds_came() -> None:
    """What does depend on the cut."""
    a, b = SOURCES[:2]
    assert run_all([{a: (0, 2), b: (0, 2)}]) == {(a, 0): 1, (a, 1): 2, (b, 0): 3, (b, 1): 4}
    assert run_all([{b: (0, 1)}, {a: (0, 2), b: (1, 2)}]) == {(b, 0): 1, (a, 0): 2, (a, 1): 3, (b, 1): 4}


@pytest.mark.parametrize("cut", [0, 1, 1000])
def test_up_to_the_cut_sequences_are_those_of_one_partition(cut: int) -> None:
    first = extend(("t", 0), LogPosition(cut, 5, 77))
    assert first == LedgerEntry((LedgerRun("t", 0, 0, cut, 1, 5, 77),))
    assert spell(first) == {(("t", 0), offset): offset + 1 for offset in range(cut)}
    standing = Standing().after(first)
    then = allocate(standing, {("t", 0): (cut, LogPosition(cut + 2)), ("t", 1): (0, LogPosition(3))})
    assert then is not None
    assert then.first_sequence == max(cut, 1) + 1
    assert [run.first_offset for run in then.runs] == [cut, 0]


def test_a_restart_says_where_partitions_go_on() -> None:
    standing = Standing(8, {("t", 0): 5, ("t", 1): 6})
    round = restart(standing, {("t", 1): LogPosition(2, 4, 9), ("t", 0): LogPosition(5)})
    assert round == LedgerEntry((LedgerRun("t", 0, 5, 0, 8), LedgerRun("t", 1, 2, 0, 8, 4, 9)))
    assert standing.after(round) == Standing(9, {("t", 0): 5, ("t", 1): 2})
