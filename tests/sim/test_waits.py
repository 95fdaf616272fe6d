"""The simulation's own asyncio.wait against Python's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from . import waits
from .loop import Loop


async def run(wait: Callable[..., Any], return_when: str, seconds: float | None, ends: list[float]) -> list[object]:
    """Return what a wait tells of tasks that end, some with an error, after so many seconds, and when it tells it."""
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def end(number: int, pause_s: float) -> int:
        await asyncio.sleep(pause_s)
        if number == 1:
            raise KeyError(number)
        return number

    tasks = [asyncio.create_task(end(number, pause_s), name=str(number)) for number, pause_s in enumerate(ends)]
    done, pending = await wait(tasks, timeout=seconds, return_when=return_when)
    told: list[object] = [loop.time() - began]
    told += [sorted(task.get_name() for task in found) for found in (done, pending)]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return told


@pytest.mark.parametrize("return_when", [asyncio.ALL_COMPLETED, asyncio.FIRST_COMPLETED, asyncio.FIRST_EXCEPTION])
@pytest.mark.parametrize("seconds", [None, 0.0, 2.5])
@pytest.mark.parametrize("ends", [[1.0], [1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [0.0, 5.0]])
def test_a_wait_tells_what_pythons_own_tells(return_when: str, seconds: float | None, ends: list[float]) -> None:
    told: list[list[object]] = []
    for wait in (asyncio.wait, waits.wait):
        loop = Loop(1)
        told.append(loop.run_until_complete(run(wait, return_when, seconds, ends)))
        loop.discard()
    assert told[0] == told[1]


def test_a_wait_for_nothing_is_refused() -> None:
    loop = Loop(1)
    with pytest.raises(ValueError, match="empty"):
        loop.run_until_complete(waits.wait([]))
    loop.discard()
