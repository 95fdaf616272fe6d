"""docs/cli.md against the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from overlay.cli import overlay

TEXT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")


def list_commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from list_commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def test_every_command_has_an_example() -> None:
    assert [path for path, _ in list_commands(overlay, "overlay") if f"    {path}" not in TEXT] == []


def test_every_option_of_an_example_exists() -> None:
    commands = dict(list_commands(overlay, "overlay"))
    examples = [line.partition("#")[0] for line in TEXT.replace("\\\n", "").splitlines() if line.startswith("    ov")]
    assert examples
    for example in examples:
        path = next(path for path in commands if example.strip().startswith(path))
        known = {
            option for parameter in commands[path].params for option in (*parameter.opts, *parameter.secondary_opts)
        }
        assert set(re.findall(r"(?<=\s)--?[A-Za-z-]+", example)) <= known, example
