"""overlay/match: who wants which records, against the oracle's regular expressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.match import Addressed, Addressing, Audience
from overlay.match.audience import Dealt, Piles
from overlay.subject import Pattern, SubjectRule
from tests.oracle.batches import Record
from tests.oracle.push import wants
from tests.oracle.subjects import EVERY_PATTERN, is_subject, matches
from tests.support.batches import build

STREAM = ("a.>", "b.*", "x")
tokens = st.sampled_from(["a", "b", "x", "a.b", "b.b", "a.b.x", "x.a", "a..b", "", "c", "$JS.x"])
filters = st.lists(st.lists(st.sampled_from(EVERY_PATTERN), max_size=4, unique=True), max_size=6)


def make_slices(
    addressing: Addressing, subjects: Sequence[Sequence[str | None]], partition: int = 0
) -> list[Addressed]:
    """One slice for each list of subjects (None: no key); what a slice holds is copied, as the next one reuses it."""
    slices, offset = [], 0
    for group in subjects:
        records = [Record(offset + i, 0, None if s is None else s.encode(), b"") for i, s in enumerate(group)]
        if not records:
            continue
        data = np.frombuffer(build(records, base_offset=offset), np.uint8)
        offset += len(records)
        for piece in addressing.read("topic", partition, data, 0):
            assert isinstance(piece, Addressed)
            slices.append(replace(piece, codes=piece.codes.copy()))
    return slices


def check_piles(dealt: Dealt, lists: Sequence[Sequence[int]], cut: int) -> None:
    """Three piles: of the first `cut` members, of none, and of the rest. `lists`: the rows of each member."""
    piles = [range(cut), range(0), range(cut, len(lists))]
    for number, members in enumerate(piles):
        part = slice(dealt.bounds[number], dealt.bounds[number + 1])
        found = list(zip(dealt.rows[part], dealt.members[part], dealt.places[part], strict=True))
        want = [(row, member, place) for member in members for place, row in enumerate(lists[member])]
        assert sorted(found) == sorted(want)
        assert [row for row, _, _ in found] == sorted(row for row, _, _ in found), "in the order of the log"
    assert dealt.counts.tolist() == list(map(len, lists))
    for member, rows in enumerate(lists):
        if rows:
            assert (dealt.first[member], dealt.last[member]) == (rows[0], rows[-1])


@given(groups=st.lists(st.lists(st.none() | tokens, max_size=12), max_size=4), wanted=filters, cut=st.integers(0, 6))
@settings(max_examples=200, deadline=None)
def test_each_consumer_gets_what_it_wants_once(
    groups: list[list[str | None]], wanted: list[list[str]], cut: int
) -> None:
    rule, stream = SubjectRule.from_key(), [Pattern.parse(text) for text in STREAM]
    addressing = Addressing(rule, stream)
    slices = make_slices(addressing, groups)
    audience = Audience(addressing.dictionary("topic", 0), [[Pattern.parse(t) for t in texts] for texts in wanted])
    for group, piece in zip([group for group in groups if group], [s for s in slices if s.codes.size], strict=True):
        selection = audience.select(piece.codes)
        for i, texts in enumerate(wanted):
            rows = [
                row
                for row, subject in enumerate(group)
                if subject is not None and belongs(subject) and texts and wants(texts, subject)
            ]
            assert selection.of(i).tolist() == rows
        consumers = np.arange(len(wanted))[::-1]
        lists = {i: selection.of(i).tolist() for i in consumers.tolist()}
        assert selection.count(consumers).tolist() == list(map(len, lists.values()))
        assert selection.wanting(consumers) == selection.wanting()[::-1]
        cut = min(cut, len(wanted))
        check_piles(
            Piles(audience, consumers, np.array([0, cut, cut, len(wanted)])).deal(selection), list(lists.values()), cut
        )
        lost = sum(subject is None or not belongs(subject) for subject in group)
        assert sum(piece.count_unaddressed().values()) == lost


def belongs(subject: str) -> bool:
    return is_subject(subject) and not subject.startswith("$") and any(matches(p, subject) for p in STREAM)


def test_overlapping_filters_deliver_once() -> None:
    addressing = Addressing(SubjectRule.from_key(), [Pattern.parse(">")])
    (piece,) = [s for s in make_slices(addressing, [["a.b", "a.c", "c.b"]]) if s.codes.size]
    patterns = [Pattern.parse(text) for text in ("a.*", "*.b", ">")]
    selection = Audience(addressing.dictionary("topic", 0), [patterns]).select(piece.codes)
    assert selection.of(0).tolist() == [0, 1, 2]


def test_a_partition_in_the_rule_has_a_dictionary_of_its_own() -> None:
    addressing = Addressing(SubjectRule.from_template("p.{partition}.{key}"), [Pattern.parse(">")])
    for partition in (0, 1, 0):
        (piece,) = [s for s in make_slices(addressing, [["k"]], partition) if s.codes.size]
        assert piece.dictionary.subjects[piece.codes[0]] == f"p.{partition}.k"


def test_many_consumers_and_subjects() -> None:
    """Far past the first size of every table."""
    subjects = [f"a.{i}" for i in range(5_000)]
    addressing = Addressing(SubjectRule.from_key(), [Pattern.parse(">")])
    texts = [[f"a.{i}", f"a.{i + 1}"] for i in range(0, 4_000, 2)] + [[">"]]
    audience = Audience(addressing.dictionary("topic", 0), [[Pattern.parse(t) for t in pair] for pair in texts])
    for _ in range(2):
        for piece in make_slices(addressing, [subjects]):
            if piece.codes.size:
                selection = audience.select(piece.codes)
                assert [selection.of(i).tolist() for i in range(2_000)] == [[2 * i, 2 * i + 1] for i in range(2_000)]
                assert selection.of(2_000).size == 5_000
