"""Problems as lines: one by one, or by kind if there are many."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from overlay.config.summary import MOST_LINES, condense, list_lines, list_new
from overlay.errors import ConfigError, FilePosition
from tests.config.folders import load_files


def make_problem(number: int, message: str = "wants a number", line: int = 1) -> ConfigError:
    return ConfigError(FilePosition(f"/folder/consumers/c{number}.yaml", line, 1), message, field="ack_wait")


def test_a_few_problems_are_told_one_by_one() -> None:
    problems = [make_problem(number) for number in range(MOST_LINES)]
    assert list(list_lines(problems)) == [str(problem) for problem in problems]


def test_problems_of_one_kind_are_told_once_with_their_number() -> None:
    problems = [make_problem(number, f"found 'x{number}', wants {number} or \"more\"") for number in range(5_000)]
    (line,) = list_lines(problems)
    assert line == f"{problems[0]} (4,999 more of this kind: c1.yaml:1, c2.yaml:1, c3.yaml:1, ...)"


def test_words_keep_problems_apart() -> None:
    words = ["it's late", "it's early", "consumers' names", "streams' names"]
    problems = [make_problem(number, words[number % 4]) for number in range(40)]
    assert [line.partition(" (")[0] for line in list_lines(problems)] == [str(problem) for problem in problems[:4]]


def test_kinds_beyond_the_first_are_counted() -> None:
    letters = [chr(ord("a") + number) for number in range(25)]
    problems = [make_problem(number, f"is {letter}") for letter in letters for number in range(2)]
    *lines, last = list_lines(problems)
    assert len(lines) == MOST_LINES
    assert last == "10 more of 5 other kinds. `overlay validate --json` lists all"


@given(st.lists(st.sampled_from(["a 1", "a 2", "b", "c 'x'", "c 'y'"]), max_size=40))
def test_every_item_is_in_one_group(texts: list[str]) -> None:
    items = list(enumerate(texts))
    groups = condense(items, lambda item: item[1])
    assert sorted(item for group in groups for item in group) == items
    assert groups == sorted(groups)
    kinds = {text[0] for text in texts}
    assert len(groups) == (len(texts) if len(texts) <= MOST_LINES else len(kinds))


def test_what_has_moved_to_another_line_is_not_new() -> None:
    known = [make_problem(number) for number in range(3)]
    moved = [make_problem(number, line=9) for number in range(3)]
    other = [make_problem(0, "wants a text"), make_problem(3)]
    assert list_new([*moved, *other], known) == other
    assert list_new(known, []) == known


def write_bad(count: int) -> Iterator[tuple[str, str]]:
    for number in range(count):
        yield f"consumers/c{number:04}.yaml", "zork"


def test_five_thousand_bad_files_are_a_few_lines(tmp_path: Path) -> None:
    loaded = load_files(tmp_path, dict(write_bad(5_000)))
    assert len(loaded.problems) == 5_000
    (line,) = list_lines(loaded.problems)
    assert "c0000.yaml:1:1: is not a mapping" in line
    assert "(4,999 more of this kind: c0001.yaml:1, c0002.yaml:1, c0003.yaml:1, ...)" in line
