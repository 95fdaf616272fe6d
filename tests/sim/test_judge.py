"""What the judge says of deliveries that are too many at once, or too early."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.oracle.push import Token

from .judge import Delivery, Judge, Said
from .plan import Consumer
from .reading import Found


def make_judge(most: int, *, read: Sequence[tuple[float, int, int]] = (), gone: Collection[bytes] = ()) -> Judge:
    """`read`: the commits of the reader group, as Run.read has them. `gone`: values that the source has lost."""
    judge: Any = Judge.__new__(Judge)
    versions = {"c": [SimpleNamespace(config={"max_ack_pending": most, "ack_wait": "2s"})]}
    settings = SimpleNamespace(wall_ms0=0.0)
    judge._run = SimpleNamespace(
        files=SimpleNamespace(versions=versions), read={"c": read}, world=SimpleNamespace(settings=settings)
    )
    judge._archive = SimpleNamespace(lost={"out": ()}, undecided={"out": ()})
    judge._gone = gone
    return judge  # type: ignore[no-any-return]


def make_consumer(policy: str = "explicit") -> Consumer:
    return Consumer("c", {"deliver_subject": "out", "ack_policy": policy}, frozenset())


def deliver(*sent: tuple[int, int]) -> list[Delivery]:
    """Return deliveries, of which each is a stream sequence and a time in ms."""
    counts: defaultdict[int, int] = defaultdict(int)
    found = []
    for number, (sequence, at) in enumerate(sent):
        counts[sequence] += 1
        token = Token("S", "c", counts[sequence], sequence, number + 1, 0, 0)
        found.append(Delivery(Found(0, number, at, b"k", b"v", ()), token))
    return found


def say(**of: dict[int, list[int]]) -> defaultdict[int, Said]:
    """Return what readers said: by what it was, times in ms by stream sequence."""
    said: defaultdict[int, Said] = defaultdict(Said)
    for what, times in of.items():
        for sequence, found in times.items():
            setattr(said[sequence], what, found)
    return said


@pytest.mark.parametrize(
    ("policy", "said", "expected"),
    [
        ("explicit", say(), [3, 4]),
        ("explicit", say(acked={1: [25]}), [4]),
        ("explicit", say(acked={1: [31]}), [3, 4]),
        ("explicit", say(acked={2: [25]}, termed={1: [25]}), []),
        ("explicit", say(nakked={1: [25]}, dated={2: [35]}), []),
        ("all", say(acked={2: [25]}), []),
        ("all", say(acked={1: [25]}), [4]),
    ],
)
def test_no_more_than_max_ack_pending_wait(policy: str, said: defaultdict[int, Said], expected: list[int]) -> None:
    """Two may. What comes again is not new."""
    deliveries = deliver((1, 10), (2, 20), (1, 25), (3, 30), (4, 40))
    assert list(make_judge(2)._find_overfull(make_consumer(policy), deliveries, said, {})) == expected
    assert list(make_judge(-1)._find_overfull(make_consumer(policy), deliveries, said, {})) == []
    assert list(make_judge(2, gone={b"v"})._find_overfull(make_consumer(policy), deliveries, said, {})) == []


READ_FIRST, READ_AGAIN = (1.0, 0, 1), (5.0, 0, 2)
"""Commits past the first delivery at 1 s, and past its redelivery at 5 s."""


@pytest.mark.parametrize(
    ("again", "read", "said", "is_early"),
    [
        (3_000, [READ_FIRST], say(), False),
        (2_900, [READ_FIRST], say(), True),
        (2_900, [], say(), True),
        (2_900, [READ_FIRST], say(nakked={1: [2_000]}), False),
        (2_900, [READ_FIRST], say(termed={1: [2_000]}), False),
        (2_900, [READ_FIRST], say(progressed={1: [500]}), False),
    ],
)
def test_a_message_comes_again_when_its_ack_wait_is_over(
    again: int, read: list[tuple[float, int, int]], said: defaultdict[int, Said], is_early: bool
) -> None:
    """Of two seconds, from the commit past its delivery on, but for naks."""
    deliveries = deliver((1, 900), (1, again))
    found = list(make_judge(-1, read=read)._find_hasty(make_consumer(), deliveries, said, {}))
    assert found == ([1] if is_early else [])


@pytest.mark.parametrize(("third", "is_early"), [(4_000, True), (7_000, False)])
def test_a_nak_excuses_one_redelivery(third: int, is_early: bool) -> None:
    """The next one waits for the commit past it."""
    deliveries, said = deliver((1, 900), (1, 1_100), (1, third)), say(nakked={1: [1_000]})
    judge = make_judge(-1, read=[READ_FIRST, READ_AGAIN])
    assert list(judge._find_hasty(make_consumer(), deliveries, said, {})) == ([1] if is_early else [])
    letters = {1: [Found(0, 0, third, b"k", b"v", ())]}
    assert list(judge._find_hasty(make_consumer(), deliveries[:2], said, letters)) == ([1] if is_early else [])
