"""The documents: their links lead somewhere, and what they show works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from overlay.config import load
from overlay.subject import Pattern, escape_token
from tests.config.folders import write_folder

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
_LINK = re.compile(r"\]\(([^)#:]+)\)")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    links = _LINK.findall(path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_the_files_that_the_readme_shows_are_sound(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n# (\S+)\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert [name for name, _ in blocks] == ["streams/flights.yaml", "consumers/laguardia-and-ohare.yaml"]
    folder = write_folder(tmp_path, {"overlay.yaml": "kafka: {bootstrap.servers: 'h:1'}\n", **dict(blocks)})
    loaded = load(folder)
    assert not loaded.problems
    assert ("FLIGHTS", "laguardia-and-ohare") in loaded.consumers


def read_rows(heading: str) -> list[list[str]]:
    """The cells of the first table after a line, without its head; each the texts in backquotes."""
    text = (ROOT / "docs" / "subjects.md").read_text(encoding="utf-8")
    table = text[text.index(heading) :].split("\n\n")[0].splitlines()[2:]
    return [[" ".join(re.findall(r"`([^`]*)`", cell)) for cell in row.strip("|").split("|")] for row in table]


def test_tokens_of_the_page_on_subjects() -> None:
    rows = read_rows("| value | token |")
    values = {row[0]: row[1] for row in rows}
    assert values.pop("FF FE  x") == escape_token(b"\xff\xfe x")
    assert {value: escape_token(value.encode()) for value in values} == values
    assert len(rows) > 4


def test_filters_of_the_page_on_subjects() -> None:
    rows = read_rows("| filter | matches | does not match |")
    assert len(rows) == 4
    for text, matching, other in rows:
        assert all(Pattern(text).matches(subject) for subject in matching.split()), text
        assert not any(Pattern(text).matches(subject) for subject in other.split()), text
