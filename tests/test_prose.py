"""Sentences in code, tests and docs name their actors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("overlay", "spark", "tests", "bench", "docs", "docsite", "examples", "grafana", "supply")
KINDS = {".py", ".md", ".yaml", ".yml", ".json"}
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for found in (ROOT.glob("*.md"), *((ROOT / folder).rglob("*") for folder in FOLDERS))
    for path in found
    if path.suffix in KINDS and path != Path(__file__)
)

ANONYMOUS = re.compile(r"(?<![a-z])(nobody|somebody|anybody|whoever|those who)", re.IGNORECASE)
"""Pronouns behind which the reader has to look for the actor: the cursor, the consumer, the broker, the client."""


def find_anonymous(text: str) -> list[str]:
    """Return each line that has such a pronoun, with its number."""
    return [f"{number}: {line.strip()}" for number, line in enumerate(text.splitlines(), 1) if ANONYMOUS.search(line)]


def test_actors_have_names() -> None:
    found = [f"{page}:{line}" for page in PAGES for line in find_anonymous((ROOT / page).read_text(encoding="utf-8"))]
    assert not found, "name the actor:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "line", ["It waits for whoever reads.", "def test_that_nobody_waits() -> None:", "# Those who ack"]
)
def test_what_is_found(line: str) -> None:
    assert find_anonymous(f"first\n{line}") == [f"2: {line}"]
