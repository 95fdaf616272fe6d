"""What a process of Spark's keeps of its streams, when several threads ask for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark.kept import MOST, Kept, keep
from spark.options import Ask, read_options

THREADS = 8
ROUNDS = 300
DEFINITION = """{name: S%d, topics: [t], subject: {template: "{header:h}"}}"""


def make_ask(number: int) -> Ask:
    return read_options({"bootstrap": "127.0.0.1:1", "definition": DEFINITION % number})


@pytest.fixture
def fast_switches() -> Iterator[None]:
    """Have threads switch every few microseconds."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(2e-6)
    yield
    sys.setswitchinterval(interval)


def test_threads_keep_more_streams_than_there_is_room_for(fast_switches: None) -> None:
    """One thread's stream makes another's go while that one is found."""
    asks = [make_ask(number) for number in range(2 * MOST)]

    def ask_for_each(first: int) -> int:
        return sum(isinstance(keep(asks[(first + turn) % len(asks)]), Kept) for turn in range(ROUNDS))

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(ask_for_each, range(THREADS))) == [ROUNDS] * THREADS


def test_a_stream_is_kept_once() -> None:
    assert keep(make_ask(1)) is keep(make_ask(1)) is not keep(make_ask(2))
