"""The searches for last and first records, against a look at all of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.index.pending import last_per_subject
from overlay.index.pending.last_per_subject import LastPerSubject, find_since, find_tail
from overlay.index.skip.chunk_header import Header
from overlay.index.skip.chunks import Chunks
from overlay.subject import Pattern
from tests.index.partitions import Record, forget, load, seal, stream

CONFIG = stream(subject={"key": True})
SUBJECTS = ("a.x", "a.y", "b.x", "b.y", "c")
SIZE = 10
PATTERNS = (
    ["a.>"], ["a.x"], ["a.x", "c"], ["*.y", "c"], [">"], ["none"], ["none", "b.x"],
    [f"none.{i}" for i in range(70)] + ["a.y"],
)  # fmt: skip

Made = list[tuple[list[str], str]]

KINDS = ("", "", "", "counts", "hole", "bloom", "gone")


def make_chunks(kinds: tuple[str, ...] = KINDS) -> st.SearchStrategy[Made]:
    inside = st.lists(st.sampled_from(SUBJECTS), max_size=SIZE)
    return st.lists(st.tuples(inside, st.sampled_from(kinds)), max_size=10)


def make(made: Made, bytes: int = 1) -> tuple[Chunks, dict[int, str]]:
    """Chunks of ten offsets and the records of the log. `gone`: the last record that the header names was compacted away;
    `refused`: a filter does not let it through."""
    records, headers = dict[int, str](), list[Header]()
    for row, (subjects, kind) in enumerate(made):
        inside = {SIZE * row + i: subject for i, subject in enumerate(subjects)}
        sealed = [Record(offset, subject) for offset, subject in inside.items()]
        header = seal(CONFIG, sealed, SIZE * row, SIZE * row + SIZE, bytes=bytes, exact=kind != "gone")
        lost = [forget(header, "counts")] if kind in ("counts", "bloom") else [header]
        headers += [] if kind == "hole" else [forget(lost[0], "bloom")] if kind == "bloom" else lost
        if kind in ("gone", "refused") and inside:
            inside.popitem()
        records |= inside
    return load(CONFIG, headers), records


def search(
    found: LastPerSubject, records: dict[int, str], patterns: list[Pattern], first: int, end: int, most: int
) -> tuple[list[int], list[int]]:
    """Offsets of the last records, and those that were read, in their order."""
    read: list[int] = []
    while spans := found.next(most):
        for span in spans:
            assert first <= span.first_offset < span.next_offset <= end
            offsets = range(span.first_offset, span.next_offset)
            read += offsets
            passing = [o for o in offsets if o in records and any(p.matches(records[o]) for p in patterns)]
            found.take((records[offset], offset) for offset in passing)
    return found.offsets.tolist(), read


@settings(max_examples=400, deadline=None)
@given(
    make_chunks((*KINDS, "refused")),
    st.integers(0, 100),
    st.integers(0, 100),
    st.sampled_from(PATTERNS),
    st.sampled_from((1, 3 << 20, 1 << 40)),
    st.sampled_from((1, 1 << 20)),
)
def test_the_last_of_each_subject(made: Made, first: int, more: int, texts: list[str], most: int, bytes: int) -> None:
    chunks, records = make(made, bytes)
    patterns, end = [Pattern(text) for text in texts], first + more
    inside = ((offset, records[offset]) for offset in sorted(records) if first <= offset < end)
    wanted = {subject: offset for offset, subject in inside if any(pattern.matches(subject) for pattern in patterns)}
    found, _ = search(LastPerSubject(chunks, patterns, first, end), records, patterns, first, end, most)
    assert found == sorted(wanted.values())


def search_exactly(made: Made, *texts: str, first: int = 0, end: int | None = None, size: int = 1 << 20) -> list[int]:
    """The chunks that are read, in their order; chunks so large that nothing is read over."""
    chunks, records = make(made, size)
    patterns, end = [Pattern(text) for text in texts], SIZE * len(made) if end is None else end
    _, read = search(LastPerSubject(chunks, patterns, first, end), records, patterns, first, end, 1)
    return list(dict.fromkeys(offset // SIZE for offset in read))


PLAIN: Made = [(["a.x", "c"], ""), (["a.y"], ""), (["a.x"], ""), (["b.x"], ""), (["a.y", "b.x"], ""), (["c"], "")]


def test_it_reads_only_chunks_that_name_what_was_not_found() -> None:
    assert search_exactly(PLAIN, ">") == [5, 4, 2]
    assert search_exactly(PLAIN, "a.*") == [4, 2]
    assert search_exactly(PLAIN, "c") == [5]
    assert search_exactly(PLAIN, "none") == []


def test_what_a_range_cuts_may_have_lost_what_it_names() -> None:
    assert search_exactly(PLAIN, "c", end=50) == [0]
    assert search_exactly([(["c"], ""), (["b.x", "c"], ""), (["b.x"], "")], "c", end=11) == [1, 0]


def test_what_a_header_names_in_vain_does_not_hide_an_older_chunk() -> None:
    """A round expects `c` in the newest chunk and finds it in the oldest; it is in the one between them too."""
    some: Made = [(["c", "a.x"], ""), (["c"], ""), (["c"], "refused")]
    chunks, records = make(some, 1 << 20)
    patterns = [Pattern("c"), Pattern("a.x")]
    assert search(LastPerSubject(chunks, patterns, 0, 30), records, patterns, 0, 30, 1 << 40)[0] == [1, 10]


def test_subjects_in_full_are_looked_for_until_they_are_found() -> None:
    """Chunks without counts are asked by their Bloom filters; those that have none, and holes, are read."""
    some: Made = [(["a.x"], "counts"), (["c"], "bloom"), (["a.x"], "counts"), (["b.x"], "counts"), (["b.x"], "hole")]
    assert search_exactly(some, "a.x") == [4, 2]
    assert search_exactly(some, "a.y") == [4, 1]
    assert search_exactly(some, "a.*") == [4, 2, 1, 0]


def test_a_log_without_an_index_is_read_from_its_end() -> None:
    empty, size = load(CONFIG, []), 10 * last_per_subject.NEWEST
    found = LastPerSubject(empty, [Pattern("a.x")], 0, size)
    ((span,), (first, end)) = found.next(1), (size - last_per_subject.NEWEST, size)
    assert (span.first_offset, span.next_offset) == (first, end)
    found.take([("a.x", first + 5)])
    assert found.next() == ()
    every = LastPerSubject(empty, [Pattern("a.*")], 0, size)
    every.take([("a.x", size - 1)])
    assert sum(span.next_offset - span.first_offset for _ in range(5) for span in every.next()) == size


def test_small_gaps_are_read_over() -> None:
    chunks, _ = make(PLAIN, 100)
    (span,) = LastPerSubject(chunks, [Pattern(">")], 0, 60).next()
    assert (span.first_offset, span.next_offset) == (20, 60)


def test_chunks_that_do_not_matter_are_left_out() -> None:
    chunks, records = make(PLAIN, 1 << 20)
    may_hold = np.array([True, True, True, True, False, False])
    found = LastPerSubject(chunks, [Pattern(">")], 0, 60, may_hold)
    offsets, read = search(found, records, [Pattern(">")], 0, 60, 1)
    assert {offset // SIZE for offset in read} == {3, 2, 1, 0}
    assert offsets == [1, 10, 20, 30]


@settings(max_examples=200, deadline=None)
@given(make_chunks(), st.integers(0, 100), st.integers(0, 100), st.integers(0, 12), st.sampled_from(PATTERNS))
def test_the_tail_that_holds_enough(made: Made, first: int, more: int, count: int, texts: list[str]) -> None:
    chunks, records = make(made)
    patterns, end = [Pattern(text) for text in texts], first + more
    start = find_tail(chunks, patterns, first, end, count)
    matching = [o for o, subject in records.items() if any(p.matches(subject) for p in patterns) and o < end]
    assert start >= first
    assert start == first or sum(offset >= start for offset in matching) >= count


def test_the_tail_is_as_short_as_counts_can_tell() -> None:
    chunks, _ = make(PLAIN)
    assert [find_tail(chunks, [Pattern("a.>")], 0, 60, count) for count in (1, 2, 3, 4, 5)] == [40, 20, 10, 0, 0]
    assert find_tail(chunks, [Pattern(">")], 0, 60, 3) == 40
    assert find_tail(chunks, [Pattern(">")], 5, 60, 100) == 5
    gone, _ = make([(["c", "c"], ""), (["c", "c"], "gone")])
    assert find_tail(gone, [Pattern("c")], 0, 20, 2) == 0, "a chunk that is not exact may have less than it says"


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(-1, 40), max_size=5), st.booleans()), max_size=8),
    st.integers(0, 90),
    st.integers(0, 90),
    st.integers(0, 40),
)
def test_the_first_record_since(made: list[tuple[list[int], bool]], first: int, more: int, since: int) -> None:
    records = {SIZE * row + i: time for row, (times, _) in enumerate(made) for i, time in enumerate(times)}
    headers = []
    for row, (times, is_there) in enumerate(made):
        inside = [Record(SIZE * row + i, "a.x", time) for i, time in enumerate(times)]
        headers += [seal(CONFIG, inside, SIZE * row, SIZE * row + SIZE)] if is_there else []
    end = first + more
    spans = list(find_since(load(CONFIG, headers), since, first, end))
    read = [offset for span in spans for offset in range(span.first_offset, span.next_offset)]
    assert read == sorted(set(read)) and all(first <= offset < end for offset in read)
    wanted = next((offset for offset in range(first, end) if records.get(offset, -1) >= since), None)
    assert next((offset for offset in read if records.get(offset, -1) >= since), None) == wanted


def test_early_chunks_are_left_out() -> None:
    headers = [seal(CONFIG, [Record(SIZE * i, "a.x", 10 * i)], SIZE * i, SIZE * i + SIZE) for i in range(5)]
    spans = find_since(load(CONFIG, headers), 30, 0, 55)
    assert [(span.first_offset, span.next_offset) for span in spans] == [(30, 55)]
