from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.filter.nodes import Compare
from overlay.index.skip.intervals import compare_with
from overlay.index.skip.probes import (
    Alike,
    All,
    Any,
    Everything,
    Has,
    Nothing,
    NullIn,
    Offsets,
    Probe,
    SubjectIs,
    Times,
    Unsure,
    ValueIn,
    Within,
    alike,
    all_of,
    any_of,
    implied,
    implying,
    leaves,
)
from overlay.index.skip.terms import value_term
from overlay.subject import Pattern

A, B, C = Times(0, 1), Offsets(0, 1), ValueIn("x")


def test_and_drops_what_says_nothing() -> None:
    assert all_of([]) == Everything()
    assert all_of([Everything(), A]) == A
    assert all_of([A, Nothing(), B]) == Nothing()
    assert all_of([A, All((B, A)), C]) == All((A, B, C))


def test_or_drops_what_says_nothing() -> None:
    assert any_of([]) == Nothing()
    assert any_of([Nothing(), A]) == A
    assert any_of([A, Everything(), B]) == Everything()
    assert any_of([A, Any((B, A)), C]) == Any((A, B, C))


def test_one_question_in_several_ways() -> None:
    assert alike([]) == alike([Unsure(), Unsure()]) == Unsure()
    assert alike([Unsure(), A]) == A
    assert alike([A, Nothing()]) == Nothing()
    assert alike([A, Alike((B, A))]) == Alike((A, B))


def test_doubt_takes_one_answer_away() -> None:
    assert implied(Everything()) == implying(Nothing()) == Unsure()
    assert implied(Nothing()) == Nothing()
    assert implying(Everything()) == Everything()
    assert implied(A) == All((A, Unsure()))
    assert implying(A) == Any((A, Unsure()))


def test_leaves_are_in_the_order_of_the_tree() -> None:
    assert list(leaves(All((A, Any((B, Alike((C, Unsure())))))))) == [A, B, C, Unsure()]


probes = st.recursive(
    st.sampled_from((A, B, C, Everything(), Nothing(), Unsure())),
    lambda below: st.builds(
        lambda make, probes: make(probes), st.sampled_from((all_of, any_of)), st.lists(below, max_size=3)
    ),
    max_leaves=8,
)


def ask(probe: Probe, answers: dict[Probe, int]) -> int:
    match probe:
        case All(probes=below):
            return min((ask(each, answers) for each in below), default=2)
        case Any(probes=below):
            return max((ask(each, answers) for each in below), default=0)
    return {Everything(): 2, Nothing(): 0, Unsure(): 1}.get(probe) or answers.get(probe, 0)


@given(st.lists(probes, max_size=4), st.tuples(*[st.integers(0, 2)] * 3))
def test_simpler_words_have_the_same_answer(given: list[Probe], levels: tuple[int, int, int]) -> None:
    answers = dict(zip((A, B, C), levels, strict=True))
    assert ask(all_of(given), answers) == ask(All(tuple(given)), answers)
    assert ask(any_of(given), answers) == ask(Any(tuple(given)), answers)


@pytest.mark.parametrize(
    ("probe", "text"),
    [
        (Has(value_term(b"eu")), "bloom eu"),
        (NullIn("tail"), "tail IS NULL"),
        (Within("delay", "long", *compare_with(Compare.LT, 5, "long")), "zone delay in ..4"),
        (
            Within("tail", "string", *compare_with(Compare.EQ, b"N1", "string"), negated=True),
            "zone tail not in 'N1'..'N1'",
        ),
        (All((Times(5, None), Offsets(None, 7))), "(time 5.. and offset ..7)"),
        (Any((Unsure(), Everything())), "(not indexed or everything)"),
        (SubjectIs(tuple(map(Pattern, "abcde"))), "subject a or b or c or 2 more"),
    ],
)
def test_probes_are_shown_to_people(probe: Probe, text: str) -> None:
    assert str(probe) == text
