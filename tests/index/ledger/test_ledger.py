"""The ledger against a dict of every offset; crashes at any point; a million runs within their time and memory."""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.arrays import Bytes, Ints
from overlay.index.ledger.allocate import Standing, allocate, extend, restart
from overlay.index.ledger.entries import LedgerEntry, LedgerRun, encode, parse, parse_values
from overlay.index.ledger.ledger import Ledger, Refusal
from overlay.index.ledger.pages import PAGE_ROWS
from overlay.index.skip.encode import lay_out
from overlay.kafka.log_position import LogPosition, TopicPartition
from tests.oracle.ledger import Place, Twin
from tests.oracle.ledger import Run as PlainRun

SOURCES: list[TopicPartition] = [("a", 0), ("a", 1), ("b", 0)]
TOP = 90
"""No offset and no sequence of the small cases is higher."""


def make_round(sequence: int, plain: Iterable[PlainRun]) -> LedgerEntry:
    runs = []
    for topic, partition, first, count, epoch, crc in plain:
        runs.append(LedgerRun(topic, partition, first, count, sequence, epoch, crc))
        sequence += count
    return LedgerEntry(tuple(runs))


def write(round: LedgerEntry) -> bytes:
    return encode("S", round)[1]


def give(ledger: Ledger, taken: Mapping[TopicPartition, tuple[int, LogPosition]]) -> None:
    """A round of the sequencer's, committed."""
    round = allocate(ledger.standing, taken)
    assert round is not None
    assert ledger.append(round) is Refusal.NONE


@st.composite
def histories(draw: st.DrawFn) -> list[list[tuple[int, list[PlainRun]]]]:
    """Rounds in blocks: mostly as a sequencer writes them, some with gaps, some restarted, some that contradict others."""
    twin, blocks = Twin(), []
    for _ in range(draw(st.integers(1, 4))):
        block = []
        for _ in range(draw(st.integers(1, 4))):
            strange = draw(st.integers(0, 5)) == 0
            sequence = twin.next_sequence + draw(st.sampled_from([0, 0, 0, 2]))
            if strange:
                sequence = max(1, sequence - draw(st.integers(0, 3)))
            plain = []
            for topic, partition in draw(
                st.lists(st.sampled_from(SOURCES), min_size=1, max_size=3, unique=not strange)
            ):
                first, count = twin.ends.get((topic, partition), 0), draw(st.integers(0, 4))
                move = draw(st.sampled_from([0, 0, 0, 2, -1, -4]))
                if move > 0 or strange or not count:
                    first = max(0, first + move)
                plain.append((topic, partition, first, count, draw(st.integers(-1, 3)), draw(st.integers(-1, 9))))
            twin.append(sequence, plain)
            block.append((sequence, plain))
        blocks.append(block)
    return blocks


def check(ledger: Ledger, twin: Twin) -> None:
    assert ledger.next_sequence == twin.next_sequence
    assert ledger.first_sequence == twin.first_sequence
    for source, end in twin.ends.items():
        assert ledger.end_of(source) == end
        assert ledger.log_position_of(source) == LogPosition(end, *twin.log_positions[source])
        offsets = np.arange(-2, TOP)
        expected = [twin.sequences.get((source, offset), 0) for offset in offsets.tolist()]
        assert ledger.sequence_of(source, offsets).tolist() == expected
        assert ledger.sequence_of(source, offsets[::-1]).tolist() == expected[::-1]
        assert ledger.sequence_of(source, offsets[::7]).tolist() == expected[::7]
    for sequence in range(TOP):
        found = ledger.locate(sequence)
        assert (found and (found.source, found.first_offset, found.first_sequence)) == twin.locate(sequence)
        if found is not None:
            for i in range(found.count):
                assert twin.sequences[found.source, found.first_offset + i] == found.first_sequence + i
        positions = ledger.positions_at(sequence)
        assert {source: positions[source] for source in twin.ends} == {
            source: twin.position_at(source, sequence) for source in twin.ends
        }
    assert not ledger.sequence_of(("z", 0), np.arange(3)).any()
    assert ledger.end_of(("z", 0)) == 0
    check_order(ledger, twin)


def check_order(ledger: Ledger, twin: Twin) -> None:
    """From run to run by `locate`, the whole stream is read in its order."""
    sequence = 0
    found: dict[Place, int] = {}
    while (run := ledger.locate(sequence)) is not None:
        found |= {(run.source, run.first_offset + i): run.first_sequence + i for i in range(run.count)}
        sequence = run.next_sequence
    assert list(found.items()) == sorted(twin.sequences.items(), key=lambda item: item[1])


@settings(max_examples=150, deadline=None)
@given(
    histories(),
    st.dictionaries(st.sampled_from(SOURCES), st.integers(0, 30)),
    st.integers(0, 3),
    st.sampled_from([1, 2, 3, PAGE_ROWS]),
)
def test_the_ledger_is_the_twin(
    blocks: list[list[tuple[int, list[PlainRun]]]],
    starts: dict[TopicPartition, int],
    dropped_after: int,
    page_rows: int,
) -> None:
    ledger, twin = Ledger(page_rows), Twin()
    for at, block in enumerate(blocks):
        rounds = [make_round(*one) for one in block]
        expected = [twin.append(*one) for one in block]
        if at % 2:
            answers = [ledger.append(round) for round in rounds]
        else:
            values = [b"nothing", *(write(round) for round in rounds), None]
            answers = [Refusal(code) for code in ledger.extend(parse_values(values)).tolist()[1:-1]]
        assert [answer.name for answer in answers] == expected
        if at == dropped_after:
            ledger.drop(starts)
            twin.drop(starts)
    check(ledger, twin)


def test_what_contradicts_is_passed_over_as_a_whole() -> None:
    a, b = ("a", 0), ("b", 0)
    ledger = Ledger()
    assert ledger.append(make_round(1, [("a", 0, 0, 5, 1, 2), ("b", 0, 0, 5, 1, 2)])) is Refusal.NONE
    before = ledger.standing
    assert before == Standing(11, {a: 5, b: 5})
    for sequence, plain, why in [
        (10, [("a", 0, 5, 1, 3, 3)], Refusal.SEQUENCES),
        (1, [("a", 0, 0, 5, 1, 2), ("b", 0, 0, 5, 1, 2)], Refusal.SEQUENCES),
        (11, [("a", 0, 5, 1, 3, 3), ("b", 0, 4, 1, 3, 3)], Refusal.OFFSETS),
        (11, [("a", 0, 5, 1, 3, 3), ("a", 0, 6, 1, 3, 3)], Refusal.TWICE),
        (11, [("a", 0, 2, 0, 3, 3), ("a", 0, 2, 1, 3, 3)], Refusal.TWICE),
    ]:
        assert ledger.append(make_round(sequence, plain)) is why
        assert ledger.standing == before
        assert ledger.log_position_of(a) == LogPosition(5, 1, 2)
    assert len(ledger) == 2


def test_what_a_restart_voids_has_no_sequence_until_it_is_given_one_again() -> None:
    """A log that was cut at 3: those below keep their sequences, those that come now get new ones."""
    a, b = ("a", 0), ("b", 0)
    ledger = Ledger()
    for taken in ({a: (0, LogPosition(5)), b: (0, LogPosition(2))}, {a: (5, LogPosition(9))}):
        give(ledger, taken)
    assert ledger.append(restart(ledger.standing, {a: LogPosition(3, 7, 7)})) is Refusal.NONE
    assert ledger.sequence_of(a, np.arange(9)).tolist() == [1, 2, 3, 0, 0, 0, 0, 0, 0]
    assert ledger.sequence_of(b, np.arange(2)).tolist() == [6, 7]
    assert ledger.log_position_of(a) == LogPosition(3, 7, 7)
    give(ledger, {a: (3, LogPosition(5)), b: (2, LogPosition(3))})
    assert ledger.sequence_of(a, np.arange(6)).tolist() == [1, 2, 3, 13, 14, 0]
    assert ledger.sequence_of(b, np.arange(3)).tolist() == [6, 7, 15]


def test_when_all_runs_are_gone_a_restart_still_says_where_to_go_on() -> None:
    """The index topic's retention took the runs; the last restart is younger."""
    ledger = Ledger()
    ledger.append(restart(Standing(100, {("a", 0): 40}), {("a", 0): LogPosition(40, 1, 2)}))
    assert ledger.standing == Standing(101, {("a", 0): 40})
    assert ledger.first_sequence == 101
    assert ledger.locate(1) is None


def test_what_no_record_can_hold_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="not to be written"):
        Ledger().append(make_round(1, [("a", 0, -1, 5, 1, 2)]))


def test_retention() -> None:
    a, b = ("a", 0), ("b", 0)
    ledger = Ledger()
    for end in (4, 8):
        give(ledger, {a: (end - 4, LogPosition(end)), b: (end - 4, LogPosition(end))})
    ledger.drop({a: 6, b: 1})
    assert ledger.first_sequence == 6
    found = ledger.locate(1)
    assert found is not None
    assert (found.source, found.first_offset, found.count, found.first_sequence) == (b, 1, 3, 6)
    assert ledger.positions_at(1) == {a: 6, b: 1}
    ledger.drop({a: 8, b: 8, ("z", 0): 5})
    assert (len(ledger), ledger.first_sequence, ledger.standing) == (0, 17, Standing(17, {a: 8, b: 8}))


def test_one_partition_extended_has_its_old_sequences() -> None:
    ledger = Ledger()
    ledger.append(extend(("t", 0), LogPosition(1000)))
    give(ledger, {("t", 0): (1000, LogPosition(1001)), ("t", 1): (0, LogPosition(2))})
    assert ledger.sequence_of(("t", 0), np.array([0, 1, 999, 1000, 1001])).tolist() == [1, 2, 1000, 1001, 0]
    assert ledger.sequence_of(("t", 1), np.arange(3)).tolist() == [1002, 1003, 0]


def test_runs_that_go_on_from_one_another_are_a_row() -> None:
    ledger = Ledger()
    for end in range(1, 100):
        give(ledger, {("t", end // 50): (0, LogPosition(end))})
    assert len(ledger) == 2


def test_a_copy_goes_its_own_way() -> None:
    ledger = Ledger()
    give(ledger, {("t", 0): (0, LogPosition(5)), ("t", 1): (0, LogPosition(5))})
    for copied in (copy.deepcopy(ledger), pickle.loads(pickle.dumps(ledger))):
        give(copied, {("t", 0): (5, LogPosition(9))})
        assert copied.sequence_of(("t", 0), np.arange(10)).tolist() == [1, 2, 3, 4, 5, 11, 12, 13, 14, 0]
    assert ledger.sequence_of(("t", 0), np.arange(10)).tolist() == [1, 2, 3, 4, 5, 0, 0, 0, 0, 0]


# ---- crashes


@st.composite
def lives(draw: st.DrawFn) -> list[list[tuple[dict[TopicPartition, int], bool]]]:
    """Sequencers one after the other, each until it crashes: how much each round finds new, and whether it is committed."""
    found = []
    for _ in range(draw(st.integers(1, 5))):
        rounds = []
        for _ in range(draw(st.integers(0, 5))):
            fresh = draw(st.dictionaries(st.sampled_from(SOURCES), st.integers(0, 4)))
            rounds.append((fresh, draw(st.integers(0, 4)) > 0))
        found.append(rounds)
    return found


@settings(max_examples=150, deadline=None)
@given(lives(), st.integers(0, 4))
def test_after_any_crash_sequences_are_the_same(
    lives: list[list[tuple[dict[TopicPartition, int], bool]]], back: int
) -> None:
    """Each life reads the ledger anew, and the logs from somewhat before its ends. Rounds are made ahead of their commits.

    A sequence that was seen in any life is the one that all later readings of the index topic give.
    """
    topic: list[bytes] = []
    ends = dict.fromkeys(SOURCES, 0)
    seen: dict[Place, int] = {}
    follower = Ledger()
    for rounds in lives:
        ledger = load(topic)
        standing = ledger.standing
        position = {source: max(0, ledger.end_of(source) - back) for source in SOURCES}
        lost = False
        for fresh, committed in rounds:
            for source, count in fresh.items():
                ends[source] += count
            taken = {source: (position[source], LogPosition(ends[source])) for source in fresh}
            position |= {source: ends[source] for source in fresh}
            round = allocate(standing, taken)
            if round is None:
                continue
            standing = standing.after(round)
            lost = lost or not committed  # what comes after a round that was lost is lost with it
            if not lost:
                topic.append(write(round))
                assert follower.append(round) is Refusal.NONE
                look_at_all(follower, seen)
    reread = load(topic)
    look_at_all(reread, seen)
    assert len(set(seen.values())) == len(seen) == reread.next_sequence - 1
    assert reread.standing.ends == follower.standing.ends
    for source in SOURCES:
        mine = [seen[source, offset] for offset in range(reread.end_of(source))]
        assert mine == sorted(mine)
    firsts = parse_values(topic).first_sequence.tolist()
    assert len(set(firsts)) == len(firsts)  # they are in the keys


def load(topic: Sequence[bytes]) -> Ledger:
    ledger = Ledger()
    assert not ledger.extend(parse_values(topic)).any()
    return ledger


def look_at_all(ledger: Ledger, seen: dict[Place, int]) -> None:
    for source in SOURCES:
        end = ledger.end_of(source)
        for offset, sequence in enumerate(ledger.sequence_of(source, np.arange(end)).tolist()):
            assert seen.setdefault((source, offset), sequence) == sequence > 0


# ---- a million


def lay_out_million(partitions: int, length: int) -> tuple[Bytes, Ints, Ints]:
    """A million runs, as a fetch of the whole index topic brings them; the same 500 rounds again and again."""
    plain = [[("flights", p, 0, length, 1, at) for p in range(partitions)] for at in range(500)]
    return lay_out([write(make_round(1, one)) for one in plain] * (1_000_000 // (partitions * 500)))


def load_million(values: tuple[Bytes, Ints, Ints], partitions: int, length: int) -> tuple[Ledger, float]:
    """The ledger and how long it took; where each round begins is entered on the way."""
    began = time.thread_time()
    rounds = parse(*values)
    count = rounds.flaws.size
    rounds.first_sequence[:] = np.arange(count) * partitions * length + 1
    rounds.first_offset[:] = np.repeat(np.arange(count) * length, partitions)
    ledger = Ledger()
    assert not ledger.extend(rounds).any()
    return ledger, time.thread_time() - began


@pytest.mark.slow
@pytest.mark.parametrize(("partitions", "length"), [(8, 50), (2, 3)])
def test_a_million_runs(partitions: int, length: int) -> None:
    values = lay_out_million(partitions, length)
    ledger, _ = load_million(values, partitions, length)  # compiles kernels
    seconds = min(load_million(values, partitions, length)[1] for _ in range(2))
    assert len(ledger) == 1_000_000
    assert seconds < 1, seconds
    assert ledger.nbytes < 5e6, ledger.nbytes
    source = ("flights", partitions // 2)
    offsets = np.arange(1_000_000)
    assert ledger.sequence_of(source, offsets).all()

    def ask() -> float:
        began = time.thread_time()
        answer = ledger.sequence_of(source, offsets)
        seconds = time.thread_time() - began
        assert answer[length] - answer[length - 1] == (partitions - 1) * length + 1
        return seconds / offsets.size * 1e9

    nanoseconds = min(ask() for _ in range(5))
    assert nanoseconds < (5 if length > 10 else 12), nanoseconds
    ledger.drop({("flights", p): 1_000_000 // partitions * length - 1_000 for p in range(partitions)})
    assert ledger.nbytes < 100_000, ledger.nbytes
