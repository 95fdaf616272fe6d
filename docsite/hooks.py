"""Events of mkdocs: the site has the pages of the repository under their paths there, so that their links need no change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docsite.reference import write_references

ROOT = Path(__file__).parents[1]
LISTING = "index.md"
"""The page of a folder that pages link to."""
_LINK = re.compile(r"\]\(([^)#:]+)(#[^)]*)?\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Return the files of the theme, the pages, what these link to, and the references."""
    found = Files([file for file in files if file.src_dir != config.docs_dir])
    pages = list_pages()
    linked = sorted({path for page in pages for path in list_linked(page)} - set(pages))
    folders = [path for path in linked if path.is_dir()]
    shown = [
        *pages,
        *(path for path in linked if path.is_file()),
        *(file for each in folders for file in list_files(each)),
    ]
    for path in dict.fromkeys(shown):
        found.append(File(_name(path), str(ROOT), config.site_dir, config.use_directory_urls))
    listings = {f"{_name(folder)}/{LISTING}": write_listing(folder) for folder in folders}
    for name, text in (write_references() | listings).items():
        found.append(File.generated(config, name, content=text))
    return found


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the text of a page with links to folders as links to their listings."""
    source = ROOT / page.file.src_uri
    return _LINK.sub(
        lambda link: link[0].replace(link[1], f"{link[1]}/{LISTING}") if _leads(source, link[1]) else link[0], markdown
    )


def list_pages() -> list[Path]:
    """Return the pages of the repository."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def list_linked(page: Path) -> Iterator[Path]:
    """Yield the files and folders of the repository that a page links to."""
    for link, _ in _LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / link).resolve()
        if path.exists() and path.is_relative_to(ROOT):
            yield path


def list_files(folder: Path) -> list[Path]:
    """Return the files of a folder and of those in it."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix in {".yaml", ".json", ".py"})


def write_listing(folder: Path) -> str:
    """Return the page of a folder: links to its files."""
    names = [path.relative_to(folder).as_posix() for path in list_files(folder)]
    return "\n".join([f"# {_name(folder)}", "", *(f"- [{name}]({name})" for name in names), ""])


def _leads(page: Path, link: str) -> bool:
    """Return whether a link of a page leads to a folder of the repository."""
    path = (page.parent / link).resolve()
    return path.is_dir() and path.is_relative_to(ROOT) and path != ROOT


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
