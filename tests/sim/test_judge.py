"""What the judge says of deliveries that are too many at once."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from tests.oracle.push import Token

from .judge import Delivery, Judge, Said
from .plan import Consumer
from .reading import Found


def make_judge(most: int) -> Judge:
    judge: Any = Judge.__new__(Judge)
    versions = {"c": [SimpleNamespace(config={"max_ack_pending": most})]}
    judge._run = SimpleNamespace(files=SimpleNamespace(versions=versions))
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
