"""num_pending kept up to date against counting the log anew at every step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.index.pending.backlog import Ahead, Backlog
from overlay.index.skip.chunks import Chunks
from overlay.index.skip.config_fingerprint import find_config_fingerprint
from overlay.subject import Pattern
from tests.index.partitions import Record, forget, load, seal, stream

CONFIG = stream(subject={"key": True})
SUBJECTS = ("a.x", "a.y", "b", None)
"""None: a record that has no subject in the stream."""


class Log:
    """A partition that grows, record by record, and whose chunks are sealed behind it."""

    def __init__(self) -> None:
        self.chunks = Chunks(find_config_fingerprint(CONFIG))
        self.subjects: list[str | None] = []
        self.sealed = self.begun = 0

    def seal(self, offset: int, lost: str, is_full: bool, exact: bool) -> None:
        """Seal up to an offset; the chunk goes on growing unless it is full. `lost`: see forget; `hole`: it has no header."""
        if offset > self.sealed:
            held = range(self.begun, offset)
            records = [Record(i, subject) for i in held if (subject := self.subjects[i]) is not None]
            header = replace(seal(CONFIG, records, self.begun, offset, exact=exact), records=len(held))
            if lost != "hole":
                self.chunks.append(forget(header, lost))
            elif is_full:
                self.chunks.truncate(self.begun)
            self.sealed = offset
        if is_full:
            self.begun = self.sealed

    def find(self, patterns: list[Pattern], first: int, end: int) -> list[int]:
        return [
            offset
            for offset in range(first, end)
            if (subject := self.subjects[offset]) is not None and any(p.matches(subject) for p in patterns)
        ]


def list_gaps(backlog: Backlog, end: int) -> list[tuple[int, int]]:
    """The offsets below `end` that no chunk header counts: from, and to."""
    tail = (max(backlog._end, backlog._position), end)
    return [(first, after) for first, after in (*backlog._gaps, tail) if first < after]


steps = st.one_of(
    st.tuples(st.just("grow"), st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=12)),
    st.tuples(st.just("seal"), st.integers(1, 20), st.sampled_from(("", "", "counts", "hole")), st.booleans()),
    st.tuples(st.just("move"), st.integers(0, 25)),
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(steps, max_size=30),
    st.sampled_from([[Pattern("a.>")], [Pattern("a.x"), Pattern("b")], [Pattern(">")], [Pattern("none")]]),
    st.integers(0, 3),
)
def test_headers_and_scans_together_are_exact(script: list[tuple], patterns: list[Pattern], begin: int) -> None:  # type: ignore[type-arg]
    log, position = Log(), 0
    log.subjects += ["a.x"] * begin
    position = begin
    backlog = Backlog(patterns, position)
    for step in script:
        match step:
            case ("grow", subjects):
                log.subjects += subjects
            case ("seal", count, lost, is_full):
                log.seal(min(log.sealed + count, len(log.subjects)), lost, is_full, True)
            case ("move", count):
                target = min(position + count, len(log.subjects))
                backlog.advance(target, np.array(log.find(patterns, position, target), np.int64))
                position = target
        backlog.learn(log.chunks)
        found = backlog.pending_at(len(log.subjects))
        gaps = list_gaps(backlog, len(log.subjects))
        scanned = [log.find(patterns, first, after) for first, after in gaps]
        assert found.is_whole == (not gaps)
        assert found.is_exact
        assert found.count + sum(map(len, scanned)) == len(log.find(patterns, position, len(log.subjects)))
        ends = [bound for gap in gaps for bound in gap]
        assert ends == sorted(ends) and all(position <= bound for bound in ends)


def fill(count: int, exact: bool = True) -> Chunks:
    """Chunks of ten offsets with three records of `a`."""
    return load(
        CONFIG,
        [
            seal(CONFIG, [Record(10 * i + j, "a") for j in range(3)], 10 * i, 10 * i + 10, exact=exact)
            for i in range(count)
        ],
    )


def test_a_consumer_that_moves_scans_no_more_than_it_has_passed() -> None:
    backlog = Backlog([Pattern("a")], 12)
    backlog.learn(fill(5))
    assert backlog.pending_at(55) == Ahead(9, True, False)
    assert list_gaps(backlog, 55) == [(12, 20), (50, 55)]
    backlog.advance(25, np.array([12, 20, 21, 22]))
    assert (backlog.pending_at(50), list_gaps(backlog, 55)) == (Ahead(6, True, True), [(50, 55)])


def test_the_tail_has_nothing_to_add_up() -> None:
    """Only what comes behind the consumer's position is looked at; a million chunks before it are not."""
    chunks = fill(50)
    backlog = Backlog([Pattern("a")], 500)
    for _ in range(2):
        backlog.learn(chunks)
        assert backlog.pending_at(500) == Ahead(0, True, True)


def test_compaction_makes_an_estimate_until_it_is_passed() -> None:
    chunks = fill(3, exact=False)
    backlog = Backlog([Pattern("a")], 0)
    backlog.learn(chunks)
    assert backlog.pending_at(30) == Ahead(9, False, True)
    backlog.advance(20, np.array([0, 11]))
    assert backlog.pending_at(30).count == 7, "what was compacted away is still counted"
    backlog.advance(30, np.array([], np.int64))
    assert backlog.pending_at(30) == Ahead(0, True, True)


def test_the_last_chunk_grows() -> None:
    chunks = fill(2)
    backlog = Backlog([Pattern("a")], 5)
    backlog.learn(chunks)
    assert backlog.pending_at(20).count == 3
    backlog.advance(12, np.array([10, 11]))
    chunks.append(seal(CONFIG, [Record(10 + i, "a") for i in range(9)], 10, 30))
    backlog.learn(chunks)
    assert backlog.pending_at(30) == Ahead(7, True, True)
    chunks.append(forget(seal(CONFIG, [Record(10 + i, "a") for i in range(9)], 10, 40), "counts"))
    backlog.learn(chunks)
    assert (backlog.pending_at(40), list_gaps(backlog, 40)) == (Ahead(0, True, False), [(12, 40)])


def test_a_log_that_was_cut() -> None:
    chunks = fill(5)
    backlog = Backlog([Pattern("a")], 0)
    backlog.learn(chunks)
    assert backlog.pending_at(50).count == 15
    chunks.truncate(30)
    backlog.learn(chunks)
    assert backlog.pending_at(30) == Ahead(9, True, True)


def test_chunks_that_were_merged() -> None:
    chunks = fill(5)
    backlog = Backlog([Pattern("a")], 0)
    backlog.learn(chunks)
    chunks.append(seal(CONFIG, [Record(30 + i, "a") for i in range(7)], 30, 60))
    backlog.learn(chunks)
    assert backlog.pending_at(60).count == 9 + 7


def test_the_rest_of_a_chunk_is_left_out() -> None:
    """No header tells how many were in it; from its end on all is known again."""
    chunks = fill(3)
    backlog = Backlog([Pattern("a")], 0)
    backlog.learn(chunks)
    backlog.advance(2, np.array([0, 1]))
    backlog.skip(chunks, 10, was_read=False)
    assert backlog.pending_at(30) == Ahead(6, True, True)
