"""The case `count` of the Spark bench, without Spark and Kafka: the answer, and what becomes of a wrong one."""

from __future__ import annotations

from collections import Counter

import pytest

from bench.counting_spark import CASE, GOALS, Lines, run_side
from bench.errors import WrongAnswer
from bench.meters import RUN, Meters
from bench.spark import IN_ONE_SESSION

ASKED = Lines(Meters("nowhere:9092", 3 * RUN + 7, "meters"), "nowhere")


class Told:
    """A side that says what it is told to say."""

    name = "told"
    warm = True

    def __init__(self, answer: dict[str, int]) -> None:
        self._answer = answer

    def count(self, asked: Lines) -> dict[str, int]:
        return self._answer

    def close(self) -> None:
        """Nothing is open."""


def test_the_answer_is_that_of_the_records() -> None:
    lines = Counter("plant." + dict(headers)["line"].decode() for _, _, headers in ASKED.meters.list_records())
    assert ASKED.answer == lines and len(lines) == 4
    tally = run_side(Told(dict(lines)), ASKED)
    assert tally.records == ASKED.meters.records and tally.seconds > 0


def test_a_wrong_answer_ends_the_bench() -> None:
    wrong = ASKED.answer | {"plant.line00": 1}
    with pytest.raises(WrongAnswer, match=r"told on meters: .*\('plant.line00', 1\)"):
        run_side(Told(wrong), ASKED)


def test_it_is_a_case_of_the_bench() -> None:
    assert CASE in IN_ONE_SESSION and set(GOALS) == {"native"}
