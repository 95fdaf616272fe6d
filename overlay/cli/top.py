"""`overlay top`: workers and consumers, live in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from overlay.errors import OverlayError

from .folder import config_option, open_folder

if TYPE_CHECKING:
    from overlay.config import Loaded
    from overlay.view.top import Choice, Line

EVERY_S = 1.0
"""Seconds between two looks at the topic."""
ORDERS = ("rate", "lag", "lag-time", "unacked", "redelivered", "state", "name")
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_OPEN, _CLOSE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""The terminal's second screen without a cursor, and back."""


@click.command()
@config_option
@click.option("--sort", type=click.Choice(ORDERS), default="rate", show_default=True, help="Order of the consumers.")
@click.option("--once", is_flag=True, help="Print one screen, with all consumers, and end.")
def top(folder: Path, sort: str, once: bool) -> None:
    """Show workers, what is wrong, and consumers, until q is pressed.

    Reads what workers publish every two seconds in the topic <prefix>.fleet; no fleet process is needed.
    """
    from overlay.view.top import Choice, Order

    choice = Choice(next(order for order in Order if order.word == sort))
    loaded = open_folder(folder)
    if not once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise OverlayError("there is no terminal to draw on. Say --once to print one screen")
    if once:
        asyncio.run(print_once(loaded, choice))
        return
    with take_terminal():
        asyncio.run(follow(loaded, choice))


async def print_once(loaded: Loaded, choice: Choice) -> None:
    """Print one screen with all consumers. Raises OverlayError, SourceUnavailable."""
    from overlay.fleet.read import open_reader
    from overlay.view.top import draw

    async with open_reader(loaded) as reader:
        found = (await reader.look()).describe()
    width = shutil.get_terminal_size((160, 50)).columns if sys.stdout.isatty() else 160
    height = len(found["consumers"]) + len(found["workers"]) + len(found["findings"]) + 10
    for line in draw(found, choice, width, height, loaded.service.topics.prefix)[:-1]:
        click.echo(paint(line, colours=sys.stdout.isatty()).rstrip())


async def follow(loaded: Loaded, choice: Choice) -> None:
    """Draw the screen every EVERY_S and after each key, until the user ends it. While Kafka does not answer, the last
    picture stays. Raises OverlayError.
    """
    from overlay.errors import SourceUnavailable
    from overlay.fleet.read import open_reader
    from overlay.view.top import count_rows, draw, press

    keys: asyncio.Queue[str] = asyncio.Queue()

    def take_keys() -> None:
        for key in read_keys():
            keys.put_nowait(key)

    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), take_keys)
    async with open_reader(loaded) as reader:
        found = (await reader.look()).describe()
        while True:
            size = shutil.get_terminal_size()
            show(draw(found, choice, size.columns, size.lines, loaded.service.topics.prefix))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S):
                    key = await keys.get()
                if (after := press(choice, key, count_rows(found, size.lines))) is None:
                    return
                choice = after
                continue
            with contextlib.suppress(SourceUnavailable):
                found = (await reader.look()).describe()


def read_keys() -> list[str]:
    """Return the keys that were pressed; the key "" if the terminal is gone. Blocks if there is none."""
    from overlay.view.top import split_keys

    try:
        return split_keys(os.read(sys.stdin.fileno(), 64).decode("latin-1"))
    except OSError:
        return split_keys("")


@contextlib.contextmanager
def take_terminal() -> Iterator[None]:
    """Use the terminal's second screen, and have each key come at once, for a block; then leave it as it was. Ctrl-C
    ends the block, and nothing is raised.
    """
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        sys.stdout.write(_OPEN)
        sys.stdout.flush()
        yield
    except KeyboardInterrupt:
        pass
    finally:
        sys.stdout.write(_CLOSE)
        sys.stdout.flush()
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def show(lines: list[Line]) -> None:
    """Draw lines over those of before, without a flicker."""
    text = f"{_CLEAR_LINE}\r\n".join(paint(line, colours=True) for line in lines)
    sys.stdout.write(_HOME + text + _CLEAR_LINE + _CLEAR_BELOW)
    sys.stdout.flush()


def paint(line: Line, *, colours: bool) -> str:
    """Return a line as the terminal shows it."""
    return "".join(
        f"\x1b[{span.style.value}m{span.text}\x1b[0m" if colours and span.style.value else span.text for span in line
    )
