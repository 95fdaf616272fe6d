from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.index.pending.estimate import Pending, count_pending, simplify
from overlay.index.skip.chunk_header import Header
from overlay.index.skip.plan import Span
from overlay.index.skip.probes import Part
from overlay.subject import Pattern
from tests.index.partitions import Record, forget, load, seal, stream

CONFIG = stream(subject={"key": True})
A, B = Pattern("a.>"), Pattern("b")


def chunk(first: int, *subjects: str, lost: str = "", exact: bool = True) -> Header:
    """Ten offsets; `lost`: what the header does not know."""
    records = [Record(first + i, subject) for i, subject in enumerate(subjects)]
    return forget(seal(CONFIG, records, first, first + 10, exact=exact), lost)


def test_headers_count() -> None:
    chunks = load(CONFIG, [chunk(0, "a.x", "b"), chunk(10, "a.x", "a.y", "c"), chunk(20, "c")])
    assert count_pending(chunks, [A], 0, 30) == Pending(3, True, ())
    assert count_pending(chunks, [A, B], 10, 30) == Pending(2, True, ())


def test_what_the_position_cuts_is_scanned() -> None:
    chunks = load(CONFIG, [chunk(0, "a.x", "b"), chunk(10, "a.x"), chunk(20, "a.x", "a.y")])
    assert count_pending(chunks, [A], 5, 25) == Pending(
        1, True, (Span(5, 10, Part.SUBJECT), Span(20, 25, Part.SUBJECT))
    )


def test_chunks_that_are_cut_but_refuse_are_not_scanned() -> None:
    chunks = load(CONFIG, [chunk(0, "b"), chunk(10, "a.x")])
    assert count_pending(chunks, [A], 5, 20) == Pending(1, True, ())


def test_chunks_without_counts_are_scanned_unless_their_terms_refuse() -> None:
    chunks = load(CONFIG, [chunk(0, "a.x", lost="counts"), chunk(10, "b", lost="counts")])
    assert count_pending(chunks, [A], 0, 20) == Pending(0, True, (Span(0, 10, Part.SUBJECT),))


def test_everything_is_counted_in_chunks_of_any_number_of_subjects() -> None:
    chunks = load(CONFIG, [chunk(0, "a.x", "b", lost="counts"), chunk(10, "b", lost="counts"), chunk(20, "c")])
    assert count_pending(chunks, [Pattern(">")], 0, 30) == Pending(4, True, ())
    assert count_pending(chunks, [A, Pattern(">")], 5, 30) == Pending(2, True, (Span(5, 10, Part.SUBJECT),))


def test_patterns_that_take_in_all_that_a_stream_has() -> None:
    ours = stream(subject={"template": "a.{header:to}"})
    assert simplify(ours, [Pattern("a.*"), B]) == simplify(ours, []) == (Pattern(">"),)
    assert simplify(CONFIG, [A, B]) == (A, B)


def test_what_has_no_header_is_scanned() -> None:
    chunks = load(CONFIG, [chunk(10, "a.x")])
    scanned = (Span(0, 10, Part.SUBJECT), Span(20, 35, Part.SUBJECT))
    assert count_pending(chunks, [A], 0, 35) == Pending(1, True, scanned)


def test_missing_offsets_make_an_estimate() -> None:
    chunks = load(CONFIG, [chunk(0, "a.x", exact=False), chunk(10, "b", exact=False)])
    assert count_pending(chunks, [A], 0, 20) == Pending(1, False, ())
    assert count_pending(chunks, [B], 10, 20) == Pending(1, False, ())
    assert count_pending(chunks, [Pattern("c")], 0, 20) == Pending(0, True, ())


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(("a.x", "a.y", "b", "c")), max_size=10),
            st.sampled_from(("", "", "counts", "hole")),
        ),
        max_size=8,
    ),
    st.integers(0, 90),
    st.integers(0, 90),
    st.sampled_from([[A], [B], [A, B], [Pattern(">")]]),
)
@settings(max_examples=100, deadline=None)
def test_counted_and_scanned_are_all(
    made: list[tuple[list[str], str]], first: int, more: int, patterns: list[Pattern]
) -> None:
    end = first + more
    subjects = {10 * row + i: subject for row, (inside, _) in enumerate(made) for i, subject in enumerate(inside)}
    wanted = [offset for offset, subject in subjects.items() if any(pattern.matches(subject) for pattern in patterns)]
    headers = [chunk(10 * row, *inside, lost=kind) for row, (inside, kind) in enumerate(made) if kind != "hole"]
    pending = count_pending(load(CONFIG, headers), patterns, first, end)
    assert pending.is_exact
    scanned = sum(span.first_offset <= offset < span.next_offset for offset in wanted for span in pending.to_scan)
    assert pending.count + scanned == sum(first <= offset < end for offset in wanted)
