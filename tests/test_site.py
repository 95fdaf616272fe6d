"""The site of the documents: its references have all commands and fields, and it is built without a warning."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest

from docsite.reference import (
    describe_type,
    escape,
    list_commands,
    list_fields,
    write_commands,
    write_files,
    write_table,
)
from overlay.cli import overlay
from overlay.config.schema import MODELS, build_schema
from tests.support.source import REPOSITORY

BUILD_S = 120
FETCHED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("link", "href")}
"""Attributes whose addresses a browser fetches by itself. `link` also names what is not fetched."""
NOT_FETCHED = {"canonical", "next", "prev", "alternate"}
"""What `rel` of a link says of an address that is only named."""


def test_every_command_and_option_is_in_the_reference() -> None:
    page = write_commands()
    for path, command in list_commands(overlay, "overlay"):
        section = page[page.index(f"\n## {path}\n") :].partition("\n## ")[2].partition("\n## ")[0]
        options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
        assert [
            each.opts for each in options if not all(re.search(rf"[`, ]{name}\b", section) for name in each.opts)
        ] == []


@pytest.mark.parametrize("kind", MODELS)
def test_every_field_of_the_files_is_in_the_reference(kind: str) -> None:
    schema = build_schema(kind)
    page = write_files()
    names = [name for name, *_ in list_fields(schema, schema)]
    assert [name for name in names if f"\n| {name} | " not in page] == []
    assert {f"`{name}`" for name in MODELS[kind].model_json_schema(by_alias=True)["properties"]} <= set(names)


def test_types_and_defaults_are_in_words() -> None:
    schema = build_schema("stream")
    rows = {name: (kind, default) for name, kind, default, _ in list_fields(schema, schema)}
    assert rows["`index.chunk_age`"] == ("duration", "`10s`")
    assert rows["`index.chunk_bytes`"] == ("size", "`1MiB`")
    assert rows["`name`"] == ("text", "required")
    assert rows["`on_corrupt`"] == ("stop or skip", "`stop`")
    assert (
        describe_type({"type": "array", "items": {"type": ["string", "integer"]}}, {}) == "list of text or whole number"
    )


def test_plain_texts_keep_their_letters() -> None:
    assert escape("a|b `x|*` <c> *") == r"a\|b `x|*` &lt;c&gt; \*"
    assert write_table(("a", "b"), [("1", "2\n 3")]) == ["| a | b |", "| --- | --- |", "| 1 | 2 3 |"]
    assert write_table(("a",), []) == []


class Addresses(HTMLParser):
    """Collects the addresses that a browser fetches by itself, and paragraphs in which Markdown was left."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.left: list[str] = []
        self._is_text = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if not NOT_FETCHED & set((values.get("rel") or "").split()):
            self.fetched += [value or "" for name, value in attrs if (tag, name) in FETCHED]
        self._is_text = tag in {"p", "li", "td"}

    def handle_endtag(self, tag: str) -> None:
        self._is_text = False

    def handle_data(self, data: str) -> None:
        if self._is_text and re.search(r"^(```|\| |[-*] |\d+\. )", data, re.MULTILINE):
            self.left.append(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A warning fails the build."""
    folder = tmp_path_factory.mktemp("site")
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--quiet",
        "--config-file",
        "docsite/mkdocs.yml",
        "--site-dir",
        str(folder),
    ]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=BUILD_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def read_page(page: Path) -> Addresses:
    found = Addresses()
    found.feed(page.read_text(encoding="utf-8"))
    return found


def test_every_document_is_a_page(site: Path) -> None:
    documents = {path.with_suffix(".html").name for path in (REPOSITORY / "docs").glob("*.md")}
    assert documents == {path.name for path in (site / "docs").glob("*.html")}
    assert {"index.html", "CONTRIBUTING.html", "reference/commands.html", "reference/files.html"} <= {
        path.relative_to(site).as_posix() for path in site.rglob("*.html")
    }


def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    pages = {page: read_page(page).fetched for page in site.rglob("*.html")}
    assert any(any("stylesheets" in each for each in found) for found in pages.values())
    elsewhere = {each for found in pages.values() for each in found if re.match(r"([a-z]+:)?//", each)}
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert elsewhere | set(re.findall(r"(?:url\(|@import )['\"]?((?:[a-z]+:)?//[^)'\"]+)", styles)) == set()
    # the theme's script fetches a library for such a diagram, and figures for such a link to a repository
    kinds = re.compile(r'class="mermaid|data-md-component="source"')
    assert [str(page) for page in pages if kinds.search(page.read_text(encoding="utf-8"))] == []


def test_pages_have_no_markdown_left(site: Path) -> None:
    assert {
        str(page.relative_to(site)): found for page in site.rglob("*.html") if (found := read_page(page).left)
    } == {}
