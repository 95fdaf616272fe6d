"""Records of several partitions in the order of their stream sequences: what tasks note of it, and what a writer merges."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark.job.order import Merging, find_places
from spark.job.runs import Runs, merge_runs

TURNS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=12)
"""A ledger: partitions in turns, each with so many records that get the next sequences."""


@given(TURNS, st.data())
def test_ranks_and_what_is_passed_follow_the_sequences(turns: list[tuple[int, int]], data: st.DataObject) -> None:
    """Whatever the cut into tasks and slices is, and whichever of the wanted records a filter accepts."""
    logs: list[list[int]] = [[], [], []]
    sequence = 1
    for partition, count in turns:
        logs[partition] += range(sequence, sequence + count)
        sequence += count
    accepted = set(data.draw(st.sets(st.integers(1, sequence - 1))))
    wanted = accepted | data.draw(st.sets(st.integers(1, sequence - 1)))
    tasks, own = dict[int, Runs](), dict[int, list[tuple[int, int, int]]]()
    for log in logs:
        cut = data.draw(st.integers(0, len(log)))
        for log_part, first in ((log[:cut], 0), (log[cut:], cut)):
            number = len(tasks)
            runs, own[number] = tasks.setdefault(number, Runs()), []
            half = data.draw(st.integers(0, len(log_part)))
            passed = rank = 0
            runs.begin()
            for piece, offset in ((log_part[:half], first), (log_part[half:], first + half)):
                mine = [(each, at) for at, each in enumerate(piece, offset) if each in wanted]
                sequences, offsets = (np.array([row[i] for row in mine], np.int64) for i in (0, 1))
                hits = [at for at, row in enumerate(mine) if row[0] in accepted]
                runs.add(find_places(sequences, 0) if mine else sequences, offsets, np.array(hits, np.int64))
                for each, _ in mine:
                    passed += 1
                    if each in accepted:
                        own[number].append((each, rank, passed))
                        rank += 1
    merges = merge_runs({number: runs.to_bytes() for number, runs in tasks.items()})
    ranks = {each: rank for rank, each in enumerate(sorted(accepted))}
    before = {each: at for at, each in enumerate(sorted(wanted), 1)}
    found = [number for number, rows in own.items() for _ in rows]
    for number, rows in own.items():
        for each, rank, passed in rows:
            if not merges:
                continue
            place = merges[number].place(np.array([rank]), np.array([passed]))
            assert [int(part[0]) for part in place] == [ranks[each], before[each]]
    if not merges:
        assert [each for number in sorted(set(found)) for each, *_ in own[number]] == sorted(accepted)


@given(st.lists(st.sets(st.integers(1, 60), min_size=1, max_size=9), min_size=1, max_size=9))
def test_a_writer_takes_each_record_once_and_in_order(blocks: list[set[int]]) -> None:
    """Blocks that overlap are taken from in turns; one is left as soon as nothing of it can come."""
    merging, taken = Merging[int](), list[int]()
    ordered = sorted(sorted(block) for block in blocks)
    for at, block in enumerate(ordered):
        places = np.array(block, np.int64)
        parts = merging.add(at, places)
        taken += [ordered[part.key][row] for part in parts for row in part.rows.tolist()]
        assert not taken or taken[-1] < block[0]
    taken += [ordered[part.key][row] for part in merging.flush() for row in part.rows.tolist()]
    assert taken == sorted(each for block in blocks for each in block)


def test_a_record_without_a_sequence_stays_behind_the_one_before_it() -> None:
    assert find_places(np.array([0, 4, 0, 6]), 2).tolist() == [2, 4, 4, 6]
