"""The documents: their links lead somewhere, and what they show works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from overlay.config import load
from overlay.subject import Pattern, escape_token
from tests.config.folders import write_folder
from tests.sim.mutants.catalog import MUTANTS

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
PAGES_OF_PATHS = (
    "CONTRIBUTING.md",
    *(
        f"docs/{name}.md"
        for name in ("architecture", "exactly-once", "filters", "glossary", "jetstream", "reliability")
    ),
)
"""Pages that say where things are in the repository."""
TOP = ("bench", "docs", "docsite", "examples", "grafana", "overlay", "spark", "supply", "tests")
_LINK = re.compile(r"\]\(([^)#:]+)\)")
_ANCHOR = re.compile(r"\]\(([^)#:]*)#([^)]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_QUOTED = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)*/?", re.ASCII)
_SUFFIXES = (".py", ".md", ".lark", ".json", ".yml", ".toml", ".lock")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    links = _LINK.findall(path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_anchors_exist_in_their_pages(page: str) -> None:
    path = ROOT / page
    anchors = _ANCHOR.findall(path.read_text(encoding="utf-8"))
    missing = [(link, name) for link, name in anchors if name not in find_anchors(path.parent / link if link else path)]
    assert missing == []


def find_anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them; none for a page that does not exist."""
    if not path.exists():
        return set()
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCED.sub("", path.read_text(encoding="utf-8"))):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w -]", "", text).replace(" ", "-")
        found.add(next(each for each in (anchor, *(f"{anchor}-{n}" for n in range(1, 100))) if each not in found))
    return found


@pytest.mark.parametrize("page", PAGES_OF_PATHS)
def test_paths_of_the_repository_exist(page: str) -> None:
    text = _FENCED.sub("", (ROOT / page).read_text(encoding="utf-8"))
    paths = {quoted for quoted in _QUOTED.findall(text) if looks_like_a_path(quoted)}
    assert paths
    assert sorted(path for path in paths if not is_there(path)) == []


def looks_like_a_path(text: str) -> bool:
    return bool(_PATH.fullmatch(text)) and (
        text.endswith(("/", *_SUFFIXES)) or (text.partition("/")[0] in TOP and "/" in text)
    )


def is_there(path: str) -> bool:
    """Whether the repository has a path. One that begins in a room, or is a name alone, may be anywhere below."""
    if path.partition("/")[0] in TOP or (ROOT / path).exists():
        return (ROOT / path).exists()
    return any(next((ROOT / top).glob(f"**/{path}"), None) for top in TOP)


def test_what_looks_like_a_path() -> None:
    assert all(map(looks_like_a_path, ("overlay/scan/crc.py", "skip/", "crc.py", "tests/oracle/", "pyproject.toml")))
    assert not any(
        map(looks_like_a_path, ("/readyz", "+ACK", "stream/consumer", "overlay.state", "<prefix>.acks", "a b.py"))
    )
    assert is_there("index/log_check.py")
    assert not is_there("overlay/log_check.py")


def test_code_refers_to_pages_and_anchors_that_exist() -> None:
    wrong = []
    for path in (each for top in TOP for each in (ROOT / top).glob("**/*.py")):
        for page, anchor in re.findall(r"\bdocs/([\w-]+\.md)(?:#([\w-]+))?", path.read_text(encoding="utf-8")):
            if anchor not in {"", *find_anchors(ROOT / "docs" / page)} or not (ROOT / "docs" / page).exists():
                wrong.append(f"{path.relative_to(ROOT)}: docs/{page}#{anchor}")
    assert wrong == []


def test_tests_and_mutants_that_pages_name_exist() -> None:
    pages = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES if page.startswith("docs/")}
    named = {name for text in pages.values() for name in re.findall(r"`(test_\w+)`", text)}
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("**/test_*.py"))
    assert named - set(re.findall(r"def (test_\w+)", tests)) == set()
    rows = [line for line in pages["docs/exactly-once.md"].splitlines() if line.startswith("| held by")]
    mutants = {name for row in rows for name in re.findall(r"`([a-z]+(?:-[a-z]+)+)`", row)}
    assert mutants
    assert mutants - set(MUTANTS) == set()


def test_the_readme_names_the_pages_for_contributors() -> None:
    links = _LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert {"CONTRIBUTING.md", "docs/glossary.md", "docs/exactly-once.md", "docs/jetstream.md"} <= set(links)


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
