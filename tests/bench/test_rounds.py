from __future__ import annotations

from dataclasses import dataclass

import pytest

from bench.errors import PeerUnavailable
from bench.rounds import take_turns


@dataclass(frozen=True, slots=True)
class Runner:
    name: str


RUNNERS = [Runner("overlay"), Runner("one"), Runner("two")]


def test_every_round_begins_with_another_side() -> None:
    order: list[str] = []

    def measure(runner: Runner) -> float:
        order.append(runner.name)
        return float(len(order))

    runs = take_turns(RUNNERS, 3, measure)
    assert order == ["overlay", "one", "two", "one", "two", "overlay", "two", "overlay", "one"]
    assert runs.figures == {"overlay": [1, 6, 8], "one": [2, 4, 9], "two": [3, 5, 7]}
    assert runs.skipped == {}


def test_a_peer_that_cannot_run_is_left_out_with_its_reason() -> None:
    calls: list[str] = []

    def measure(runner: Runner) -> float:
        calls.append(runner.name)
        if runner.name == "one" and calls.count("one") == 2:
            raise PeerUnavailable("its process ended")
        return 1.0

    runs = take_turns(RUNNERS, 3, measure)
    assert runs.skipped == {"one": "its process ended"}
    assert set(runs.figures) == {"overlay", "two"}
    assert calls.count("one") == 2


def test_without_our_own_side_the_bench_ends() -> None:
    def measure(runner: Runner) -> float:
        raise PeerUnavailable(f"{runner.name} is not there")

    with pytest.raises(PeerUnavailable, match="overlay is not there"):
        take_turns(RUNNERS, 1, measure)
