"""The documents against the commands themselves: docs/cli.md has all of them, and no page names one that does not exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from docsite.reference import list_fields
from overlay.cli import overlay
from overlay.client.subscribe.message import Message
from overlay.config.schema import MODELS, build_schema
from tests.support.pages import list_blocks, list_pages

ROOT = Path(__file__).parents[2]
TARGETS = re.compile(r"^([a-z-]+):", re.MULTILINE)
"""Targets of the Makefile."""


def list_commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield every command and every group below one, with the words that call it."""
    context = click.Context(group)
    yield path, group
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from list_commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


@cache
def find_commands() -> dict[str, click.Command]:
    return dict(list_commands(overlay, "overlay"))


def list_calls(text: str) -> list[str]:
    """Return the calls of `overlay` that a page shows, in blocks and within sentences, without comments."""
    text = text.replace("\\\n", "")
    lines = re.findall(r"^(?:    )?(?:\.venv/bin/)?(overlay [^#\n]*)", text, re.MULTILINE)
    spans = [" ".join(span.split()) for span in re.findall(r"`(overlay [^`]+)`", text)]
    return [call.partition(" | ")[0].strip() for call in (*lines, *spans)]


def find_fault(call: str) -> str:
    """Return what of a call does not exist: a command or an option; "" if all does."""
    words = call.split()
    longest = max(number for number in range(1, len(words) + 1) if " ".join(words[:number]) in find_commands())
    command = find_commands()[" ".join(words[:longest])]
    if (
        isinstance(command, click.Group)
        and longest < len(words)
        and re.fullmatch(r"[a-z-]+", words[longest].rstrip(","))
    ):
        return f"command {words[longest]}" if not words[longest].startswith("-") else ""
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {"-h", "--help"}
    unquoted = re.sub(r"'[^']*'|\"[^\"]*\"", "", call)
    return " ".join(sorted(set(re.findall(r"(?<=[\s\[])--?[A-Za-z][A-Za-z-]*", unquoted)) - known))


def test_every_command_has_an_example() -> None:
    commands = [path for path, command in find_commands().items() if not isinstance(command, click.Group)]
    blocks = "".join(block.text for block in list_blocks("docs/cli.md"))
    assert [path for path in commands if not re.search(rf"\b{path}\b", blocks)] == []


@pytest.mark.parametrize("page", list_pages())
def test_calls_of_a_page_name_commands_and_options_that_exist(page: str) -> None:
    calls = list_calls((ROOT / page).read_text(encoding="utf-8"))
    assert [f"{call}: {fault}" for call in calls if (fault := find_fault(call))] == []


@pytest.mark.parametrize("page", list_pages())
def test_make_targets_of_a_page_exist(page: str) -> None:
    targets = set(TARGETS.findall((ROOT / "Makefile").read_text(encoding="utf-8")))
    named = re.findall(r"(?:^|^    |`)make ([a-z-]+)", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert set(named) - targets == set()


def test_what_does_not_exist_is_found() -> None:
    page = "    overlay read FLIGHTS --sbject x | head\nSay `overlay consumer\nlist --json`, or\noverlay run --workers 2 #\n"
    calls = list_calls(page)
    assert calls == ["overlay read FLIGHTS --sbject x", "overlay run --workers 2", "overlay consumer list --json"]
    assert [find_fault(call) for call in calls] == ["--sbject", "", "command list"]
    assert find_fault("overlay read T --sql '--no'") == ""


def list_our_words() -> set[str]:
    """Return the names of options, of fields of the config files, and of their values."""
    options = {name for command in find_commands().values() for each in command.params for name in each.opts}
    fields = set[str]()
    for kind in MODELS:
        schema = build_schema(kind)
        for name, values, *_ in list_fields(schema, schema):
            fields |= {*re.findall(r"\w+", name), *re.findall(r"\w+", values.replace("\\", ""))}
    return options | fields


def test_comparisons_name_options_and_fields_that_exist() -> None:
    page = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    here = [
        row.replace("\\|", "/").split("|")[2] for row in page.splitlines() if row.startswith("| ") and "---" not in row
    ]
    spans = [span for cell in here for span in re.findall(r"`([^`]+)`", cell)]
    options = {word for span in spans for word in re.findall(r"(?:^|(?<= ))--[a-z-]+", span)}
    fields = {word for span in spans for word in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", span)}
    assert len(options) > 10 and len(fields) > 20
    assert (options | fields) - list_our_words() - set(dir(Message)) == set()
