"""Problems and warnings of a config folder as lines that can be read, also if thousands of files are bad. Pure.

Up to MOST_LINES of them are told one by one. Of more, those that differ only in quoted texts and numbers are told once,
with their number and some of their files: a renamed stream makes all its consumers bad in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from overlay.errors import ConfigError

MOST_LINES = 20
"""Most lines for problems, and most for warnings, beside one that says how many more there are."""
MOST_FILES = 3
"""Most further places that are named for problems of one kind."""
_VARYING = re.compile(r"(?<!\w)'[^'\n]*'(?!\w)|\"[^\"\n]*\"|\d+")

Item = TypeVar("Item")


def condense(items: Sequence[Item], describe: Callable[[Item], str]) -> list[list[Item]]:
    """Return items in groups, in the order of the first item of each. Up to MOST_LINES items are a group each; of more,
    items with texts that differ only in quoted parts and numbers form a group. `describe` returns the text of an item.
    """
    if len(items) <= MOST_LINES:
        return [[item] for item in items]
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(_VARYING.sub("_", describe(item)), []).append(item)
    return list(groups.values())


def name_others(places: Sequence[str]) -> str:
    """Return how many of a kind there are beside the one that is told, in brackets and with a blank before; empty if there
    are none. `places`: where the others are.
    """
    if not places:
        return ""
    more = ", ..." if len(places) > MOST_FILES else ""
    return f" ({len(places):,} more of this kind: {', '.join(places[:MOST_FILES])}{more})"


def count_rest(groups: Sequence[Sequence[object]]) -> str:
    """Return how many items there are in the groups behind the first MOST_LINES; empty if there are none."""
    rest = groups[MOST_LINES:]
    kinds = f"{len(rest):,} other kind{'' if len(rest) == 1 else 's'}"
    return f"{sum(map(len, rest)):,} more of {kinds}" if rest else ""


def list_lines(problems: Sequence[ConfigError]) -> Iterator[str]:
    """Yield up to MOST_LINES lines that tell of problems or warnings, and one more if that is not all of them."""
    groups = condense(problems, lambda problem: f"{problem.field}: {problem.message}")
    for first, *others in groups[:MOST_LINES]:
        yield f"{first}{name_others([_name(problem) for problem in others])}"
    if rest := count_rest(groups):
        yield f"{rest}. `overlay validate --json` lists all"


def _name(problem: ConfigError) -> str:
    """Return file and line of a problem, without the folders of the file."""
    place = problem.place
    return f"{Path(place.file).name}:{place.line}" if place.line else Path(place.file).name


def list_new(problems: Iterable[ConfigError], known: Iterable[ConfigError]) -> list[ConfigError]:
    """Return the problems that are not among the known ones. One that has only moved to another line is known."""
    told = {_sign(problem) for problem in known}
    return [problem for problem in problems if _sign(problem) not in told]


def _sign(problem: ConfigError) -> tuple[str, str, str]:
    return problem.place.file, problem.field, problem.message
