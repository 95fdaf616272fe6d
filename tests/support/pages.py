"""Code blocks of the documents, and what invisible comments before them say (CONTRIBUTING.md#documents)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.support.source import REPOSITORY

LANGUAGES = ("sh", "python")
"""Languages of blocks that a terminal can run."""
ANY = "..."
"""In an expected output: any text within a line, or any lines where it is a line of its own."""
_REASON_WORDS = 3
_MARKER = re.compile(r"<!-- (not run|run): (.*?) -->")


class MarkerError(Exception):
    """A comment before a code block that says nothing the tests understand."""


class How(Enum):
    """How a block is run."""

    IN_ORDER = "in order"
    BESIDE = "beside"
    LONG = "long"
    LAST = "last"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Block:
    """A block of commands. `line`: of its first fence, from 1. `output`: what it prints on stdout, None where the page does
    not show it. `reason`: why it is not run."""

    page: str
    line: int
    language: str
    text: str
    how: How
    reason: str = ""
    output: str | None = None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def list_blocks(page: str) -> list[Block]:
    """Return the blocks of a page that have a language of LANGUAGES. Raises MarkerError."""
    return list(parse_blocks(page, (REPOSITORY / page).read_text(encoding="utf-8")))


def parse_blocks(page: str, text: str) -> Iterator[Block]:
    """Yield the blocks of a text in their order. Raises MarkerError for a comment that says neither how the block below it is
    run nor why it is not.
    """
    fences = list(_list_fences(text.splitlines()))
    for number, (line, language, content, before) in enumerate(fences):
        if language not in LANGUAGES:
            continue
        how, reason = _read_marker(f"{page}:{line}", before)
        following = fences[number + 1] if number + 1 < len(fences) else None
        is_output = following is not None and following[1] == "text" and following[0] == line + content.count("\n") + 2
        yield Block(page, line, language, content, how, reason, following[2] if following and is_output else None)


def _list_fences(lines: list[str]) -> Iterator[tuple[int, str, str, str]]:
    """Yield line number, language, content and the line before, blank lines left out, of each fenced block. One within a list
    is indented, and is given without that.
    """
    begun: int | None = None
    for number, line in enumerate(lines):
        fence = line.lstrip(" ")
        if not fence.startswith("```"):
            continue
        if begun is None:
            begun = number
            continue
        first = lines[begun].lstrip(" ")
        margin = " " * (len(lines[begun]) - len(first))
        before = next((each.strip() for each in reversed(lines[:begun]) if each.strip()), "")
        content = "".join(f"{each.removeprefix(margin)}\n" for each in lines[begun + 1 : number])
        yield begun + 1, first.removeprefix("```"), content, before
        begun = None


def _read_marker(place: str, line: str) -> tuple[How, str]:
    if not line.startswith("<!--"):
        return How.IN_ORDER, ""
    found = _MARKER.fullmatch(line)
    if found is None:
        raise MarkerError(
            f"{place}: {line!r} is no marker. Write <!-- not run: REASON --> or <!-- run: beside|long|last -->"
        )
    kind, said = found.groups()
    if kind == "run":
        if said not in (How.BESIDE.value, How.LONG.value, How.LAST.value):
            raise MarkerError(f"{place}: `run: {said}` is not known. Write beside, long or last")
        return How(said), ""
    if len(said.split()) < _REASON_WORDS:
        raise MarkerError(f"{place}: say in some words why the block is not run")
    return How.NEVER, said


def is_shown(expected: str, printed: str) -> bool:
    """Return whether a program has printed what the page shows. White space counts as one space, and ANY is any text."""
    parts = []
    for line in expected.splitlines():
        words = " ".join(line.split())
        if words == ANY:
            parts.append(r"(?:[^\n]*\n)*")
        else:
            parts.append(r"[^\n]*".join(map(re.escape, words.split(ANY))) + r"\n")
    plain = "".join(" ".join(line.split()) + "\n" for line in printed.splitlines())
    return re.fullmatch("".join(parts), plain) is not None


def list_pages() -> list[str]:
    """Return the documents: README.md, CONTRIBUTING.md and docs/*.md."""
    return [
        "README.md",
        "CONTRIBUTING.md",
        *(f"docs/{path.name}" for path in sorted(Path(REPOSITORY, "docs").glob("*.md"))),
    ]
