from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.index.pending.by_subject import SubjectTally, count_by_subject
from overlay.index.skip.chunk_header import Header
from overlay.index.skip.derive import derive
from overlay.index.skip.probes import Part
from overlay.subject import Pattern
from tests.index.partitions import Question, Record, forget, load, say, seal, sql, stream

CONFIG = stream(subject={"key": True}, properties={"n": "long"}, index={"zones": ["n"], "terms": ["n"]})
ALL = (Pattern(">"),)


def chunk(first: int, *subjects: str, lost: str = "", exact: bool = True, n: int = 0) -> Header:
    """Ten offsets, every record with the same `n` and its offset as its time; `lost`: what the header does not know."""
    records = [Record(first + i, subject, first + i, say(n=n)) for i, subject in enumerate(subjects)]
    return forget(seal(CONFIG, records, first, first + 10, exact=exact), lost)


def count(headers: list[Header], question: Question, first: int, end: int, *, compacted: bool = False) -> SubjectTally:
    patterns = question.patterns or ALL
    conditions = derive(CONFIG, patterns, None, question.filter, now=0, since=question.since, until=question.until)
    return count_by_subject(conditions, patterns, load(CONFIG, headers), first, end, compacted=compacted)


def test_headers_answer_for_each_subject() -> None:
    headers = [chunk(0, "a.x", "b", "a.x"), chunk(10, "a.x", "c")]
    assert count(headers, Question(), 0, 20) == SubjectTally({"a.x": 3, "b": 1, "c": 1}, (), 2, 0, 0)
    narrow = Question(patterns=(Pattern("a.>"), Pattern("c")))
    assert count(headers, narrow, 0, 20) == SubjectTally({"a.x": 3, "c": 1}, (), 2, 0, 0)


def test_what_a_bound_cuts_is_read_unless_nothing_of_it_can_pass() -> None:
    headers = [chunk(0, "a.x"), chunk(10, "a.x", "b"), chunk(20, "b")]
    assert count(headers, Question(), 5, 25) == SubjectTally({"a.x": 1, "b": 1}, ((5, 10), (20, 25)), 1, 2, 0)
    narrow = Question(patterns=(Pattern("a.>"),))
    assert count(headers, narrow, 5, 25) == SubjectTally({"a.x": 1}, ((5, 10),), 2, 1, 0)


def test_chunks_of_many_subjects_are_read_unless_their_terms_refuse() -> None:
    headers = [chunk(0, "a.x", lost="counts"), chunk(10, "b", lost="counts"), chunk(20, "b")]
    assert count(headers, Question(patterns=(Pattern("b"),)), 0, 30) == SubjectTally({"b": 1}, ((10, 20),), 2, 1, 0)
    assert count(headers, Question(), 0, 30) == SubjectTally({"b": 1}, ((0, 20),), 1, 2, 0)


def test_offsets_without_a_header_are_read() -> None:
    assert count([chunk(10, "b")], Question(), 0, 35) == SubjectTally({"b": 1}, ((0, 10), (20, 35)), 1, 0, 25)
    assert count([], Question(), 3, 3) == SubjectTally({}, (), 0, 0, 0)


def test_a_filter_is_answered_where_it_holds_for_all_or_for_none() -> None:
    headers = [chunk(0, "a.x", n=1), chunk(10, "a.x", "b", n=5), chunk(20, "b", n=7, lost="zones")]
    over = Question(filter=sql("n > 3", CONFIG))
    assert count(headers, over, 0, 30) == SubjectTally({"a.x": 1, "b": 1}, ((20, 30),), 2, 1, 0)
    late = Question(since=11)
    assert count(headers[:2], late, 0, 20) == SubjectTally({}, ((10, 20),), 1, 1, 0)


def test_compaction_leaves_refusals_only() -> None:
    headers = [chunk(0, "a.x"), chunk(10, "b")]
    narrow = Question(patterns=(Pattern("b"),))
    assert count(headers, narrow, 0, 20, compacted=True) == SubjectTally({}, ((10, 20),), 1, 1, 0)
    once = [chunk(0, "a.x", exact=False), chunk(10, "b", exact=False)]
    assert count(once, narrow, 0, 20) == SubjectTally({}, ((10, 20),), 1, 1, 0)


PATTERNS: list[tuple[Pattern, ...]] = [(), (Pattern("a.>"),), (Pattern("b"), Pattern("*.y")), (Pattern("nowhere"),)]
FILTERS = (None, "n > 3", "n = 5", "n IS NULL", "NOT n <= 3 OR n = 1", "n % 2 = 0")


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_counted_and_read_are_what_a_full_scan_finds(data: st.DataObject) -> None:
    records: list[Record] = []
    headers: list[Header] = []
    for row in range(data.draw(st.integers(0, 7))):
        first = 10 * row
        subjects = data.draw(st.lists(st.sampled_from(("a.x", "a.y", "b", "c.y", None)), max_size=10))
        inside = [
            Record(
                first + i,
                subject,
                data.draw(st.integers(first, first + 15)),
                say(n=data.draw(st.sampled_from((row, row + 1, None)))),
            )
            for i, subject in enumerate(subjects)
        ]
        records += inside
        kind = data.draw(st.sampled_from(("", "", "", "counts", "zones", "bloom", "inexact", "hole")))
        if kind != "hole":
            headers.append(forget(seal(CONFIG, inside, first, first + 10, exact=kind != "inexact"), kind))
    text = data.draw(st.sampled_from(FILTERS))
    bound: Any = st.one_of(st.none(), st.integers(0, 80))
    question = Question(
        patterns=data.draw(st.sampled_from(PATTERNS)),
        filter=None if text is None else sql(text, CONFIG),
        since=data.draw(bound),
        until=data.draw(bound),
    )
    first = data.draw(st.integers(0, 40))
    end = first + data.draw(st.integers(0, 60))
    compacted = data.draw(st.booleans())
    tally = count(headers, question, first, end, compacted=compacted)
    passing = [
        record
        for record in records
        if record.subject is not None
        and first <= record.offset < end
        and all(question.passes(part, record, CONFIG, 0) for part in Part)
    ]
    to_read = [record for record in passing if any(low <= record.offset < after for low, after in tally.to_read)]
    counted = Counter(tally.counts) + Counter(record.subject for record in to_read)
    assert counted == Counter(record.subject for record in passing)
    assert not (compacted and tally.counts)
    ends = [bound for pair in tally.to_read for bound in pair]
    assert ends == sorted(set(ends)) and all(first <= bound <= end for bound in ends)
    touched = [header for header in headers if header.first_offset < end and header.next_offset > first]
    assert tally.answered + tally.unanswered == len(touched)
