from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.index.skip.chunks import Chunks
from overlay.index.skip.plan import BRIDGE, OPEN_END, SPAN_BYTES, Saving, Span, plan
from overlay.index.skip.probes import Part
from overlay.index.skip.prune import Answers
from tests.index.partitions import load, seal, stream

MIB = 1 << 20
SUBJECT, FILTER, NONE = Part.SUBJECT, Part.FILTER, Part(0)
BOTH = SUBJECT | FILTER
CONFIG = stream()


def make(text: str, size: int = MIB, start: int = 0) -> tuple[Answers, Chunks]:
    """Chunks of ten offsets: N no, M maybe by the filter, S by the subject, A all; a blank is a hole."""
    rows = [(row * 10 + start, letter) for row, letter in enumerate(text) if letter != " "]
    headers = [seal(CONFIG, [], first, first + 10, bytes=size) for first, _ in rows]
    parts = {"N": SUBJECT, "M": FILTER, "S": SUBJECT, "A": NONE}
    levels = np.array(["NMA".index(letter.replace("S", "M")) for _, letter in rows], np.int8)
    residual = np.array([parts[letter] for _, letter in rows], np.uint8)
    return Answers(levels, residual, BOTH), load(CONFIG, headers)


def route(text: str, start: int = 0, stop: int | None = None, size: int = MIB) -> list[tuple[int, int, Part]]:
    found = plan(*make(text, size), start, len(text) * 10 if stop is None else stop)
    return [(span.first_offset, span.next_offset, span.residual) for span in found]


def test_neighbours_become_one_span() -> None:
    assert route("NMMNNAAAN") == [(10, 30, FILTER), (50, 80, NONE)]


def test_neighbours_that_are_tested_differently_touch() -> None:
    assert route("NMMAANSS") == [(10, 30, FILTER), (30, 50, NONE), (60, 80, SUBJECT)]


def test_small_neighbours_are_tested_together() -> None:
    """A run that costs less than a request to read is not worth a change."""
    small = BRIDGE // 4
    assert route("MA" + "N" * 100, size=small) == [(0, 20, FILTER)]
    assert route("MS" + "N" * 100, size=small) == [(0, 20, BOTH)]


def test_a_large_run_keeps_its_residual_beside_a_small_one() -> None:
    """One hole, or one chunk in doubt, must not have a large run tested."""
    text = "AAAA AAAA" + "N" * 100
    assert route(text) == [(0, 40, NONE), (40, 50, BOTH), (50, 90, NONE)]


def test_gaps_are_bridged_where_a_request_costs_more() -> None:
    """And what comes along is tested for what refused it."""
    small = BRIDGE // 3
    assert route("MNNM" + "N" * 50 + "M", size=small) == [(0, 40, BOTH), (540, 550, FILTER)]
    assert route("MNNNNM" + "N" * 50 + "M", size=small) == [(0, 10, FILTER), (50, 60, FILTER), (560, 570, FILTER)]


def test_no_gap_is_bridged_in_an_exact_route() -> None:
    answers, chunks = make("MNMNA", size=1)
    assert [(span.first_offset, span.next_offset) for span in plan(answers, chunks, 0, 50, exactly=True)] == [
        (0, 10),
        (20, 30),
        (40, 50),
    ]


def test_skipping_gets_out_of_the_way() -> None:
    """One gap in fifty chunks saves less than WORTH: one span, whatever it holds."""
    text = "M" * 25 + "N" + "M" * 24
    found = plan(*make(text), 0, 500)
    assert list(found) == [Span(0, 250, FILTER), Span(250, 260, SUBJECT), Span(260, 500, FILTER)]
    assert not found.skips
    assert found.saving == Saving(50, 50 * MIB, 0, 0, 0)
    assert route("M" * 500) == [(0, 5000, FILTER)]


def test_gaps_that_cost_their_requests_are_no_saving() -> None:
    """Each second chunk is left out, but a request costs nearly as much as a chunk: 60 % of the bytes, 5 % of the time."""
    size = BRIDGE + BRIDGE // 20
    found = plan(*make("MN" * 200, size), 0, 4000)
    assert not found.skips
    assert found.saving.skipped_bytes == size  # the one behind the last that is read


def test_what_has_no_header_is_read_and_tested() -> None:
    answers, chunks = make("NN NN", start=100)
    assert list(plan(answers, chunks)) == [Span(0, 100, BOTH), Span(120, 130, BOTH), Span(150, OPEN_END, BOTH)]
    assert list(plan(answers, chunks, 105, 125)) == [Span(120, 125, BOTH)]
    assert list(plan(answers, chunks, 160, 170)) == [Span(160, 170, BOTH)]


def test_no_chunks() -> None:
    answers, chunks = make("")
    assert list(plan(answers, chunks)) == [Span(0, OPEN_END, BOTH)]
    assert list(plan(answers, chunks, 5, 5)) == []


def test_bounds_cut_through_chunks() -> None:
    assert route("MMNNM", 5, 45) == [(5, 20, FILTER), (40, 45, FILTER)]


def test_spans_have_an_end() -> None:
    found = plan(*make("M" * 10 + "N" * 90, SPAN_BYTES // 4), 0, 1000)
    assert [(span.first_offset, span.next_offset) for span in found] == [(0, 40), (40, 80), (80, 100)]


def test_a_reader_asks_for_what_comes_next() -> None:
    found = plan(*make("NMMNNA"), 0, 60)
    assert found.next(0) == found.next(10) == Span(10, 30, FILTER)
    assert found.next(12) == Span(12, 30, FILTER)
    assert found.next(30) == Span(50, 60, NONE)
    assert found.next(60) is None
    assert [found.next_needed(offset) for offset in (0, 15, 30, 55, 60)] == [10, 15, 50, 55, OPEN_END]


def test_figures_of_a_route() -> None:
    found = plan(*make("NMNNMN"), 0, 60)
    assert found.skips
    assert found.saving == Saving(2, 2 * MIB, 4, 4 * MIB, 1)


def test_a_route_without_end_goes_on_behind_the_last_chunk() -> None:
    answers, chunks = make("MN")
    assert plan(answers, chunks).next(25) == Span(25, OPEN_END, BOTH)


@given(
    st.text("NMAS ", max_size=30),
    st.integers(0, 320),
    st.integers(0, 320),
    st.sampled_from((1, BRIDGE // 3, MIB, 30 * MIB)),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_nothing_is_left_out_that_may_match(text: str, start: int, more: int, size: int, exactly: bool) -> None:
    answers, chunks = make(text, size)
    stop = start + more
    found = plan(answers, chunks, start, stop, exactly=exactly)
    residual: dict[int, Part] = {}
    last = start
    for span in found:
        assert last <= span.first_offset < span.next_offset <= stop
        last = span.next_offset
        residual |= dict.fromkeys(range(span.first_offset, span.next_offset), span.residual)
    needed = {"N": SUBJECT, "M": FILTER, "S": SUBJECT, "A": NONE, " ": BOTH}
    for offset in range(start, stop):
        letter = text[offset // 10] if offset // 10 < len(text) else " "
        if letter == "N":
            assert not exactly or offset not in residual
            assert needed[letter] in residual.get(offset, SUBJECT)
        else:
            assert needed[letter] in residual[offset]
