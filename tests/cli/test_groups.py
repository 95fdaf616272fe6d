"""A mistyped command names the one that was meant."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from overlay.cli import overlay


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["consmer"], "consumer"),
        (["consumer", "list"], "ls"),
        (["consumer", "create"], "add"),
        (["consumer", "delete"], "rm"),
        (["consumer", "describe"], "info"),
        (["start"], "run"),
        (["consume"], "read"),
        (["topics"], "local topic"),
        (["local", "topic", "crete"], "create"),
        (["fleet", "rum"], "run"),
    ],
)
def test_the_nearest_command_is_named(words: list[str], meant: str) -> None:
    done = CliRunner().invoke(overlay, words)
    assert done.exit_code == 2
    assert f"No such command '{words[-1]}'. Did you mean {meant}?" in done.output


def test_what_is_like_none_is_refused_without_a_guess() -> None:
    done = CliRunner().invoke(overlay, ["zzzz"])
    assert done.exit_code == 2 and "No such command 'zzzz'." in done.output and "mean" not in done.output


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["read", "S", "--filter", "a > 3"], "--sql"),
        (["read", "S", "--where", "a > 3"], "--sql"),
        (["read", "S", "--output", "json"], "--format"),
        (["read", "S", "-n", "3"], "--limit"),
        (["read", "S", "--bootstrap-server", "h:1"], "--bootstrap"),
        (["read", "S", "--limt", "3"], "--limit"),
        (["consumer", "add", "S", "c", "--topic", "t"], "--output"),
    ],
)
def test_the_option_that_was_meant_is_named(words: list[str], meant: str) -> None:
    done = CliRunner().invoke(overlay, words)
    typed = next(word for word in words if word.startswith("-"))
    assert done.exit_code == 2
    assert f"No such option: {typed}. Did you mean {meant}?" in done.output
